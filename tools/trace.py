"""Kernels per decode step, counted in a trace of ``torch.profiler`` or of Intel's unitrace.

Both write Chrome's trace format. A decode step is one call of the worker whose range is named
``execute_context_0(0)_generation_N(N)``, as vLLM names them (``v1/worker/gpu_worker.py`` of
0.29 to 0.33): no prompt tokens, at least one that is generated. A kernel counts where it was
launched. Without such ranges nothing is counted, because a prompt's kernels would be among them.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

from normport.tools.errors import UserError
from normport.tools.plural import many

STEP = re.compile(r"execute_(?:\d+_)?context_(\d{1,18})\([^()]*\)_generation_(\d{1,18})\(")
NORM = re.compile(r"norm|rsqrt", re.IGNORECASE)
"""What a norm's kernel, or the operator that launches it, has in its name: a chain of PyTorch
operators has one ``rsqrt`` for each norm, and Inductor names its kernels after what they fuse."""

# By profiler: kineto's categories for CUDA, XPU and MUSA, and unitrace's.
_KERNELS = {"kernel", "gpu_op"}
_RANGES = {"user_annotation", "cpu_op"}
# unitrace lists copies, fills and barriers of its command lists beside the kernels.
_NO_KERNEL = re.compile(
    r"(?:Tile #\d+: )?(?:ze|cl)[A-Z]\w*(?:Memory|Barrier|Event|Copy|Fill|Buffer)"
)
_FLOW = re.compile(r"Flow_H2D_(\d+)_")


@dataclass(frozen=True)
class Step:
    """One decode step. kernels, norms: how many it launched; names: of the norms."""

    tokens: int
    kernels: int
    norms: int
    names: Mapping[str, int]


@dataclass(frozen=True)
class Counts:
    """What a trace says. what: ``kernels``, or ``operators`` where no device took part.

    other: the steps that also had prompt tokens, which are not counted.
    """

    file: str
    what: str
    steps: tuple[Step, ...]
    other: int

    def spread(self, name: str) -> dict[str, float]:
        """Median, least and most of ``kernels`` or ``norms`` over the decode steps."""
        values = [getattr(step, name) for step in self.steps]
        return {"median": median(values), "min": min(values), "max": max(values)}

    def to_json(self) -> dict[str, object]:
        names: Counter[str] = Counter()
        for step in self.steps:
            names.update(step.names)
        return {
            "file": self.file,
            "counted": self.what,
            "decode_steps": len(self.steps),
            "steps_with_prompt_tokens": self.other,
            "kernels_per_step": self.spread("kernels"),
            "norm_kernels_per_step": self.spread("norms"),
            "norm_kernels": dict(sorted(names.items())),
        }


def count(file: Path) -> Counts:
    """Count the kernels of each decode step of the trace in ``file`` (``.json``, may be gzipped).

    Raises UserError when the file is no such trace, or has no decode steps or no kernels in them.
    """
    events = _events(file)
    ranges = sorted(
        (_start(event), _end(event), *map(int, found.groups()))
        for event in events
        if event.get("ph") == "X"
        and event.get("cat") in _RANGES
        and (found := STEP.match(str(event.get("name", ""))))
    )
    decode = [entry for entry in ranges if entry[2] == 0 and entry[3] > 0]
    if not decode:
        what = f"only {len(ranges)} with prompt tokens" if ranges else "none that vLLM marks"
        raise UserError(
            f"{file} has no decode steps ({what}): profile while tokens are generated, with vLLM's "
            "profiler on (--profiler-config), which names its steps execute_context_0(0)_"
            "generation_N(N); nothing was counted."
        )
    kernels = [
        event
        for event in events
        if event.get("ph") == "X"
        and event.get("cat") in _KERNELS
        and not _NO_KERNEL.match(str(event.get("name", "")))
    ]
    launched = _placed(kernels, events) if kernels else _leaves(events)
    starts = [entry[0] for entry in ranges]
    inside: dict[int, list[str]] = {}
    for time, name, exact in launched:
        index = bisect_right(starts, time) - 1
        # A kernel whose launch is not in the trace is known by its own start, which is later.
        if index >= 0 and (not exact or time < ranges[index][1]):
            inside.setdefault(index, []).append(name)
    steps = []
    for index, entry in enumerate(ranges):
        if entry[2] == 0 and entry[3] > 0:
            names = inside.get(index, [])
            norms = Counter(name for name in names if NORM.search(name))
            steps.append(Step(int(entry[3]), len(names), norms.total(), norms))
    if not any(step.kernels for step in steps):
        raise UserError(
            f"{file} has {many(len(steps), 'decode step')} without a kernel or an operator in "
            "them: record the device's activities too; nothing was counted."
        )
    what = "kernels" if kernels else "operators"
    return Counts(str(file), what, tuple(steps), len(ranges) - len(steps))


def _events(file: Path) -> list[dict[str, Any]]:
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        found = json.loads(content)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror or error}): name a trace of torch.profiler or "
            "unitrace."
        ) from error
    except (ValueError, EOFError, zlib.error, RecursionError) as error:
        raise UserError(
            f"{file} is not a trace in JSON (plain or gzipped), as torch.profiler's "
            "export_chrome_trace and `unitrace --chrome-kernel-logging` write: name such a file."
        ) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise UserError(f"{file} has no traceEvents: name a trace of torch.profiler or unitrace.")
    return [_plain(event) for event in events if isinstance(event, dict) and "ts" in event]


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """An event whose fields are what the format has there, or left out."""
    arguments = event.get("args")
    kept = {name: value for name, value in event.items() if not isinstance(value, dict | list)}
    if isinstance(arguments, dict):
        kept["args"] = {
            name: value for name, value in arguments.items() if not isinstance(value, dict | list)
        }
    else:
        kept.pop("args", None)
    return kept


def _start(event: Mapping[str, Any]) -> float:
    return _number(event.get("ts"), float("-inf"))


def _end(event: Mapping[str, Any]) -> float:
    return _start(event) + _number(event.get("dur"), 0.0)


def _number(value: Any, otherwise: float) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return otherwise if isnan(found) else found


def _placed(
    kernels: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> list[tuple[float, str, bool]]:
    """When each kernel was launched, its name, and whether the launch itself was found.

    The name has the operator's behind it, which tells what a kernel of a general name does.
    """
    launches: dict[object, float] = {}
    operators: dict[object, str] = {}
    for event in events:
        arguments = event.get("args") or {}
        category = str(event.get("cat"))
        if category in _KERNELS:
            continue
        if "runtime" in category or "driver" in category:
            launches[arguments.get("correlation")] = _start(event)
        elif event.get("ph") == "s" and (flow := _FLOW.match(category)):
            launches[f"unitrace {flow[1]}"] = _start(event)
        elif event.get("cat") == "cpu_op":
            operators[arguments.get("External id")] = str(event.get("name", ""))
    launches.pop(None, None)
    operators.pop(None, None)
    placed = []
    for kernel in kernels:
        arguments = kernel.get("args") or {}
        launch = launches.get(arguments.get("correlation", f"unitrace {arguments.get('id')}"))
        operator = operators.get(arguments.get("External id"))
        name = str(kernel.get("name", ""))
        if operator and not NORM.search(name) and NORM.search(operator):
            name = f"{name} ({operator})"
        placed.append((_start(kernel) if launch is None else launch, name, launch is not None))
    return placed


def _leaves(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, str, bool]]:
    """The innermost operators of a run without a device, in place of its kernels."""
    by_thread: dict[object, list[tuple[float, float, str]]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("ph") == "X" and event.get("cat") == "cpu_op" and not STEP.match(name):
            start = _start(event)
            entry = (start, _end(event), name)
            by_thread.setdefault((event.get("pid"), event.get("tid")), []).append(entry)
    leaves = []
    for found in by_thread.values():
        found.sort(key=lambda entry: (entry[0], -entry[1]))
        for entry, following in zip(found, [*found[1:], None], strict=True):
            if following is None or following[0] >= entry[1]:
                leaves.append((entry[0], entry[2], True))
    return leaves
