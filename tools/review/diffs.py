"""A patch's diff as rows of a table: parsed, colored, and the changed words marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise, zip_longest
from typing import Literal

from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import STANDARD_TYPES, _TokenType
from pygments.util import ClassNotFound
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as ParsedHunk
from unidiff.patch import PatchSet

from normport.tools.errors import UserError
from normport.tools.review.text import shown

Kind = Literal["context", "added", "removed"]
Tokens = list[tuple[str, str]]
Spans = list[tuple[int, int]]

# Below this share of common words two lines are two lines, not one that was changed.
_ALIKE = 0.5
_WORD = re.compile(r"\w+|[^\w\s]")
# Words before times words after: more would take longer than it helps.
_MOST = 1_000_000


@dataclass(frozen=True)
class Line:
    """One line of a hunk. old, new: its number before and after; None on the side it is not on.

    text: as the file has it, without its end. html: the same, colored.
    unterminated: the file ends here without a line feed.
    """

    kind: Kind
    old: int | None
    new: int | None
    text: str
    html: Markup
    unterminated: bool = False

    @property
    def mark(self) -> str:
        """What a diff writes before the line."""
        return {"context": " ", "added": "+", "removed": "-"}[self.kind]


@dataclass(frozen=True)
class Hunk:
    """Lines as a unified diff has them, and the same in pairs for two columns."""

    title: str
    lines: tuple[Line, ...]
    pairs: tuple[tuple[Line | None, Line | None], ...]


@dataclass(frozen=True)
class FileDiff:
    """What the patch does to one file."""

    path: str
    added: int
    removed: int
    created: bool
    hunks: tuple[Hunk, ...]

    def source(self) -> dict[int, str]:
        """The old lines that the diff shows, by number."""
        lines = (line for hunk in self.hunks for line in hunk.lines)
        return {line.old: line.text for line in lines if line.old is not None}


def read_diff(diff: bytes, where: str) -> tuple[FileDiff, ...]:
    """The files of ``diff`` in its order.

    where: the patch's name, for the error.

    Raises:
        UserError: it is no unified diff.
    """
    try:
        patch = PatchSet(diff.decode(errors="surrogateescape"))
        return tuple(
            FileDiff(
                shown(file.path),
                file.added,
                file.removed,
                file.is_added_file,
                tuple(_hunk(hunk, _lexer(file.path)) for hunk in file),
            )
            for file in patch
        )
    except UnidiffParseError as error:
        raise UserError(
            f"{where} holds no readable diff ({shown(str(error))}): write the series again."
        ) from error


def _lexer(path: str) -> Lexer:
    try:
        # What a hunk begins or ends with is a part of its lines.
        return get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return get_lexer_for_filename("x.txt", stripnl=False, ensurenl=False)


def _hunk(hunk: ParsedHunk, lexer: Lexer) -> Hunk:
    raw: list[tuple[Kind, int | None, int | None, str, bool]] = []
    for line in hunk:
        if line.line_type == "\\":
            kind, old, new, text, _ = raw.pop()
            raw.append((kind, old, new, text, True))
            continue
        kind = "added" if line.is_added else "removed" if line.is_removed else "context"
        text = shown(line.value.removesuffix("\n"))
        raw.append((kind, line.source_line_no, line.target_line_no, text, False))
    before = iter(_tokens([r[3] for r in raw if r[0] != "added"], lexer))
    after = iter(_tokens([r[3] for r in raw if r[0] != "removed"], lexer))
    tokens = []
    for kind, *_ in raw:
        # A context line is on both sides; the new one shows it.
        old_tokens = next(before) if kind != "added" else []
        tokens.append(next(after) if kind != "removed" else old_tokens)
    marks = _marks([(kind, text) for kind, _, _, text, _ in raw])
    lines = tuple(
        Line(kind, old, new, text, _html(tokens[at], marks.get(at, [])), end)
        for at, (kind, old, new, text, end) in enumerate(raw)
    )
    title = f"@@ -{hunk.source_start},{hunk.source_length} "
    title += f"+{hunk.target_start},{hunk.target_length} @@ {hunk.section_header}"
    return Hunk(shown(title.rstrip()), lines, tuple(_pairs(lines)))


def _tokens(lines: Sequence[str], lexer: Lexer) -> list[Tokens]:
    """Each line's tokens with their CSS classes.

    A hunk may begin inside of a docstring, whose text a lexer would take for code: an odd number
    of triple quotes, the first of which closes, tells.
    """
    text = "\n".join(lines)
    for quotes in ('"""', "'''"):
        if text.count(quotes) % 2 and _closes_first(text, quotes):
            return _lexed(f"{quotes}\n{text}", lexer)[1:]
    return _lexed(text, lexer)


def _closes_first(text: str, quotes: str) -> bool:
    """Whether the first triple quote ends a string: only an opening one follows ``=`` or blanks."""
    before = text[: text.index(quotes)].rpartition("\n")[2]
    after = text[text.index(quotes) + 3 :].partition("\n")[0]
    return bool(before.strip()) or not after.strip()


def _lexed(text: str, lexer: Lexer) -> list[Tokens]:
    found: list[Tokens] = [[]]
    for kind, value in lexer.get_tokens(text):
        first, *rest = value.split("\n")
        found[-1].append((_css(kind), first))
        for part in rest:
            found.append([(_css(kind), part)])
    lines = text.split("\n")
    if ["".join(part for _, part in line) for line in found] != lines:
        return [[("", line)] for line in lines]  # the lexer changed the text: no colors
    return found


def _css(kind: _TokenType) -> str:
    while kind not in STANDARD_TYPES and kind.parent is not None:
        kind = kind.parent
    return str(STANDARD_TYPES.get(kind, ""))


def _html(tokens: Tokens, marks: Spans) -> Markup:
    """The tokens as spans; what lies in ``marks`` (columns) is wrapped in ``<mark>`` as well."""
    parts: list[Markup] = []
    column = 0
    for css, text in tokens:
        for start, end, marked in _cut(column, column + len(text), marks):
            piece = Markup.escape(text[start - column : end - column])
            if marked:
                piece = Markup("<mark>{}</mark>").format(piece)
            if css:
                piece = Markup('<span class="{}">{}</span>').format(css, piece)
            parts.append(piece)
        column += len(text)
    return Markup("").join(parts)


def _cut(start: int, end: int, marks: Spans) -> Iterator[tuple[int, int, bool]]:
    edges = {start, end}
    edges |= {edge for span in marks for edge in span if start < edge < end}
    points = sorted(edges)
    for left, right in pairwise(points):
        yield left, right, any(a <= left and right <= b for a, b in marks)


def _runs(kinds: Sequence[Kind]) -> Iterator[tuple[list[int], list[int]]]:
    """Per change the places of its removed lines and of its added ones."""
    removed: list[int] = []
    added: list[int] = []
    for at, kind in enumerate(kinds):
        if kind == "context" or (kind == "removed" and added):
            if removed or added:
                yield removed, added
            removed, added = [], []
        if kind == "removed":
            removed.append(at)
        elif kind == "added":
            added.append(at)
    if removed or added:
        yield removed, added


def _marks(lines: Sequence[tuple[Kind, str]]) -> dict[int, Spans]:
    """By place of a line the columns that changed, where old and new lines are alike.

    The words of all lines of a change are compared at once: a call that is laid out on another
    number of lines still shows what is new in it.
    """
    marks: dict[int, Spans] = {}
    for removed, added in _runs([kind for kind, _ in lines]):
        old, new = (
            [(at, found) for at in side for found in _WORD.finditer(lines[at][1])]
            for side in (removed, added)
        )
        if not old or not new or len(old) * len(new) > _MOST:
            continue
        match = SequenceMatcher(
            None, [found[0] for _, found in old], [found[0] for _, found in new], autojunk=False
        )
        if match.ratio() < _ALIKE:
            continue
        for what, a, b, c, d in match.get_opcodes():
            if what != "equal":
                for at, found in (*old[a:b], *new[c:d]):
                    _extend(marks.setdefault(at, []), found, lines[at][1])
    return marks


def _extend(spans: Spans, found: re.Match[str], text: str) -> None:
    """Add a word; only blanks between it and the one before are taken in as well."""
    if spans and not text[spans[-1][1] : found.start()].strip():
        spans[-1] = (spans[-1][0], found.end())
    else:
        spans.append(found.span())


def _pairs(lines: Sequence[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    runs = _runs([line.kind for line in lines])
    changes = {min([*old, *new]): (old, new) for old, new in runs}
    at = 0
    while at < len(lines):
        if lines[at].kind == "context":
            yield lines[at], lines[at]
            at += 1
            continue
        old, new = changes[at]
        for left, right in zip_longest(old, new):
            yield (
                None if left is None else lines[left],
                None if right is None else lines[right],
            )
        at += len(old) + len(new)
