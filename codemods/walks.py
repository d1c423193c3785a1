"""Code that walks over a model's modules and does something with those that have an attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from normport.codemods.module_info import ModuleInfo, stored_names
from normport.codemods.nodes import spelled

_WALKS = frozenset({"modules", "named_modules", "children", "named_children"})
_BY_NAME = frozenset({"hasattr", "getattr", "setattr", "delattr"})
# The standard layers have these as well, and mean the same by them.
_SHARED = frozenset({"weight", "forward", "training"})


def walked_use(module: ModuleInfo, node: ast.ClassDef) -> tuple[str, int] | None:
    """``(text, line)`` of a use, by whoever walks over all modules, of an attribute that instances
    of the class ``node`` have, or None.

    Seen are loops over ``modules()`` and its kind, and functions that are given to ``apply``.
    """
    own = _own_attributes(node) - _SHARED
    if not own or not any(name in module.attributes for name in (*_WALKS, "apply")):
        return None
    inside = set(ast.walk(node))
    for names, body in _walks(module):
        for part in ast.walk(body):
            if part not in inside and _reads(part, names, own):
                return spelled(part), getattr(part, "lineno", 0)
    return None


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """Attributes that the class stores on self, and names bound in its body."""
    found = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= stored_names(statement)
    return found


def _walks(module: ModuleInfo) -> Iterator[tuple[set[str], ast.AST]]:
    """The names that stand for a module of the walk, and the code in which they do."""
    for name in _WALKS:
        for attribute in module.attributes.get(name, []):
            # The call may stand in list(...), enumerate(...) or zip(...).
            outer = module.enclosing(attribute, ast.For, ast.comprehension)
            if isinstance(outer, ast.For) and attribute in set(ast.walk(outer.iter)):
                yield stored_names(outer.target), outer
            elif isinstance(outer, ast.comprehension):
                yield stored_names(outer.target), module.parents[outer]
    for attribute in module.attributes.get("apply", []):
        call = module.parents[attribute]
        if isinstance(call, ast.Call) and call.func is attribute and len(call.args) == 1:
            yield from _functions(module, call.args[0])


def _functions(module: ModuleInfo, node: ast.expr) -> Iterator[tuple[set[str], ast.AST]]:
    """The function that ``node`` may mean, each with its parameters."""
    if isinstance(node, ast.Lambda):
        yield {argument.arg for argument in node.args.args}, node.body
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    for function in module.parents if name is not None else ():
        if isinstance(function, ast.FunctionDef) and function.name == name:
            yield {argument.arg for argument in function.args.args} - {"self"}, function


def _reads(node: ast.AST, names: set[str], own: set[str]) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner in names and attribute in own
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=owner), name, *_]):
            constant = isinstance(name, ast.Constant) and name.value in own
            return function in _BY_NAME and owner in names and constant
    return False
