"""Sandwich norms: ``norm(x) + residual`` followed by a norm, as one call of ``NormAddNorm``.

Opt-in, and a pass of its own over files whose norms are vLLM's standard layers already. The two
norms stay where they are, as modules of the layer with their parameters; only the calls change.
Every sum with a norm's result in it is reported: converted, or refused with a code and a reason.
Nothing here is ever written as ``fused_add_rms_norm``, which normalizes ``x + residual``.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from normport.codemods.edit import apply_plan
from normport.codemods.layout import Passage, lay_out
from normport.codemods.model import FilePlan, RefusedEdit
from normport.codemods.sandwich_class import (
    OP,
    OP_ATTRIBUTE,
    NormClass,
    methods,
    norm_class,
    standard_names,
)
from normport.codemods.sandwich_match import Match, Matcher, Refused, Sum
from normport.codemods.sandwich_syntax import may_match
from normport.codemods.text import decode

OP_MODULE = "vllm.model_executor.layers.norm_add_norm"
"""The module that a patched tree has, and from which a converted file imports the layer."""


@dataclass(frozen=True)
class Sandwich:
    """One sum of a norm's result and something else, and what was decided about it.

    line, column: of the sum, from 1. function: its name, with its class's in front.
    first: the norm in the sum; second: the one that follows (None: refused).
    target: the new call. reason: one sentence; always there for a refusal.
    """

    line: int
    column: int
    code: str
    function: str
    first: str
    verdict: Literal["convert", "refuse"]
    second: str | None = None
    target: str | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class _Place:
    site: Sandwich
    match: Match | None
    owner: NormClass | None


def find_sandwiches(source: bytes) -> list[Sandwich]:
    """Every place of a file, in order of line.

    Raises RefusedEdit where the bytes are no text, SyntaxError where it is not Python.
    """
    return [place.site for place in _places(source)]


def convert_sandwiches(source: bytes, line_length: int = 88) -> bytes:
    """The file with every place converted that can be; the same bytes where there is none.

    Raises RefusedEdit where the import or the layout cannot be added without a loss.
    """
    places = [place for place in _places(source) if place.match is not None]
    if not places:
        return source
    decoded = decode(source)
    lines = decoded.text.replace("\r\n", "\n").split("\n")
    unit = _indent_unit(lines)
    edits: list[tuple[int, int, list[str]]] = []
    for place in places:
        assert place.match is not None
        edits += _edits(place.match, lines, unit, line_length)
    for owner in {id(place.owner): place.owner for place in places}.values():
        assert owner is not None
        if not owner.has_op:
            matches = [p.match for p in places if p.owner is owner and p.match is not None]
            edits.append(_construction(owner, matches, lines))
    for first, last, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        lines[first:last] = new
    text = "\n".join(lines)
    if decoded.newline == "\r\n":
        text = text.replace("\n", "\r\n")
    plan = FilePlan((), {OP_MODULE: (OP,)})
    return apply_plan(decoded.encode(text), plan, line_length).source


def _places(source: bytes) -> list[_Place]:
    if b"orm" not in source or not (b"+" in source or b".add" in source):
        return []
    decoded = decode(source)
    text = decoded.text.replace("\r\n", "\n")
    tree = ast.parse(text)
    lines = text.split("\n")
    found: list[_Place] = []
    every = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = standard_names(tree)
    for node in every:
        owner = None
        for method in filter(may_match, methods(node)):
            owner = owner or norm_class(node, names, every)
            found += (
                _place(total, f"{node.name}.{method.name}", owner, lines)
                for total in Matcher(method, owner).run()
            )
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and may_match(function):
            sums = Matcher(function, None).run()
            found += (_place(total, function.name, None, lines) for total in sums)
    if any(place.match for place in found) and _binds(tree, OP):
        found = [_refused(place, "NP505", f"{OP} means something else here.") for place in found]
    found.sort(key=lambda place: (place.site.line, place.site.column))
    return _apart(found)


def _apart(found: Sequence[_Place]) -> list[_Place]:
    """The places, with one refused that begins in the statement in which another ends."""
    apart: list[_Place] = []
    last = 0
    for place in found:
        if place.match is not None and place.match.start.lineno <= last:
            reason = (
                f"Line {place.match.start.lineno} also has the second norm of the sum before: "
                "give that norm's result a name in a line of its own."
            )
            place = _refused(place, "NP505", reason)
        if place.match is not None:
            last = _end(place.match.end)
        apart.append(place)
    return apart


def _place(total: Sum, function: str, owner: NormClass | None, lines: Sequence[str]) -> _Place:
    line, column, found = total.node.lineno, total.node.col_offset + 1, total.found
    if isinstance(found, Match):
        assert owner is not None
        trouble = owner.blocked or _unsplittable(found, lines)
        if trouble is None:
            second, target = f"self.{found.second}", _statement(found)
            site = Sandwich(line, column, "NP501", function, total.norm, "convert", second, target)
            return _Place(site, found, owner)
        found = Refused("NP505", f"{trouble[0].upper()}{trouble[1:]}.")
    site = Sandwich(line, column, found.code, function, total.norm, "refuse", reason=found.reason)
    return _Place(site, None, owner)


def _refused(place: _Place, code: str, reason: str) -> _Place:
    site = replace(place.site, code=code, verdict="refuse", second=None, target=None, reason=reason)
    return place if place.match is None else _Place(site, None, place.owner)


def _statement(match: Match) -> str:
    """The call on one line."""
    x, residual = ast.unparse(match.x), ast.unparse(match.residual)
    call = f"self.{OP_ATTRIBUTE}({x}, {residual}, self.{match.first}, self.{match.second})"
    return f"{', '.join(match.targets)} = {call}"


def _unsplittable(match: Match, lines: Sequence[str]) -> str | None:
    """Why the statements of a place cannot be taken out as whole lines; None: they can."""
    first, last = match.start, match.end
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    before = lines[first.lineno - 1].encode()[: first.col_offset]
    after = lines[last.end_lineno - 1].encode()[last.end_col_offset :].strip()
    if before.strip() or (after and not after.startswith(b"#")):
        return f"line {first.lineno} or {last.end_lineno} holds another statement too"
    if any("\t" in line[: len(line) - len(line.lstrip())] for line in lines[first.lineno - 1 :]):
        return "the file is indented with tabs"
    return None


def _edits(
    match: Match, lines: Sequence[str], unit: str, line_length: int
) -> list[tuple[int, int, list[str]]]:
    """What takes the place of the statements: (first line, line behind the last, new lines)."""
    first, last = match.start, match.end
    assert last.end_lineno is not None
    indent = " " * first.col_offset
    behind = last.end_lineno if match.inner is None else last.lineno - 1
    kept = _comments(lines[first.lineno - 1 : behind])
    if match.inner is not None:
        kept += _comments_in(match.inner, last, lines)
    flat = [indent + _statement(match)]
    flat += [f"{indent}{copy} = {match.targets[1]}" for copy in match.copies]
    old = "\n".join(lines[first.lineno - 1 : _end(first)])
    new = lay_out([Passage(old, flat[0], "statement")], unit, line_length)[0] or flat[0]
    edits = [(first.lineno - 1, behind, [indent + c for c in kept] + new.split("\n") + flat[1:])]
    if match.inner is not None:
        before = "\n".join(lines[last.lineno - 1 : last.end_lineno])
        after = _without_call(last, match.inner, match.targets[0], lines, indent)
        done = lay_out([Passage(before, after, "statement")], unit, line_length)[0] or after
        edits.append((last.lineno - 1, last.end_lineno, done.split("\n")))
    return edits


def _without_call(
    statement: ast.stmt, call: ast.Call, name: str, lines: Sequence[str], indent: str
) -> str:
    """The text of ``statement`` with ``name`` in place of ``call``."""
    assert call.end_lineno is not None
    assert call.end_col_offset is not None
    rows = list(lines[statement.lineno - 1 : statement.end_lineno])
    top, bottom = call.lineno - statement.lineno, call.end_lineno - statement.lineno
    head = rows[top].encode()[: call.col_offset].decode()
    tail = rows[bottom].encode()[call.end_col_offset :].decode()
    rows[top : bottom + 1] = [head + name + tail]
    return "\n".join(rows)


def _construction(
    owner: NormClass, matches: Sequence[Match], lines: Sequence[str]
) -> tuple[int, int, list[str]]:
    """The statement that builds the layer, behind the last of its norms."""
    used = {name for match in matches for name in (match.first, match.second)}
    line = max(owner.held[name].end for name in used)
    start = lines[max(owner.held[name].line for name in used) - 1]
    indent = start[: len(start) - len(start.lstrip())]
    return line, line, [f"{indent}self.{OP_ATTRIBUTE} = {OP}()"]


def _comments(lines: Sequence[str]) -> list[str]:
    """The comments of whole statements."""
    source = textwrap.dedent("\n".join(lines)) + "\n"
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _comments_in(call: ast.Call, statement: ast.stmt, lines: Sequence[str]) -> list[str]:
    """The comments inside of a call in ``statement``."""
    assert call.end_lineno is not None
    source = "\n".join(lines[statement.lineno - 1 : _end(statement)]).lstrip() + "\n"
    inside = range(call.lineno, call.end_lineno)
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.start[0] + statement.lineno - 1 in inside
    ]


def _end(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno


def _indent_unit(lines: Sequence[str]) -> str:
    widths = [len(line) - len(line.lstrip(" ")) for line in lines if line.startswith(" ")]
    return " " * min((width for width in widths if width), default=4)


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether the module binds ``name`` to something else than the layer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom) and node.module != OP_MODULE:
            if any((alias.asname or alias.name) == name for alias in node.names):
                return True
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


__all__ = ["OP_MODULE", "RefusedEdit", "Sandwich", "convert_sandwiches", "find_sandwiches"]
