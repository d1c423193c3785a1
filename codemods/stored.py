"""What is stored in a name, in whatever way: the values that may stand behind a variable."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import parameters

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def values_of(module: ModuleInfo, name: ast.Name) -> Iterator[ast.expr]:
    """Every expression that may end up in the variable, as a whole or as one of its items.

    Looked at are the function around it and, where that stores nothing in it, the functions and
    the module around that. A parameter gives nothing.
    """
    for store in _stores(module, name)[1]:
        yield from stored_value(module, store)


def values_before(module: ModuleInfo, name: ast.Name) -> Iterator[ast.expr]:
    """Those of ``values_of`` that may be in the variable where ``name`` reads it: in a function
    that stores in it what is stored further down is not, unless a loop goes back there."""
    scope, stores = _stores(module, name)
    in_order = module.enclosing(name, *FUNCTIONS, *_LOOPS) is scope
    for store in stores:
        if not in_order or _is_over(module, store, name):
            yield from stored_value(module, store)


def _stores(module: ModuleInfo, name: ast.Name) -> tuple[ast.AST | None, Sequence[ast.Name]]:
    """The function or module whose variable ``name`` reads, and where that is stored in."""
    scope: ast.AST | None = module.enclosing(name, *FUNCTIONS, ast.Module)
    while scope is not None:
        stores = _stores_in(module, name.id, scope)
        if stores or parameter(scope, name.id) is not None:
            return scope, stores
        scope = module.enclosing(scope, *FUNCTIONS, ast.Module)
    return None, []


def _is_over(module: ModuleInfo, store: ast.expr, read: ast.expr) -> bool:
    """Whether the statement that stores may be carried out before the expression is reached."""
    node: ast.AST = store
    while isinstance(node, ast.expr) and not isinstance(node, ast.NamedExpr):
        node = module.parents[node]
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return True
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return end <= (read.lineno, read.col_offset)


def parameter(scope: ast.AST, name: str) -> ast.arg | None:
    """The parameter ``name`` of a function."""
    if not isinstance(scope, FUNCTIONS):
        return None
    return next((one for one in parameters(scope.args) if one.arg == name), None)


def _stores_in(module: ModuleInfo, name: str, scope: ast.AST) -> Sequence[ast.Name]:
    if name not in module.stores:
        by_scope = module.stores[name] = {}
        for node in module.names.get(name, []):
            if isinstance(node.ctx, ast.Store):
                around = module.enclosing(node, *FUNCTIONS, ast.Module)
                by_scope.setdefault(around, []).append(node)
    return module.stores[name].get(scope, [])


def stored_value(module: ModuleInfo, target: ast.expr) -> Iterator[ast.expr]:
    """What the statement around ``target`` stores there; where it unpacks what is written out,
    the item alone."""
    path: list[int | None] = []
    node: ast.AST = target
    parent = module.parents[node]
    while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
        if not isinstance(parent, ast.Starred):
            starred = any(isinstance(part, ast.Starred) for part in parent.elts)
            path.insert(0, None if starred else parent.elts.index(target_in(parent, node)))
        node, parent = parent, module.parents[parent]
    match parent:
        case ast.Assign() | ast.NamedExpr() | ast.AnnAssign() | ast.AugAssign():
            if parent.value is not None:
                yield _item(parent.value, path)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            yield parent.iter
        case ast.withitem():
            yield parent.context_expr


def stored_in_attribute(
    module: ModuleInfo, attribute: str
) -> Sequence[tuple[ast.Attribute, ast.expr]]:
    """Where the file stores something in an attribute of that name, of whatever, and what."""
    if attribute not in module.stored:
        module.stored[attribute] = [
            (store, value)
            for store in module.attributes[attribute]
            if isinstance(store.ctx, ast.Store)
            for value in stored_value(module, store)
        ]
    return module.stored[attribute]


def target_in(parent: ast.Tuple | ast.List, node: ast.AST) -> ast.expr:
    return next(part for part in parent.elts if part is node)


def _item(value: ast.expr, path: list[int | None]) -> ast.expr:
    for place in path:
        if place is None or not isinstance(value, ast.Tuple | ast.List):
            return value
        if any(isinstance(part, ast.Starred) for part in value.elts) or place >= len(value.elts):
            return value
        value = value.elts[place]
    return value
