"""Line comments that keep a finding out: ``# normport: ignore[NP101, NP2]``, or all without a
code; the beginning of a code means all that begin so. They stand on a line of the construction that
they are about. As with ``# noqa``, upper and lower case are the same."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO

from normport.codemods.model import Site

_MARK = b"normport"
# Without its colon it is a comment about normport, unless a code follows.
_COMMENT = re.compile(
    r"#\s*normport(?:\s*(?P<colon>:)\s*|\s+(?=ignore\s*\[))(?P<rest>.*)", re.IGNORECASE
)
_IGNORE = re.compile(r"ignore(?:\s*\[(?P<codes>[^\]]*)\])?(?=\s|$|#|,|;)", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Complaint:
    """A comment that keeps nothing out, and why; ``message`` is one sentence."""

    shown: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.shown}:{self.line}:{self.column}: {self.message}"


@dataclass
class Comment:
    """One such comment; ``codes``, or how they begin, are None when it means all.

    used: the codes of findings that it kept out.
    """

    line: int
    column: int
    text: str
    codes: tuple[str, ...] | None
    used: set[str] = field(default_factory=set)

    def covers(self, code: str) -> bool:
        return self.codes is None or code.startswith(self.codes)


def may_hold_comment(data: bytes) -> bool:
    """A look at the bytes: False means that there is no such comment."""
    return _MARK in data.lower()


class Suppressions:
    """The comments of one file.

    text: its source, or nothing when ``may_hold_comment`` says no.
    """

    def __init__(self, text: str, shown: str) -> None:
        self._text = text.removeprefix("\ufeff")
        self._shown = shown
        self._comments: list[Comment] = []
        self._wrong: list[Complaint] = []
        if self._text:
            self._read()
        self._extents: dict[tuple[int, int], range] | None = None

    def hides(self, site: Site, code: str) -> bool:
        """Whether a comment keeps the finding of ``code`` at ``site`` out; it counts as used."""
        if not self._comments:
            return False
        hit = [c for c in self._comments if c.line in self._lines(site) and c.covers(code)]
        for comment in hit:
            comment.used.add(code)
        return bool(hit)

    def complaints(self, undecided: Iterable[tuple[Site, str]] = ()) -> list[Complaint]:
        """What is wrong with comments, and which of them keep nothing out.

        undecided: codes that a site might have got had everything been run.
        """
        for site, code in undecided if self._comments else ():
            self.hides(site, code)
        found = list(self._wrong)
        for comment in self._comments:
            codes = comment.codes
            idle = [
                prefix
                for prefix in codes or ()
                if not any(code.startswith(prefix) for code in comment.used)
            ]
            if idle if codes is not None else not comment.used:
                what = ", ".join(idle) or "that normport reports"
                message = f"`{comment.text}` is unused: nothing on this line is {what}; drop it."
                found.append(Complaint(self._shown, comment.line, comment.column, message))
        return sorted(found, key=lambda c: (c.line, c.column))

    def _read(self) -> None:
        from normport.codemods.registry import matched

        for token in _comments(self._text):
            match = _COMMENT.search(token.string)
            if match is None:
                continue
            line, column = token.start[0], token.start[1] + match.start() + 1
            ignore = _IGNORE.match(match["rest"])
            codes = _codes(ignore)
            if ignore is None or codes == () or match["colon"] is None:
                self._complain(
                    line,
                    column,
                    f"`{match[0].strip()}` is no comment that normport knows; write "
                    "`# normport: ignore` or `# normport: ignore[NP101]`.",
                )
                continue
            text = f"normport: {ignore[0]}"
            for code in codes or ():
                if not matched(code):
                    self._complain(line, column, f"`{text}`: there is no rule {code}; drop it.")
            known = None if codes is None else tuple(filter(matched, codes))
            if known != ():
                self._comments.append(Comment(line, column, text, known))

    def _complain(self, line: int, column: int, message: str) -> None:
        self._wrong.append(Complaint(self._shown, line, column, message))

    def _lines(self, site: Site) -> range:
        """The lines of the construction; of a class or function, those of its head."""
        if self._extents is None:
            self._extents = dict(_extents(self._text))
        return self._extents.get((site.line, site.column), range(site.line, site.line + 1))


def _codes(ignore: re.Match[str] | None) -> tuple[str, ...] | None:
    """The codes between the brackets; None without brackets."""
    if ignore is None or ignore["codes"] is None:
        return None
    from normport.codemods.registry import as_prefix

    names = (as_prefix(name) for name in ignore["codes"].split(","))
    return tuple(name for name in names if name)


def _comments(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        for token in tokenize.generate_tokens(StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT:
                yield token
    except (tokenize.TokenError, SyntaxError):
        return  # a file that does not parse is reported as such where it matters


def _extents(text: str) -> Iterator[tuple[tuple[int, int], range]]:
    """For each place where something starts, the lines of the longest call or expression there.

    Calls come last, so that they win where the name of one starts at the same place.
    """
    lines = _LINE_END.split(text)
    found: list[tuple[bool, int, tuple[int, int], range]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the source is warned of is not our business
        tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node.end_lineno is not None:
            last = node.end_lineno
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            last = max(node.lineno, _first_line(node.body[0]) - 1)
        else:
            continue
        before = lines[node.lineno - 1].encode()[: node.col_offset]
        place = (node.lineno, len(before.decode(errors="replace")) + 1)
        span = range(_first_line(node), last + 1)
        found.append((isinstance(node, ast.Call), len(span), place, span))
    for _, _, place, span in sorted(found, key=lambda entry: entry[:2]):
        yield place, span


def _first_line(node: ast.stmt | ast.expr) -> int:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.lineno
