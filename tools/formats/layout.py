"""A table as wide as the terminal, in which no path and no name is broken in the middle.

What does not fit into a line goes on in the next: between words, else behind a ``/`` of a path,
else behind a part of a name.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import JustifyMethod

GAP = 2
"""Columns between two cells."""

# Where a word that is wider than its column may go on in the next line, the best place first.
_PARTS = (re.compile(r"[^/]*/+|[^/]+"), re.compile(r"[^_.,=(]*[_.,=(]+|[^_.,=(]+"), re.compile("."))


def fold(text: str, width: int) -> list[str]:
    """The lines of ``text``, none wider than ``width``."""
    from rich.cells import cell_len

    lines = [""]
    for word in text.split(" "):
        parts = [word] if cell_len(word) <= width else _broken(word, width, 0)
        joint = " " if lines[-1] else ""
        for part in parts:
            if cell_len(lines[-1] + joint + part) <= width:
                lines[-1] += joint + part
            else:
                lines.append(part)
            joint = ""
    return lines


def _broken(word: str, width: int, place: int) -> list[str]:
    """The word in parts that each fit, where they fit at all."""
    from rich.cells import cell_len

    found: list[str] = []
    for part in _PARTS[place].findall(word):
        if cell_len(part) > width and place + 1 < len(_PARTS):
            found += _broken(part, width, place + 1)
        else:
            found.append(part)
    return found


def widths(
    rows: Sequence[Sequence[str]], total: int, caps: Sequence[int | None], shares: Sequence[float]
) -> list[int]:
    """How wide each column is, so that a row fits into ``total``.

    rows: the header among them; a cell may have several lines. caps: what a column may take at
    most; None: its share of what the capped ones leave. A column takes no more than its longest
    line; the last of those without a cap takes what is left.
    """
    from rich.cells import cell_len

    needed = [
        max(cell_len(line) for cell in column for line in cell.split("\n"))
        for column in zip(*rows, strict=True)
    ]
    found = [min(n, cap) if cap is not None else 0 for n, cap in zip(needed, caps, strict=True)]
    left = max(total - GAP * (len(needed) - 1) - sum(found), len(needed))
    shared = left
    last = max(n for n, cap in enumerate(caps) if cap is None)
    for number, cap in enumerate(caps):
        if cap is None and number != last:
            found[number] = min(needed[number], max(int(left * shares[number]), 1))
            shared -= found[number]
    found[last] = max(min(needed[last], shared), 1)
    return found


def laid_out(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: Sequence[int],
    *,
    right: bool,
    style: Callable[[str], str],
    color: bool,
) -> str:
    """The table as text. columns: their widths. right: all but the first are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for number, (name, width) in enumerate(zip(header, columns, strict=True)):
        justify: JustifyMethod = "right" if right and number else "left"
        table.add_column(
            Text("\n".join(_folded(name, width))), overflow="fold", justify=justify, width=width
        )
    for row in rows:
        cells = zip(row, columns, strict=True)
        table.add_row(*(Text("\n".join(_folded(c, w)), style=style(c)) for c, w in cells))
    out = StringIO()
    system: Literal["standard"] | None = "standard" if color else None
    # Said outright, since rich would ask the environment once more.
    Console(file=out, width=terminal_width(), color_system=system, no_color=not color).print(table)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip("\n").split("\n"))


def terminal_width() -> int:
    """The columns of the terminal."""
    return shutil.get_terminal_size().columns


def _folded(cell: str, width: int) -> list[str]:
    return [line for part in cell.split("\n") for line in fold(part, width)]
