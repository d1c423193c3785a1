"""The census for people: one row per local norm, its sites together, then counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Literal

from normport.codemods.registry import all_rules
from normport.tools.findings import COUNTED, Finding, Report, by_directory, count
from normport.tools.formats.look import Look
from normport.tools.formats.text_format import COLOURS, describe, ulps

if TYPE_CHECKING:
    from rich.console import JustifyMethod

HEADER = ("file", "class", "computes", "sites", "verdict", "reason")
APART = ("file", "norm", "what it is", "sites")
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
_MOST = 2
"""So many different targets of one class are written out."""

_WIDTHS = {"computes": 26, "sites": 14, "verdict": 14}
"""Columns on a terminal, so that most of its width is left for file and reason."""

Row = tuple[str, ...]


def render(report: Report, look: Look) -> str:
    """The tables as text; empty when nothing was found.

    On a terminal the cells are laid out to its width. Elsewhere every row is one line, with
    nothing cut off and two spaces or more between the cells, for grep and awk.
    """
    findings, terminal, color = report.findings, look.terminal, look.color
    listed = [f for f in findings if not f.apart and (look.show_done or f.verdict != "done")]
    parts = []
    if listed:
        rows = [cells(group) for group in grouped(listed)]
        parts.append(_table(HEADER, rows, terminal, color))
    apart = [apart_cells(group) for group in grouped([f for f in findings if f.apart])]
    if apart:
        title = "Apart, no model's norms: device kernels, fusion passes, the standard layers\n"
        parts.append(title + _table(APART, apart, terminal, color))
    if findings:
        parts.append(_table(("directory", *COUNTED), _counts(findings), terminal, color))
    return "\n".join(parts)


def _counts(findings: Sequence[Finding]) -> list[Row]:
    directories = {
        **by_directory((finding.shown, finding) for finding in findings),
        "total": count(findings),
    }
    return [
        (_plain(name), *(str(numbers[key]) for key in COUNTED.values()))
        for name, numbers in directories.items()
    ]


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """The findings of one local norm together, as far as the same is said of them."""
    groups: dict[object, list[Finding]] = {}
    for f in findings:
        layer = (f.target or "").partition("(")[0]
        proof = ulps(f.equivalence) if f.equivalence else None
        key = (f.shown, f.norm, f.code, f.verdict, f.safety, layer, proof, f.reason)
        groups.setdefault(key, []).append(f)
    return list(groups.values())


def cells(group: Sequence[Finding]) -> Row:
    """The cells of ``HEADER`` for sites that ``grouped`` put together."""
    first = group[0]
    safety = f" ({first.safety})" if first.safety else ""
    cells = (
        f"{first.shown}:{first.line}",
        first.norm,
        _computes(group),
        _sites(group),
        f"{first.code} {first.verdict}{safety}",
        _reason(group),
    )
    return tuple(_plain(cell) for cell in cells)


def apart_cells(group: Sequence[Finding]) -> Row:
    """The cells of ``APART`` for sites that ``grouped`` put together."""
    first = group[0]
    rule = all_rules().get(first.code)
    what = f"{first.code} {first.reason or (rule.title if rule else '')}"
    cells = (f"{first.shown}:{first.line}", first.norm, what, _sites(group))
    return tuple(_plain(cell) for cell in cells)


def _sites(group: Sequence[Finding]) -> str:
    """How many, and the lines of several."""
    if len(group) == 1:
        return "1"
    return f"{len(group)} ({', '.join(str(finding.line) for finding in group)})"


def _computes(group: Sequence[Finding]) -> str:
    """What all of them compute; sites of one class mostly differ in the epsilon alone."""
    found = list(dict.fromkeys(f.computes for f in group if f.computes is not None))
    epsilons = " or ".join(dict.fromkeys(c.eps for c in found if c.eps))
    same = dict.fromkeys(replace(c, eps=epsilons or None) for c in found)
    return "; or ".join(dict.fromkeys(describe(computes) for computes in same)) or "-"


def _reason(group: Sequence[Finding]) -> str:
    first = group[0]
    targets = list(dict.fromkeys(f.target for f in group if f.target))
    parts = []
    if targets:
        shown = " or ".join(targets[:_MOST])
        more = f" or {len(targets) - _MOST} more" if len(targets) > _MOST else ""
        proof = f"; {ulps(first.equivalence)}" if first.equivalence else ""
        parts.append(f"to {shown}{more}{proof}.")
    parts += [first.reason] if first.reason else []
    lost = [comment for finding in group for comment in finding.lost_comments]
    if lost:
        parts.append(f"Lost with the class: {' '.join(lost)}")
    return " ".join(parts) or "-"


def _plain(cell: str) -> str:
    """The cell on one line, whatever a file's name or a comment holds."""
    return cell.translate(_CONTROLS)


def _table(header: Row, rows: Sequence[Row], terminal: bool, color: bool) -> str:
    return _laid_out(header, rows, color) if terminal else _aligned([header, *rows])


def _aligned(rows: Sequence[Row]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _laid_out(header: Row, rows: Sequence[Row], color: bool) -> str:
    """The table as wide as the terminal; long cells go over several lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numeric = header[0] == "directory"
    for name in header:
        justify: JustifyMethod = "right" if numeric and name != header[0] else "left"
        table.add_column(name, overflow="fold", justify=justify, max_width=_WIDTHS.get(name))
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    out = StringIO()
    width = shutil.get_terminal_size().columns
    system: Literal["standard"] | None = "standard" if color else None
    # Said outright, since rich would ask the environment once more.
    Console(file=out, width=width, color_system=system, no_color=not color).print(table)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip("\n").split("\n"))


def _style(cell: str) -> str:
    """The colour of a verdict, which comes after its code."""
    code, _, verdict = cell.partition(" ")
    return COLOURS.get(verdict.partition(" ")[0], "") if code.startswith("NP") else ""
