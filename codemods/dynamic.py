"""Ways to reach an attribute that holds a norm other than by its name behind a dot."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from normport.codemods.instances import built_from
from normport.codemods.module_info import ModuleInfo, stored_names
from normport.codemods.nodes import SCOPES, spelled, walk

_BY_NAME = ("getattr", "setattr", "delattr")
_BY_STRING = (
    *("get_submodule", "get_parameter", "register_module", "add_module", "_modules"),
    "attrgetter",
)
_WALKS = ("modules", "named_modules", "children", "named_children", "_modules")


def named_access(
    module: ModuleInfo, owner: ast.ClassDef, attribute: str, family: Collection[ast.AST]
) -> ast.expr | None:
    """The first expression that may reach ``attribute`` of the class ``owner`` by name.

    That is ``getattr(x, "attribute")`` and its kind; ``getattr(x, name)`` where ``x`` is seen to
    be an ``owner`` or one of its ``family``; and what a walk over modules calls in another way
    than a norm is called.
    """
    names = frozenset(node.name for node in family if isinstance(node, ast.ClassDef))
    for function in [name for word in _BY_NAME for name in module.names.get(word, [])]:
        node = module.parents[function]
        if not isinstance(node, ast.Call) or node.func is not function or len(node.args) < 2:
            continue
        target, name = node.args[:2]
        if isinstance(name, ast.Constant):
            if name.value == attribute:
                return node
        elif _is_one_of(module, target, owner, names):
            return node
    for word in _BY_STRING:
        loose = [name for name in module.names.get(word, []) if isinstance(name.ctx, ast.Load)]
        for part in (*module.attributes.get(word, []), *loose):
            outer = module.parents[part]
            if attribute in re.findall(r"\w+", spelled(outer)):
                return part if not isinstance(outer, ast.expr) else outer
    return next(_walked_calls(module), None)


def _is_one_of(
    module: ModuleInfo, node: ast.expr, owner: ast.ClassDef, names: frozenset[str]
) -> bool:
    if isinstance(node, ast.Name) and node.id == "self":
        # In a function within a method too; and in one outside, which may become a method.
        inside = module.enclosing(node, ast.ClassDef)
        return inside is None or (isinstance(inside, ast.ClassDef) and inside.name in names)
    return built_from(module, node, names)


def _walked_calls(module: ModuleInfo) -> Iterator[ast.Call]:
    """The calls, by a walk over modules, of whatever comes along, with more than the input."""
    for word in _WALKS:
        for attribute in module.attributes.get(word, []):
            outer = module.enclosing(attribute, ast.For, ast.comprehension, *SCOPES)
            body: ast.AST | None = outer
            if isinstance(outer, ast.comprehension):
                body = module.parents[outer]
            if not isinstance(outer, ast.For | ast.comprehension) or body is None:
                continue
            if not any(part is attribute for part in walk(outer.iter)):
                continue
            names = stored_names(outer.target)
            for call in walk(body):
                match call:
                    case ast.Call(func=ast.Name(id=name)):
                        if name in names and not _passes_one(call):
                            yield call


def _passes_one(call: ast.Call) -> bool:
    plain = len(call.args) == 1 and not isinstance(call.args[0], ast.Starred)
    return plain and not call.keywords
