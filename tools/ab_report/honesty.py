"""What an ON/OFF difference may be attributed to, from what the fusion pass wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.evidence_files import read_object
from normport.tools.plural import many

SCHEMA = 1
PATTERN = "car-rmsnorm-rank*.json"


@dataclass(frozen=True)
class Rewrites:
    """What one rank's file says. compiled: None where a source counts without saying."""

    matched: int | None
    replaced: int
    compiled: bool | None = None


def read(paths: Sequence[Path]) -> list[Rewrites]:
    """The rewrite files, or those in the folders, of the ON arm; one per tensor-parallel rank."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.rglob(PATTERN)) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path} holds no {PATTERN}; name the ON arm's rewrite files.")
        files += found
    return [_rewrites(file) for file in files]


def _rewrites(path: Path) -> Rewrites:
    what = "a file that the fusion pass wrote"
    value = read_object(path, what)
    matched: Any = value.get("matched")
    replaced: Any = value.get("replaced")
    compiled: Any = value.get("compiled")
    # type() and not isinstance(): a JSON true is no count.
    counts = type(matched) is int and type(replaced) is int and 0 <= replaced <= matched
    if value.get("schema") != SCHEMA or not counts or not isinstance(compiled, bool):
        raise UserError(f"{path} is not {what} (schema {SCHEMA}); name another.")
    return Rewrites(matched, replaced, compiled)


def line(found: Sequence[Rewrites]) -> tuple[str, int | None]:
    """The sentence that the report carries, and the rewrites it speaks of (None: unknown)."""
    if not found:
        return (
            "How many operators were rewritten is unknown, because no rewrite file was given: "
            "whether the difference comes from the fused op cannot be told.",
            None,
        )
    told = [each for each in found if each.compiled is not False]
    if not told:
        return (
            "How many operators were rewritten is unknown, because the rewrite files say that no "
            "graph was compiled in their runs (a compile cache, eager execution, or the switch "
            "off): whether the difference comes from the fused op cannot be told.",
            None,
        )
    cached = len(found) - len(told)
    rest = f"; {many(cached, 'file')} of runs that compiled nothing left out" if cached else ""
    fewest = min(each.replaced for each in told)
    if fewest == 0:
        some = "" if all(each.replaced == 0 for each in told) else " on at least one rank"
        return (
            f"0 rewrites were observed{some}{rest}: the difference compares configurations and is "
            "not attributed to the fused op.",
            0,
        )
    most = max(each.replaced for each in told)
    count = str(fewest) if fewest == most else f"{fewest} to {most}"
    known = [each.matched for each in told if each.matched is not None]
    sites = f"{count} of {max(known)} matched sites" if known else f"{count} sites"
    one = count == "1"
    ranks = "" if len(told) == 1 else f" per file, in {len(told)} files"
    return (
        f"{sites.removesuffix('s') if one and not known else sites} {'was' if one else 'were'} "
        f"rewritten to the fused op in the ON arm{ranks}{rest}; how much of the difference comes "
        "from there this comparison alone does not tell.",
        fewest,
    )
