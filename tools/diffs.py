"""Unified diffs in git's dialect, byte for byte, for ``git apply``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from normport.tools.git import blob_hash
from normport.tools.tree import FileChange

_CONTEXT = 3
_NO_BLOB = "0" * 40
# What git shows after ``@@``, and how much of it.
_HEADING = re.compile(r"([A-Za-z_$].*)")
_HEADING_LENGTH = 80
# As good as no place to cut at.
_BLANK_INDENT = 100


class Block(NamedTuple):
    """Lines ``old_start`` to ``old_end`` give way to ``new_start`` to ``new_end``, from 0."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def git_diff(changes: Iterable[FileChange]) -> bytes:
    """One diff over all ``changes``, in their order; empty when nothing differs.

    Lines end at ``\\n`` alone, as for git, so that CRLF files and form feeds survive. The index
    lines hold git's blob hashes in full, with which ``git am --3way`` finds its base.
    """
    return b"".join(_one(change) for change in changes if change.before != change.after)


def line_counts(change: FileChange) -> tuple[int, int]:
    """How many lines ``change`` adds and removes."""
    blocks = _blocks(_lines(change.before or b""), _lines(change.after))
    return (
        sum(block.new_end - block.new_start for block in blocks),
        sum(block.old_end - block.old_start for block in blocks),
    )


def _one(change: FileChange) -> bytes:
    old, new = quoted("a/" + change.path), quoted("b/" + change.path)
    blobs = f"{blob_hash(change.before) if change.before is not None else _NO_BLOB}.."
    blobs += blob_hash(change.after)
    header = [f"diff --git {old} {new}"]
    if change.before is None:
        header += ["new file mode 100644", f"index {blobs}"]
        old = "/dev/null"
    else:
        header += [f"index {blobs} 100644"]
    text = [f"{line}\n" for line in header]
    body = list(_hunks(_lines(change.before or b""), _lines(change.after)))
    if body:
        text += [f"--- {_tabbed(old)}\n", f"+++ {_tabbed(new)}\n", *body]
    return "".join(text).encode("utf-8", "surrogateescape")


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for group in _grouped(_blocks(old, new)):
        start = max(0, group[0].old_start - _CONTEXT)
        end = min(len(old), group[-1].old_end + _CONTEXT)
        new_start = group[0].new_start - (group[0].old_start - start)
        new_end = group[-1].new_end + (end - group[-1].old_end)
        yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@{_heading(old, start)}\n"
        at = start
        for block in group:
            yield from (_line(" ", line) for line in old[at : block.old_start])
            yield from (_line("-", line) for line in old[block.old_start : block.old_end])
            yield from (_line("+", line) for line in new[block.new_start : block.new_end])
            at = block.old_end
        yield from (_line(" ", line) for line in old[at:end])


def _grouped(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks that are near enough to share a hunk."""
    groups: list[list[Block]] = []
    for block in blocks:
        if groups and block.old_start - groups[-1][-1].old_end <= 2 * _CONTEXT:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _line(mark: str, line: str) -> str:
    return (
        f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
    )


def _range(start: int, end: int) -> str:
    count = end - start
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"


def _heading(old: Sequence[str], start: int) -> str:
    for line in reversed(old[:start]):
        if found := _HEADING.match(line):
            return f" {found[1][:_HEADING_LENGTH].rstrip()}"
    return ""


def _blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [Block(*code[1:]) for code in matcher.get_opcodes() if code[0] != "equal"]
    slid: list[Block] = []
    for number, block in enumerate(blocks):
        first = slid[-1].old_end if slid else 0
        last = blocks[number + 1].old_start if number + 1 < len(blocks) else len(old)
        room = (block.old_start - first, last - block.old_end)
        slid.append(_slid(block, room, old, new))
    return slid


def _slid(block: Block, room: tuple[int, int], old: Sequence[str], new: Sequence[str]) -> Block:
    """The same change where a reader would cut it: before a line that begins something.

    ``room``: how many lines it may move up and down. Only a block that purely removes or purely
    adds can move at all.
    """
    if block.old_start == block.old_end:
        lines, start, end = new, block.new_start, block.new_end
    elif block.new_start == block.new_end:
        lines, start, end = old, block.old_start, block.old_end
    else:
        return block
    up = down = 0
    while up < room[0] and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    while down < room[1] and lines[start + down] == lines[end + down]:
        down += 1
    moves = range(down, -up - 1, -1)
    best = min(moves, key=lambda by: _awkwardness(lines, start + by, end + by))
    return Block(*(position + best for position in block))


def _awkwardness(lines: Sequence[str], start: int, end: int) -> int:
    score = 0
    for cut in (start, end):
        line = lines[cut] if cut < len(lines) else "end"
        above = lines[cut - 1] if cut else "\n"
        indent = len(line) - len(line.lstrip()) if line.strip() else _BLANK_INDENT
        score += 2 * indent + bool(above.strip())
    return score


def quoted(path: str) -> str:
    """``path`` as git writes it: in double quotes when it holds a quote, backslash or control."""
    special = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    escaped = "".join(
        special.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in path
    )
    return path if escaped == path else f'"{escaped}"'


def _tabbed(name: str) -> str:
    """git marks the end of a file name that holds a space with a tab."""
    return f"{name}\t" if " " in name else name
