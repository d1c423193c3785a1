"""Walks over Python's syntax trees, made for speed: they are most of what a scan costs.

``ast.walk`` looks at every field of every node, line numbers included, and comes by the same
shared operator (``ast.Add()``) over and over; here neither is looked at.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
BINDERS = (
    *(ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Global),
    *(ast.Nonlocal, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
)
"""The kinds of nodes that may bind a name, imports left out."""

Kinds = defaultdict[type[ast.AST], list[ast.AST]]

# Fields that hold names, flags or operators, in whatever kind of node, but never another node.
_PLAIN = frozenset(
    (
        *("attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level", "module"),
        *("op", "ops", "rest", "simple", "tag", "type_comment"),
    )
)
_LEAVES = (ast.Constant, ast.Name, ast.Pass, ast.Break, ast.Continue, ast.alias)
_LEAF_KINDS = frozenset(_LEAVES)

_spelled: WeakKeyDictionary[ast.AST, str] = WeakKeyDictionary()
_fields: dict[type[ast.AST], tuple[str, ...]] = dict.fromkeys(_LEAVES, ())


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that may hold nodes."""
    found = _fields.get(kind)
    if found is None:
        found = _fields[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
    return found


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes directly below, in order; operators and contexts left out."""
    for name in _fields_of(node.__class__):
        value = getattr(node, name)
        if value.__class__ is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """``tree`` and every node below it, in the order of ``ast.walk``; operators and contexts left
    out."""
    queue = deque([tree])
    take, put, fields, tree_node = queue.popleft, queue.append, _fields, ast.AST
    while queue:
        node = take()
        yield node
        kind = node.__class__
        for name in fields[kind] if kind in fields else _fields_of(kind):
            value = getattr(node, name)
            if value.__class__ is list:
                for item in value:
                    if isinstance(item, tree_node):
                        put(item)
            elif isinstance(value, tree_node):
                put(value)


def expression(text: str) -> ast.expr:
    """The expression that ``text`` is where it stands: perhaps ``n := 64``, or over lines, which
    need parentheses elsewhere."""
    return ast.parse(f"({text}\n)", mode="eval").body


def dotted(call: ast.Call) -> ast.expr:
    """``call``, or ``x.name`` where it is ``getattr(x, "name")``."""
    match call:
        case ast.Call(
            func=ast.Name(id="getattr"),
            args=[owner, ast.Constant(value=str() as name)],
            keywords=[],
        ) if name.isidentifier():
            return ast.copy_location(ast.Attribute(owner, name, ast.Load()), call)
    return call


def spelled(node: ast.AST) -> str:
    """What ``ast.unparse`` returns; it takes its time even for a dotted name, and most are.

    Each node is spelled out once: not for nodes that are changed.
    """
    if isinstance(node, ast.Name):
        return node.id
    parts: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        return ".".join([inner.id, *reversed(parts)])
    text = _spelled.get(node)
    if text is None:
        text = _spelled[node] = ast.unparse(node)
    return text


def index(tree: ast.AST, *, breadth_first: bool = False) -> tuple[dict[ast.AST, ast.AST], Kinds]:
    """The parent of every node below ``tree``, and the nodes of each kind, in the same order.

    Operators and contexts are left out. The order is that of the parents, each with its
    children in theirs: breadth first, or depth first with the last child first.
    """
    parents: dict[ast.AST, ast.AST] = {}
    kinds: Kinds = defaultdict(list)
    queue = deque([tree])
    take = queue.popleft if breadth_first else queue.pop
    put, fields, tree_node, leaves = queue.append, _fields, ast.AST, _LEAF_KINDS
    while queue:
        node = take()
        kind = node.__class__
        for name in fields[kind] if kind in fields else _fields_of(kind):
            value = getattr(node, name)
            if value.__class__ is list:
                for item in value:
                    if isinstance(item, tree_node):
                        parents[item] = node
                        kind = item.__class__
                        kinds[kind].append(item)
                        if kind not in leaves:
                            put(item)
            elif isinstance(value, tree_node):
                parents[value] = node
                kind = value.__class__
                kinds[kind].append(value)
                if kind not in leaves:
                    put(value)
    return parents, kinds


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All that a function takes, ``*args`` and ``**kwargs`` last."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return every + [one for one in (arguments.vararg, arguments.kwarg) if one is not None]


def bound_names(node: ast.AST) -> Sequence[str]:
    """The names that a node binds by itself, if it is one of the ``BINDERS``."""
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    if isinstance(node, BINDERS):
        field = {ast.arg: "arg", ast.MatchMapping: "rest"}.get(node.__class__, "name")
        name = getattr(node, field)
        return () if name is None else (name,)
    return ()


def imported_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, with the full dotted name that it stands for; relative
    imports keep their leading dots. Nothing for other nodes."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.split(".")[0]
            yield alias.asname or root, alias.name if alias.asname else root
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            full = f"{base}.{alias.name}" if base.strip(".") else base + alias.name
            yield alias.asname or alias.name, full
