"""Which scope binds each name of a file, by Python's own tree.

LibCST's scope provider answers the same, at several times the cost of all else that an edit does.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from normport.codemods.nodes import bound_names, children, imported_names, parameters, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_KNOWN = frozenset((*dir(builtins), "__file__", "__builtins__"))


@dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension.

    node: None where only the file itself is. bound: the names that it binds, with the nodes that
    do. elsewhere: its ``global`` and ``nonlocal`` names, with whether they are global.
    """

    node: ast.AST | None
    outer: Scope | None
    bound: dict[str, list[ast.AST]] = field(default_factory=dict)
    elsewhere: dict[str, bool] = field(default_factory=dict)
    named: list[ast.Name | ast.Constant] = field(default_factory=list)

    def home(self, name: str) -> Scope | None:
        """The scope whose ``name`` code in this one reads; None where no scope binds it."""
        scope: Scope | None = self
        while scope is not None:
            here = scope is self or not isinstance(scope.node, ast.ClassDef)
            if here and scope.elsewhere.get(name):
                while scope.outer is not None:
                    scope = scope.outer
                return scope if name in scope.bound else None
            if here and name in scope.bound and name not in scope.elsewhere:
                return scope
            scope = scope.outer
        return None


class Namespace:
    """All scopes of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(None, None)
        self.scopes = [self.module]
        self._waiting: list[tuple[ast.AST, Scope, bool]] = []
        self._add(tree.body, self.module)
        while self._waiting:
            self._visit(*self._waiting.pop())
        for scope in self.scopes:
            for name in [name for name, is_global in scope.elsewhere.items() if is_global]:
                self.module.bound.setdefault(name, []).extend(scope.bound.pop(name, ()))
                if not self.module.bound[name]:
                    del self.module.bound[name]

    def bindings(self, name: str) -> list[ast.AST]:
        """What binds ``name`` for the whole file: definitions, imports, targets."""
        return self.module.bound.get(name, [])

    def is_local(self, scope: Scope, name: str) -> bool:
        """Whether a function, class or comprehension binds ``name`` for code in ``scope``."""
        return scope.home(name) not in (None, self.module)

    def is_defined(self, scope: Scope, name: str) -> bool:
        return scope.home(name) is not None or name in _KNOWN

    def uses(self) -> Iterator[tuple[str, ast.Name | ast.Constant]]:
        """Uses of names of the file's own scope, or of none; forward references too."""
        for scope in self.scopes:
            for node in scope.named:
                for name in _names(node):
                    if not self.is_local(scope, name):
                        yield name, node

    def at(self, line: int, column: int) -> Scope:
        """The scope of the code at a position. column: in bytes of UTF-8, from 0."""
        found, size = self.module, None
        for scope in self.scopes[1:]:
            for start, end in _extent(scope.node):
                if start <= (line, column) < end and (size is None or start >= size):
                    found, size = scope, start
        return found

    def _add(self, nodes: Iterable[ast.AST | None], scope: Scope, annotation: bool = False) -> None:
        self._waiting += [(node, scope, annotation) for node in nodes if node is not None]

    def _enter(self, node: ast.AST, outer: Scope) -> Scope:
        scope = Scope(node, outer)
        self.scopes.append(scope)
        return scope

    def _visit(self, node: ast.AST, scope: Scope, annotation: bool) -> None:
        if isinstance(node, ast.Name):
            # ``del`` needs the name, and makes it the scope's own as an assignment does.
            if not isinstance(node.ctx, ast.Load):
                scope.bound.setdefault(node.id, []).append(node)
            if not isinstance(node.ctx, ast.Store):
                scope.named.append(node)
        elif isinstance(node, ast.Constant):
            if annotation and isinstance(node.value, str):
                scope.named.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, _ in imported_names(node):
                scope.bound.setdefault(name, []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            scope.bound.setdefault(node.name, []).append(node)
            inner = self._parameterized(node, scope)
            self._add([*node.bases, *node.keywords], inner)
            self._add(node.decorator_list, scope)
            self._add(node.body, self._enter(node, inner))
        elif isinstance(node, _COMPREHENSIONS):
            inner = self._enter(node, scope)
            first = node.generators[0]
            self._add([first.iter], scope)
            self._add([first.target, *first.ifs, *node.generators[1:]], inner)
            values = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            self._add(values, inner)
        elif isinstance(node, ast.NamedExpr):
            self._add([node.value], scope)
            self._add([node.target], _walrus_scope(scope))
        elif type(node).__name__ == "TypeAlias":  # Python 3.12
            called, *rest = children(node)
            self._add([called], scope)
            self._add(rest, self._parameterized(node, scope))
        elif isinstance(node, ast.AnnAssign):
            self._add([node.annotation], scope, annotation=True)
            self._add([node.target, node.value], scope)
        else:
            if isinstance(node, ast.Global | ast.Nonlocal):
                scope.elsewhere |= dict.fromkeys(node.names, isinstance(node, ast.Global))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                scope.named.append(node.target)
                self._add(children(node), scope)
                return
            else:
                for name in bound_names(node):
                    scope.bound.setdefault(name, []).append(node)
            self._add(children(node), scope, annotation)

    def _function(self, node: Function, scope: Scope) -> None:
        arguments = node.args
        every = parameters(arguments)
        self._add([*arguments.defaults, *arguments.kw_defaults], scope)
        outer = scope
        if not isinstance(node, ast.Lambda):
            scope.bound.setdefault(node.name, []).append(node)
            self._add(node.decorator_list, scope)
            outer = self._parameterized(node, scope)
            self._add([*(a.annotation for a in every), node.returns], outer, annotation=True)
        inner = self._enter(node, outer)
        for argument in every:
            inner.bound.setdefault(argument.arg, []).append(argument)
        self._add([node.body] if isinstance(node, ast.Lambda) else node.body, inner)

    def _parameterized(self, node: ast.AST, scope: Scope) -> Scope:
        """The scope of a definition's type parameters, if it has any (Python 3.12)."""
        types = getattr(node, "type_params", [])
        if not types:
            return scope
        inner = Scope(ast.Pass(), scope)  # no code stands in it directly
        self.scopes.append(inner)
        for parameter in types:
            inner.bound.setdefault(parameter.name, []).append(parameter)
            self._add(children(parameter), inner)
        return inner


def _walrus_scope(scope: Scope) -> Scope:
    """``:=`` in a comprehension binds for the function around it."""
    while isinstance(scope.node, _COMPREHENSIONS) and scope.outer is not None:
        scope = scope.outer
    return scope


def _names(node: ast.Name | ast.Constant) -> Iterable[str]:
    return (node.id,) if isinstance(node, ast.Name) else identifiers(str(node.value))


def identifiers(expression: str) -> frozenset[str]:
    """All names and attribute names in an expression; none where the text is not one."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(_identifiers(walk(tree)))


def _identifiers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from identifiers(node.value)


Position = tuple[int, int]


def _extent(node: ast.AST | None) -> Iterator[tuple[Position, Position]]:
    """Where the code of a scope stands: decorators, defaults and the like are not in it."""
    body = getattr(node, "body", None)
    if isinstance(body, list):
        yield _start(body[0]), _end(body[-1])
    elif isinstance(body, ast.expr):
        yield _start(body), _end(body)
    elif isinstance(node, _COMPREHENSIONS):
        outside = node.generators[0].iter
        yield _start(node), _start(outside)
        yield _end(outside), _end(node)


def _start(node: ast.AST) -> Position:
    first = next(iter(getattr(node, "decorator_list", ())), node)
    assert isinstance(first, ast.expr | ast.stmt)
    return first.lineno, first.col_offset


def _end(node: ast.AST) -> Position:
    assert isinstance(node, ast.expr | ast.stmt)
    return node.end_lineno or 0, node.end_col_offset or 0
