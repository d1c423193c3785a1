"""Finds the expressions that a plan replaces, and checks what their new text would mean there."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import libcst as cst
from libcst.metadata import CodeRange

from normport.codemods.model import Edit, RefusedEdit
from normport.codemods.nodes import walk
from normport.codemods.parsed import Parsed, Span
from normport.codemods.replacement import Replacement, replacement

Kind = Literal["statement", "header", "part"]
_REPLACED = (cst.Call, cst.Name, cst.Attribute, cst.Subscript, cst.Tuple, cst.SimpleString)


@dataclass(frozen=True)
class EditSite:
    """One edit, the expression it replaces and the lines that are laid out anew for it.

    lines: from the first line of the statement to the last, the line end not included.
    one_line: True inside an f-string, where no line may be broken.
    """

    edit: Edit
    node: cst.BaseExpression
    span: Span
    lines: Span
    kind: Kind
    new: Replacement
    one_line: bool


def locate(parsed: Parsed, edits: Sequence[Edit]) -> list[EditSite]:
    """The edits in the order in which they stand; RefusedEdit where one does not fit the file."""
    starts = {(edit.line, edit.column - 1) for edit in edits}
    lines = sorted({line for line, _ in starts})
    candidates: dict[tuple[int, int], list[cst.BaseExpression]] = {}
    for node, where in parsed.positions.items():
        start = (where.start.line, where.start.column)
        if start in starts and isinstance(node, _REPLACED):
            candidates.setdefault(start, []).append(node)
    frames = [
        (parsed.span(node), node)
        for node in parsed.of_kind(
            cst.SimpleStatementLine,
            cst.BaseCompoundStatement,  # type: ignore[type-abstract]
            cst.FormattedString,
        )
        if _holds_one(parsed.positions[node], lines)
    ]
    sites = [
        _site(parsed, edit, candidates.get((edit.line, edit.column - 1), ()), frames)
        for edit in edits
    ]
    sites.sort(key=lambda site: site.span.start)
    for first, second in pairwise(sites):
        if second.span.start < first.span.end:
            raise RefusedEdit(
                f"line {second.edit.line}: two edits replace parts of the same expression."
            )
    return sites


def _holds_one(where: CodeRange, lines: Sequence[int]) -> bool:
    """Whether one of ``lines``, which are in order, is among those of ``where``."""
    index = bisect_left(lines, where.start.line)
    return index < len(lines) and lines[index] <= where.end.line


def _site(
    parsed: Parsed,
    edit: Edit,
    candidates: Iterable[cst.BaseExpression],
    frames: Sequence[tuple[Span, cst.CSTNode]],
) -> EditSite:
    wanted = re.sub(r"\r\n?", "\n", edit.old)
    for node in candidates:
        span = parsed.span(node)
        if re.sub(r"\r\n?", "\n", parsed.source.text[span.start : span.end]) == wanted:
            break
    else:
        if any(
            re.match(r"[ \t]*\f", line) for line in parsed.source.lines[edit.line - 1 : edit.line]
        ):
            raise RefusedEdit(
                f"line {edit.line}: LibCST does not count the form feed in the indent, so the "
                "line cannot be edited; take the form feed out."
            )
        raise RefusedEdit(
            f"line {edit.line}, column {edit.column}: {wanted!r} does not stand here; "
            "the file has changed since it was read."
        )
    around = [(outer, frame) for outer, frame in frames if outer.covers(span)]
    in_string = any(isinstance(frame, cst.FormattedString) for _, frame in around)
    statements = [item for item in around if not isinstance(item[1], cst.FormattedString)]
    lines, kind = _passage(parsed, span, statements)
    return EditSite(edit, node, span, lines, kind, replacement(edit, node), in_string)


def _passage(
    parsed: Parsed, span: Span, statements: Sequence[tuple[Span, cst.CSTNode]]
) -> tuple[Span, Kind]:
    """The lines that a formatter may lay out for an expression, and what they are."""
    kind: Kind = "part"
    extent = span
    if statements:
        outer, node = min(statements, key=lambda item: item[0].end - item[0].start)
        if isinstance(node, cst.SimpleStatementLine):
            kind, extent = "statement", outer
        elif isinstance(node, cst.BaseCompoundStatement) and isinstance(
            node.body, cst.IndentedBlock
        ):
            head = Span(outer.start, parsed.span(node.body.header).start)
            if head.covers(span):
                kind, extent = "header", head
    return _whole_lines(parsed, extent), kind


def _whole_lines(parsed: Parsed, span: Span) -> Span:
    source = parsed.source
    last = source.line_at(max(span.end - 1, span.start))
    bare = source.lines[last].rstrip("\r\n")
    return Span(source.starts[source.line_at(span.start)], source.starts[last] + len(bare))


def names_in(expression: str) -> frozenset[str]:
    """The names that an expression reads from the scope around it."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in walk(ast.parse(expression, mode="eval")):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return frozenset(read - bound)


def check_names(parsed: Parsed, site: EditSite, imported: frozenset[str]) -> None:
    """RefusedEdit where a name of the new text would mean something else, or nothing."""
    edit = site.edit
    scope = parsed.scope_at(site.span.start)
    for name in sorted(names_in(edit.new)):
        if name in imported:
            if parsed.namespace.is_local(scope, name):
                raise RefusedEdit(
                    f"line {edit.line}: {name!r} is bound locally here and would hide the import."
                )
        elif not parsed.namespace.is_defined(scope, name):
            raise RefusedEdit(
                f"line {edit.line}: the replacement needs {name!r}, which is not defined here."
            )
