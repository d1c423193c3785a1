"""Where a construction ends up: an attribute, a list or sequence in one, through a variable or a
function of the file that returns it."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk
from normport.codemods.uses import Binding, binding

_LISTS = {"torch.nn.ModuleList", "torch.nn.ModuleDict"}
_STEPS = 4
"""How many variables and functions are followed."""


def bindings(
    module: ModuleInfo, node: ast.expr, hidden: Collection[str] = (), steps: int = _STEPS
) -> list[Binding]:
    """The attributes of self that hold what ``node`` gives; none where one is not seen.

    hidden: names of the file that other files use.
    """
    found = binding(module, node)
    if found is not None:
        return [found]
    if not steps:
        return []
    while isinstance(parent := module.parents[node], ast.IfExp) and node is not parent.test:
        node = parent
    match parent:
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item) | ast.DictComp(value=item) if (
            item is node
        ):
            return _in_list(module, parent)
        case ast.List() | ast.Tuple() | ast.Dict():
            return _in_list(module, parent)
        case ast.Call(func=func) if module.qualified(func) == "torch.nn.Sequential":
            outer = binding(module, parent)
            return [replace(outer, kind="sequence")] if outer and not parent.keywords else []
        case ast.Assign(targets=[ast.Name() as target]):
            load = _only_load(module, target)
            return bindings(module, load, hidden, steps - 1) if load is not None else []
        case ast.Return():
            return _returned(module, parent, hidden, steps - 1)
    return []


def _in_list(module: ModuleInfo, node: ast.expr) -> list[Binding]:
    call = module.parents[node]
    if not isinstance(call, ast.Call) or call.args != [node] or call.keywords:
        return []
    if module.qualified(call.func) not in _LISTS:
        return []
    outer = binding(module, call)
    return [replace(outer, kind="items")] if outer is not None else []


def _only_load(module: ModuleInfo, target: ast.Name) -> ast.Name | None:
    """The one place where a function reads a variable that it sets once, before."""
    function = module.enclosing(target, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    if not isinstance(function, ast.FunctionDef):
        return None
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == target.id]
    loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
    plain = all(n is target for n in uses if not isinstance(n.ctx, ast.Load))
    own = module.enclosing(loads[0], ast.FunctionDef, ast.Lambda) if loads else None
    if not plain or len(loads) != 1 or own is not function or loads[0].lineno < target.lineno:
        return None
    return loads[0]


def _returned(
    module: ModuleInfo, node: ast.Return, hidden: Collection[str], steps: int
) -> list[Binding]:
    """What holds the results of a function at the top of the file, over all its calls."""
    function = module.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return []
    if module.functions.get(function.name) is not function or function.name in hidden:
        return []
    if not module.means_one_thing(function.name) or module.strings.get(function.name):
        return []
    found: list[Binding] = []
    for name in module.names.get(function.name, []):
        call = module.parents[name]
        held = (
            bindings(module, call, hidden, steps)
            if isinstance(call, ast.Call) and call.func is name
            else []
        )
        if not held:
            return []
        found += held
    return found
