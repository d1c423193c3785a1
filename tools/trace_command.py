"""``normport trace``: what a trace says of its decode steps, or two traces beside each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from normport.tools.errors import UserError
from normport.tools.options import ReportFormat
from normport.tools.terminal import note, say
from normport.tools.trace import Counts, count


def trace_command(files: Sequence[Path], output_format: ReportFormat) -> int:
    """Carry out ``trace`` and return the exit status.

    Raises UserError for more than two files, and where a trace cannot be counted or two count
    unlike things.
    """
    if len(files) > 2:
        raise UserError("trace takes one file, or two: before and after.")
    counts = [count(file) for file in files]
    if len({found.what for found in counts}) > 1:
        raise UserError(
            f"{counts[0].file} counts {counts[0].what}, {counts[1].file} {counts[1].what}: record "
            "both on the same device."
        )
    if output_format is ReportFormat.json:
        say(json.dumps({"schema": 1, "traces": [found.to_json() for found in counts]}, indent=2))
        return 0
    _table(counts)
    if counts[0].what == "operators":
        note("note: no device kernels are in the trace; innermost operators were counted instead.")
    return 0


def _table(counts: Sequence[Counts]) -> None:
    titles = ("before", "after") if len(counts) > 1 else ("",)
    say(f"{'':24}" + "".join(f"{title:>22}" for title in titles))
    rows = {
        "decode steps": [str(len(found.steps)) for found in counts],
        f"{counts[0].what} per step": [_spread(found, "kernels") for found in counts],
        f"norm {counts[0].what} per step": [_spread(found, "norms") for found in counts],
    }
    for title, values in rows.items():
        say(f"{title:24}" + "".join(f"{value:>22}" for value in values))
    for title, found in zip(titles, counts, strict=True):
        names: dict[str, int] = found.to_json()["norm_kernels"]  # type: ignore[assignment]
        for name, number in sorted(names.items(), key=lambda item: -item[1]):
            say(f"  {title} {number / len(found.steps):g} a step: {name}".replace("   ", "  "))


def _spread(found: Counts, name: str) -> str:
    spread = found.spread(name)
    text = f"{spread['median']:g}"
    if spread["min"] != spread["max"]:
        text += f" ({spread['min']:g} to {spread['max']:g})"
    return text
