"""A file parsed once with LibCST: its top-level statements, positions, scopes and uses of names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from normport.codemods.effects import has_effect, looks_names_up
from normport.codemods.model import RefusedEdit
from normport.codemods.module_info import ModuleInfo, module_of
from normport.codemods.namespace import Namespace, Scope
from normport.codemods.nodes import walk
from normport.codemods.text import SourceText

_SPEAKS_OF_MORE = re.compile(
    r"^#[ \t]*(?:fmt|isort|ruff|yapf|type|mypy|pylint|pyright)\b[ \t]*:"
    r"|^#[ \t]*(?:end)?region\b"
    r"|^#[ \t]*([-=#*~_])\1{2}|([-=#*~_])\2{2}[ \t]*$"
)
_TYPE_COMMENT = re.compile(r"#\s*type:(?!\s*ignore\b)")
N = TypeVar("N", bound=cst.CSTNode)
Definition = cst.ClassDef | cst.FunctionDef
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


@dataclass(frozen=True)
class Span:
    """A half-open range of offsets in the text."""

    start: int
    end: int

    def covers(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class TopLevel:
    """One statement of the module's body, with its decorators, without comments around it.

    first, last: its lines, counted from 0.
    """

    node: Statement
    span: Span
    first: int
    last: int

    @property
    def definition(self) -> Definition | None:
        return self.node if isinstance(self.node, cst.ClassDef | cst.FunctionDef) else None

    @property
    def single(self) -> cst.BaseSmallStatement | None:
        """The small statement that stands alone on its line, or None."""
        if isinstance(self.node, cst.SimpleStatementLine) and len(self.node.body) == 1:
            return self.node.body[0]
        return None

    @property
    def imports(self) -> cst.Import | cst.ImportFrom | None:
        return self.single if isinstance(self.single, cst.Import | cst.ImportFrom) else None


@dataclass(frozen=True)
class Use:
    """One place where code or a forward reference names something of the module's scope."""

    name: str
    span: Span


class _Wrapper(MetadataWrapper):
    """LibCST visits the whole tree for the providers that share a visit, even where there are none:
    that takes longer than finding the positions."""

    def visit_batched(
        self,
        visitors: Iterable[cst.BatchableCSTVisitor],
        before_visit: Callable[[cst.CSTNode], None] | None = None,
        after_leave: Callable[[cst.CSTNode], None] | None = None,
    ) -> cst.CSTNode:
        visitors = list(visitors)
        if not visitors:
            return self.module
        return super().visit_batched(visitors, before_visit, after_leave)


class Parsed:
    """Everything the editor asks about one file. RefusedEdit where LibCST cannot read it."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self._syntax = _python_syntax(source.text)
        try:
            self.module = cst.parse_module(source.text)
        except cst.ParserSyntaxError as error:
            raise RefusedEdit(
                f"line {error.raw_line}, column {error.raw_column + 1}: "
                "LibCST cannot parse the file from here on."
            ) from error
        wrapper = _Wrapper(self.module, unsafe_skip_copy=True)
        self.positions: Mapping[cst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
        self.top = [self._top_level(node) for node in self.module.body]
        self._check_positions()

    @cached_property
    def _by_kind(self) -> dict[type[cst.CSTNode], list[cst.CSTNode]]:
        found: defaultdict[type[cst.CSTNode], list[cst.CSTNode]] = defaultdict(list)
        for node in self.positions:
            found[node.__class__].append(node)
        return dict(found)

    def of_kind(self, *kinds: type[N]) -> Iterator[N]:
        """The nodes of ``kinds``, kind by kind. LibCST's kinds take their time when a node is
        asked for each of them, as they are abstract base classes."""
        for kind, nodes in self._by_kind.items():
            if issubclass(kind, kinds):
                yield from cast("list[N]", nodes)

    def span(self, node: cst.CSTNode) -> Span:
        where = self.positions[node]
        return Span(
            self.source.offset(where.start.line, where.start.column),
            self.source.offset(where.end.line, where.end.column),
        )

    def _top_level(self, node: Statement) -> TopLevel:
        span = self.span(node)
        start = span.start
        if isinstance(node, cst.ClassDef | cst.FunctionDef) and node.decorators:
            start = self.span(node.decorators[0]).start
        first, last = self.source.line_at(start), self.source.line_at(max(span.end - 1, start))
        return TopLevel(node, Span(start, span.end), first, last)

    def _check_positions(self) -> None:
        """Python's own parser must see the same statements on the same lines.

        Every edit is a splice at a LibCST position, so a difference would put it elsewhere.
        """
        if isinstance(self._syntax, SyntaxError):
            raise RefusedEdit(
                f"line {self._syntax.lineno}: Python cannot parse the file."
            ) from self._syntax
        theirs = [(node.lineno, node.end_lineno or node.lineno) for node in self._syntax.body]
        ours = [
            (self.source.line_at(self.span(node).start) + 1, top.last + 1)
            for top in self.top
            for node in (
                top.node.body if isinstance(top.node, cst.SimpleStatementLine) else (top.node,)
            )
        ]
        if [line for line, _ in theirs] != [line for line, _ in ours] or theirs[-1:] != ours[-1:]:
            raise RefusedEdit("LibCST and Python read the file's lines differently.")

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """Uses of module-level (or unbound) names, by their first part, forward references too."""
        found: dict[str, list[Use]] = {}
        for name, node in self.namespace.uses():
            found.setdefault(name, []).append(Use(name, self._span_of(node)))
        return found

    @cached_property
    def namespace(self) -> Namespace:
        return Namespace(self.syntax)

    def scope_at(self, offset: int) -> Scope:
        """The scope of the code at an offset in the text."""
        line = self.source.line_at(offset)
        before = self.source.text[self.source.starts[line] : offset]
        return self.namespace.at(line + 1, len(before.encode()))

    @cached_property
    def _whole_strings(self) -> dict[ast.AST, ast.JoinedStr]:
        """What stands in an f-string, with the f-string: before Python 3.12 a position in one may
        be that of another place."""
        return {
            node: string
            for string in walk(self.syntax)
            if isinstance(string, ast.JoinedStr)
            for node in walk(string)
        }

    def _span_of(self, node: ast.Name | ast.Constant) -> Span:
        string = self._whole_strings.get(node)
        if string is None:
            return self._python_span(node)
        whole = self._python_span(string)
        if isinstance(node, ast.Name) and node.lineno <= len(self.source.lines):
            span = self._python_span(node)
            if whole.covers(span) and self._at(span) == node.id:
                return span
        return whole

    def _at(self, span: Span) -> str:
        return self.source.text[span.start : span.end]

    @cached_property
    def strings(self) -> list[cst.SimpleString]:
        """All string literals that are not statements of their own, as docstrings are."""
        alone = {
            small.value
            for node in self.of_kind(cst.SimpleStatementLine)
            for small in node.body
            if isinstance(small, cst.Expr)
        }
        return [node for node in self.of_kind(cst.SimpleString) if node not in alone]

    @cached_property
    def mentions(self) -> list[tuple[frozenset[str], Span]]:
        """The words of every string that is no statement of its own, f-string pieces too, and of
        every type comment.

        Literals that stand side by side count as the one string that they are.
        """
        nodes = list(walk(self.syntax))
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        strings = [
            (frozenset(re.findall(r"\w+", node.value)), self._python_span(node))
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in alone
        ]
        comments = [
            (frozenset(re.findall(r"\w+", node.value)), self.span(node))
            for node in self.of_kind(cst.Comment)
            if _TYPE_COMMENT.match(node.value)
        ]
        return strings + comments

    def has_effect(self, name: str) -> bool:
        """Whether what the file defines under the name does something where it is defined."""
        return any(
            has_effect(self._module, node)
            for node in self.syntax.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == name
        )

    @cached_property
    def _module(self) -> ModuleInfo:
        return module_of(self.syntax, self.source.text)

    @cached_property
    def looks_names_up(self) -> bool:
        """True where the code can reach any name while it runs."""
        return looks_names_up(self.syntax)

    @property
    def syntax(self) -> ast.Module:
        """Python's own tree of the file."""
        assert isinstance(self._syntax, ast.Module), "checked when the file was parsed"
        return self._syntax

    def _python_span(self, node: ast.expr) -> Span:
        return Span(
            self._python_offset(node.lineno, node.col_offset),
            self._python_offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def _python_offset(self, line: int, column: int) -> int:
        """Python counts columns in bytes of UTF-8."""
        before = self.source.lines[line - 1].encode()[:column]
        return self.source.offset(line, len(before.decode()))

    @cached_property
    def exported(self) -> frozenset[str]:
        """The names that statements about ``__all__`` list."""
        spans = [top.span for top in self.top if self._text(top).startswith("__all__")]
        return frozenset(
            str(node.evaluated_value)
            for node in self.strings
            if any(span.covers(self.span(node)) for span in spans)
        )

    def _text(self, top: TopLevel) -> str:
        return self.source.text[top.span.start : top.span.end]

    def comments(self, span: Span) -> list[str]:
        """The comments inside a range, as they stand, in order."""
        found = [
            (inside.start, node.value)
            for node in self.of_kind(cst.Comment)
            if span.covers(inside := self.span(node))
        ]
        return [text for _, text in sorted(found)]

    def attached_comment(self, top: TopLevel) -> int:
        """The first line of the comments directly above a statement, or the statement's own.

        A block that starts the file is its header (licence, encoding) and belongs to nobody; a
        banner and a tool's pragma speak of more than the statement, and so does what is above.
        """
        line = top.first
        floor = max((other.last for other in self.top if other.last < top.first), default=-1)
        while line - 1 > floor and self.source.lines[line - 1].startswith("#"):
            if _SPEAKS_OF_MORE.search(self.source.lines[line - 1]):
                return line
            line -= 1
        return top.first if line == 0 else line


def _python_syntax(text: str) -> ast.Module | SyntaxError:
    """Read before LibCST does, whose parser has no limit of its own to how deep code nests."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        return error
    except MemoryError as error:
        # The parser's own stack, not the machine's memory.
        raise RecursionError("Python's parser ran out of levels") from error


def bound_name(alias: cst.ImportAlias) -> str:
    """The name that an import binds: ``n`` in ``import m as n``, ``a`` in ``import a.b``."""
    name = alias.evaluated_alias or alias.evaluated_name
    return name.split(".")[0]
