"""What the fusion pass did, counted per compile range; in the log, and in a file when asked.

The environment variable ``NORMPORT_CAR_REPORT`` names a folder; each tensor-parallel rank writes
``car-rmsnorm-rank<N>.json`` there (docs/car-rmsnorm.md describes it). Needs neither torch nor vLLM.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normport.layers.car_rmsnorm.logs import logger

REPORT_VARIABLE = "NORMPORT_CAR_REPORT"
SCHEMA = 1


@dataclass
class RangeCount:
    """One compile range; start and end are inclusive rows.

    graphs: graphs that the pass saw (one that equals another is compiled once). matched: sites
    where a norm follows an all-reduce of the group. replaced: those that were fused. forms: the
    fused ones by form. skipped: the others of a fused range by reason.
    """

    start: int
    end: int
    fused: bool
    code: str
    reason: str
    graphs: int = 0
    matched: int = 0
    replaced: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def plus(self, other: RangeCount) -> RangeCount:
        """Both models' graphs of this range; fused where one of them is."""
        told = other if other.fused and not self.fused else self
        return replace(
            told,
            graphs=self.graphs + other.graphs,
            matched=self.matched + other.matched,
            replaced=self.replaced + other.replaced,
            forms=self.forms + other.forms,
            skipped=self.skipped + other.skipped,
        )

    def as_json(self) -> dict[str, Any]:
        """The range's entry in the file."""
        return {**vars(self), "forms": dict(self.forms), "skipped": dict(self.skipped)}


@dataclass
class Report:
    """One rank's view; what the fields mean is in docs/car-rmsnorm.md.

    compilation: vLLM's CompilationConfig, which knows the compile time once all is compiled.
    """

    state: str
    fuse_allreduce_rms: bool
    code: str
    reason: str
    rank: int
    tensor_parallel: int
    group: str | None
    provider: str | None
    seconds: float = 0.0
    ranges: dict[tuple[int, int], RangeCount] = field(default_factory=dict)
    all_reduces: int = 0
    norms: int = 0
    concluded: bool = False
    compilation: Any = None
    compile_seconds: float | None = None

    @property
    def matched(self) -> int:
        """Sites in all ranges."""
        return sum(part.matched for part in self.ranges.values())

    @property
    def replaced(self) -> int:
        """Rewrites in all ranges."""
        return sum(part.replaced for part in self.ranges.values())

    def as_json(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "schema": SCHEMA,
            "state": self.state,
            "fuse_allreduce_rms": self.fuse_allreduce_rms,
            "code": self.code,
            "reason": self.reason,
            "rank": self.rank,
            "tensor_parallel": self.tensor_parallel,
            "group": self.group,
            "provider": self.provider,
            "compiled": bool(self.ranges),
            "ranges": [part.as_json() for _, part in sorted(self.ranges.items())],
            "matched": self.matched,
            "replaced": self.replaced,
            "seconds": round(self.seconds, 6),
            "compile_seconds": self.compile_seconds,
        }

    def save(self) -> None:
        """Write the rank's file if one was asked for; whole, or not at all.

        The rank has one file, whatever it compiled: a draft model's pass adds to the model's. A
        folder that cannot be written is a warning: the engine is not there for its report.
        """
        folder = os.environ.get(REPORT_VARIABLE)
        if not folder:
            return
        path = Path(folder) / f"car-rmsnorm-rank{self.rank}.json"
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(_together(self).as_json(), indent=1) + "\n")
            draft.replace(path)
        except OSError as error:
            logger().warning_once(
                "CAR-RMSNorm: %s cannot be written (%s); %s names another folder.",
                str(path),
                str(error.strerror),
                REPORT_VARIABLE,
            )

    def summary(self) -> str:
        """What was rewritten, range by range; the line of the log."""
        if not self.ranges:
            return "no graph was compiled; those from the compile cache are as they were rewritten"
        parts = [
            f"{part.replaced} of {part.matched} in {part.start}:{part.end}"
            + ("" if part.fused else f" ({part.code})")
            for _, part in sorted(self.ranges.items())
        ]
        total = f"{self.replaced} of {self.matched} sites rewritten in the graphs compiled"
        return f"{total}: {', '.join(parts)}"

    def why_nothing(self) -> str | None:
        """The likely cause of no rewrite in ranges that were to be fused; None if all is well."""
        fused = [part for part in self.ranges.values() if part.fused]
        if self.replaced or not self.ranges:
            return None
        if not fused:
            return "every compile range contains a native row, so the endpoints were lost"
        skipped: Counter[str] = sum((part.skipped for part in fused), Counter())
        if skipped:
            return f"no site passed the checks; most often: {skipped.most_common(1)[0][0]}"
        if not self.all_reduces:
            return (
                "the graphs contain no all-reduce of the tensor-parallel group "
                "(does the platform's use_custom_op_collectives() answer True?)"
            )
        if not self.norms:
            return (
                "the graphs contain no vllm_ir norm "
                "(a custom op replaces the norms, or ir_enable_torch_wrap is off)"
            )
        return "no norm follows an all-reduce directly"


def read(path: Path) -> dict[str, Any]:
    """The content of a report's file.

    Raises OSError for a file that cannot be read, ValueError for one that is no such report.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a CAR-RMSNorm report of schema {SCHEMA}")
    return found


_reports: list[Report] = []
"""Those of this process: one per compiled model (a draft model has its own)."""


def register(report: Report) -> Report:
    """Keep a report for the look after the warm-up."""
    _reports.append(report)
    return report


def _together(report: Report) -> Report:
    """A report with those of the other models that were compiled under the same config."""
    same = [other for other in _reports if other.compilation is report.compilation]
    if report.compilation is None or len(same) < 2:
        return report
    ranges: dict[tuple[int, int], RangeCount] = {}
    for part in (part for other in same for part in other.ranges.values()):
        key = part.start, part.end
        ranges[key] = ranges[key].plus(part) if key in ranges else part
    speaker = next((other for other in same if other.state == "on"), report)
    return replace(
        speaker,
        ranges=ranges,
        seconds=sum(other.seconds for other in same),
        compile_seconds=report.compile_seconds,
    )


def conclude() -> None:
    """Say once what the pass did, and warn when it is on and rewrote nothing, with the cause.

    The first rank of a group speaks for all; the warning is every rank's own.
    """
    for report in _reports:
        if report.compilation is not None and report.ranges:
            report.compile_seconds = round(report.compilation.compilation_time, 3)
            report.save()
        if report.concluded or report.state != "on":
            continue
        report.concluded = True
        if report.rank % report.tensor_parallel == 0:
            logger().info("CAR-RMSNorm: %s.", report.summary())
        why = report.why_nothing()
        if why is not None:
            logger().warning("CAR-RMSNorm is on, but made 0 rewrites: %s.", why)
