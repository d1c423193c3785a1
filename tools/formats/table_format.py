"""The census for people: one row per local norm, its sites together, then counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from normport.codemods.registry import all_rules
from normport.tools.findings import AS_ONE, COUNTED, Finding, Report, by_directory, count
from normport.tools.formats.look import Look
from normport.tools.formats.text_format import COLOURS, describe, ulps

HEADER = ("file", "class", "computes", "sites", "verdict", "reason")
APART = ("file", "norm", "what it is", "sites")
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
_MOST = 2
"""So many different targets of one class are written out."""

_WIDTHS = {"computes": 26, "sites": 14, "verdict": 14}
_SHARES = {"file": 0.36, "class": 0.24, "norm": 0.24, "what it is": 0.4}
"""Columns on a terminal, so that most of its width is left for file and reason."""
_WIDE = 120
_NARROW = {HEADER: ((0, 1), (4, 3), (2, 5)), APART: ((0, 1), (3,), (2,))}
"""What stands below each other where the terminal is not ``_WIDE``."""

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
    """How many, and the lines of several; a class that is built elsewhere is the one site."""
    if len(group) == 1:
        return "1 (the class)" if (group[0].reason or "").endswith(AS_ONE) else "1"
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
    """The table as wide as the terminal; on a narrow one, cells that go together stand below each
    other."""
    from normport.tools.formats import layout

    total = layout.terminal_width()
    numeric = header[0] == "directory"
    if numeric:
        words = [[*name.split(), *column] for name, *column in zip(header, *rows, strict=True)]
        caps: list[int | None] = [None, *(max(map(len, found)) for found in words[1:])]
        shares = [1.0] * len(header)
    else:
        rows = [_without_name(header, row) for row in rows]
        if total < _WIDE:
            together = _NARROW[header]
            header, *rows = (_stacked(row, together) for row in (header, *rows))
            caps = [None, _WIDTHS["verdict"], None]
            shares = [0.42, 0.0, 0.0]
        else:
            caps = [_WIDTHS.get(name) for name in header]
            shares = [_SHARES.get(name, 0.0) for name in header]
    sizes = layout.widths([header, *rows], total, caps, shares)
    return layout.laid_out(header, rows, sizes, right=numeric, style=_style, color=color)


def _without_name(header: Row, row: Row) -> Row:
    """The row with a reason that does not begin with the name, which has a cell of its own."""
    *others, reason = row
    name = row[1]
    if header != HEADER or not reason.startswith(f"{name}: "):
        return row
    return (*others, reason.removeprefix(f"{name}: "))


def _stacked(row: Row, together: Sequence[tuple[int, ...]]) -> Row:
    return tuple("\n".join(row[n] for n in numbers) for numbers in together)


def _style(cell: str) -> str:
    """The colour of a verdict, which comes after its code."""
    code, _, verdict = cell.partition("\n")[0].partition(" ")
    return COLOURS.get(verdict.partition(" ")[0], "") if code.startswith("NP") else ""
