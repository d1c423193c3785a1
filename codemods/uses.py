"""How the attributes that hold a norm are used in their file."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from normport.codemods.dynamic import named_access
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk


def within(module: ModuleInfo, node: ast.AST, outer: ast.AST) -> bool:
    current: ast.AST | None = node
    while current is not None:
        if current is outer:
            return True
        current = module.parents.get(current)
    return False


@dataclass(frozen=True)
class Objection:
    """A use of a norm attribute that a conversion would break or cannot see through."""

    code: str
    why: str


@dataclass(frozen=True)
class Binding:
    """Where a construction is stored: ``self.attribute`` of ``owner``, built in ``init``.

    kind: the attribute holds the norm itself, or a list or dict of which it is an item, or an
        ``nn.Sequential`` that calls it.
    """

    owner: ast.ClassDef
    init: ast.FunctionDef
    attribute: str
    target: ast.Attribute
    kind: Literal["attribute", "items", "sequence"] = "attribute"


def binding(module: ModuleInfo, call: ast.expr) -> Binding | None:
    """The attribute of self that holds exactly this construction, if that is what it does.

    Conditional expressions count: ``self.a = Norm(...) if flag else nn.Identity()``.
    """
    node: ast.AST = call
    parent = module.parents.get(node)
    while isinstance(parent, ast.IfExp) and node is not parent.test:
        node, parent = parent, module.parents.get(parent)
    target: ast.expr | None = None
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and parent.value is node:
        target = parent.targets[0]
    elif isinstance(parent, ast.AnnAssign) and parent.value is node:
        target = parent.target
    if not (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ):
        return None
    init = module.enclosing(call, ast.FunctionDef, ast.Lambda, ast.AsyncFunctionDef)
    owner = module.parents.get(init) if init is not None else None
    if not isinstance(init, ast.FunctionDef) or not isinstance(owner, ast.ClassDef):
        return None
    return Binding(owner, init, target.attr, target)


def attribute_calls(module: ModuleInfo, bound: Binding) -> list[ast.Call]:
    """The calls of the norm in this file, in order; see ``objection``. Those that an
    ``nn.Sequential`` makes pass one argument and are not among them."""
    calls: list[ast.Call] = []
    for node in _loads(module, bound):
        parent = module.parents[node]
        if bound.kind != "attribute":
            calls += _item_calls(module, node) or ()
        elif isinstance(parent, ast.Call) and parent.func is node:
            calls.append(parent)
    return calls


def objection(module: ModuleInfo, bound: Binding) -> Objection | None:
    """Why converting ``self.attribute`` would not be seen through, from all its uses here but
    its calls.

    Counted are ``self.attribute`` in the owning class and its relatives in the file, and
    ``anything.attribute`` where ``anything`` is not ``self``.
    """
    calls = 0
    for node in _loads(module, bound):
        found: Objection | None = None
        if bound.kind != "attribute" and _item_calls(module, node) is not None:
            calls += 1
        elif bound.kind != "items" and _called(module, node):
            calls += 1
            found = _sequence_objection(module, node) if bound.kind == "sequence" else None
        else:
            found = _use_objection(module, node)
        if found is not None:
            return found
    named = named_access(module, bound.owner, bound.attribute, family(module, bound.owner))
    if named is not None:
        why = f"`{spelled(named)}` reaches it in line {named.lineno}; name the attribute there"
        return Objection("NP209", why)
    if not calls:
        what = f"no call of self.{bound.attribute} is seen in this file"
        why = f"{what}; call it in the class that builds it, or leave it"
        return Objection("NP209", why)
    return None


def _item_calls(module: ModuleInfo, node: ast.Attribute) -> list[ast.Call] | None:
    """The calls of items that a use of their list makes; None where it does more than that."""
    parent = module.parents[node]
    outer = module.parents[parent]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return [outer] if isinstance(outer, ast.Call) and outer.func is parent else None
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        if parent.func.id == "len":
            return []
        if parent.func.id in ("zip", "enumerate") and isinstance(outer, ast.For):
            place = parent.args.index(node) + (parent.func.id == "enumerate")
            target = outer.target
            if isinstance(target, ast.Tuple) and outer.iter is parent and len(target.elts) > place:
                return _calls_of(module, outer, target.elts[place])
    if isinstance(parent, ast.For) and parent.iter is node:
        return _calls_of(module, parent, parent.target)
    return None


def _calls_of(module: ModuleInfo, loop: ast.For, target: ast.expr) -> list[ast.Call] | None:
    """The calls of a loop's variable, where nothing else is done with it in the function."""
    function = module.enclosing(loop, ast.FunctionDef, ast.AsyncFunctionDef)
    if not isinstance(target, ast.Name) or function is None:
        return None
    found: list[ast.Call] = []
    for node in walk(function):
        if isinstance(node, ast.Name) and node.id == target.id and node is not target:
            call = module.parents[node]
            if not (
                isinstance(call, ast.Call) and call.func is node and within(module, node, loop)
            ):
                return None
            found.append(call)
    return found


def _sequence_objection(module: ModuleInfo, node: ast.Attribute) -> Objection | None:
    call = module.parents[node]
    assert isinstance(call, ast.Call)
    if len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred):
        return None
    why = f"`{spelled(call)}` in line {call.lineno} passes more than the input; pass that alone"
    return Objection("NP208", why)


def holds_only(module: ModuleInfo, bound: Binding, norm: str) -> bool:
    """Whether nothing but constructions of ``norm`` and None is ever stored in the attribute."""
    for node in module.attributes.get(bound.attribute, []):
        if isinstance(node.ctx, ast.Load):
            continue
        outer = module.enclosing(node, ast.ClassDef)
        on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if on_self and outer is not None and outer not in family(module, bound.owner):
            continue
        statement = module.parents[node]
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not on_self:
            return False
        values = [] if statement.value is None else [statement.value]
        while values:
            value = values.pop()
            if isinstance(value, ast.IfExp):
                values += [value.body, value.orelse]
            elif isinstance(value, ast.Call):
                if not (isinstance(value.func, ast.Name) and value.func.id == norm):
                    return False
            elif not (isinstance(value, ast.Constant) and value.value is None):
                return False
    return True


def called_elsewhere(module: ModuleInfo, bound: Binding) -> int | None:
    """The line of a call of the attribute outside of the owning class, or None."""
    for node in _loads(module, bound):
        if _called(module, node) and not within(module, node, bound.owner):
            return node.lineno
    return None


def site_calls(module: ModuleInfo, bound: Binding) -> list[ast.Call]:
    """The calls of the attribute, in the owning class and elsewhere."""
    parents = [module.parents[node] for node in _loads(module, bound) if _called(module, node)]
    return [parent for parent in parents if isinstance(parent, ast.Call)]


def _loads(module: ModuleInfo, bound: Binding) -> list[ast.Attribute]:
    related = family(module, bound.owner)
    found: list[ast.Attribute] = []
    for node in module.attributes.get(bound.attribute, []):
        if not isinstance(node.ctx, ast.Load):
            continue
        outer = module.enclosing(node, ast.ClassDef)
        on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if not on_self or outer is None or outer in related or within(module, node, bound.owner):
            found.append(node)
    return found


def _called(module: ModuleInfo, node: ast.Attribute) -> bool:
    parent = module.parents[node]
    return isinstance(parent, ast.Call) and parent.func is node


def family(module: ModuleInfo, owner: ast.ClassDef) -> set[ast.AST]:
    """The class with its bases and subclasses in the file, over any number of steps."""
    known = module.families.get(owner)
    if known is None:
        known = module.families[owner] = _family(module, owner)
    return known


def _family(module: ModuleInfo, owner: ast.ClassDef) -> set[ast.AST]:
    by_name: dict[str, set[ast.AST]] = {}
    nodes = list(module.each(ast.ClassDef))
    for node in nodes:
        by_name.setdefault(node.name, set()).add(node)
    members: set[ast.AST] = {owner}
    grown = True
    while grown:
        grown = False
        for node in nodes:
            related: set[ast.AST] = {node}
            for base in node.bases:
                related |= by_name.get(_base_name(base), set())
            if related & members and not related <= members:
                members |= related
                grown = True
    return members


def _base_name(node: ast.expr) -> str:
    """The class that a base names: ``Layer`` of ``Layer``, ``m.Layer`` or ``Layer[int]``."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _use_objection(module: ModuleInfo, node: ast.Attribute) -> Objection | None:
    parent = module.parents[node]
    where = f"in line {node.lineno}"
    text = spelled(node)
    if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], ast.Is | ast.IsNot):
        return None
    if isinstance(parent, ast.Attribute):
        return Objection(
            "NP214",
            f"`{text}.{parent.attr}` is read {where}; do without it there, or leave the class",
        )
    if isinstance(parent, ast.Expr):
        return None
    why = f"`{text}` is passed on as a value {where}, and its calls are not seen; call it there"
    return Objection("NP209", why)
