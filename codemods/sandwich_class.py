"""Which norms a class holds, and whether each is always one of vLLM's standard layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normport.codemods.registry import LAYERNORM

STANDARD = ("RMSNorm", "GemmaRMSNorm")
OP, OP_ATTRIBUTE = "NormAddNorm", "norm_add_norm"
"""The layer that a converted class builds, and the attribute that holds it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class HeldNorm:
    """An attribute that holds a standard norm. layer: its class; line: where it is built."""

    layer: str
    line: int
    end: int


@dataclass(frozen=True)
class NormClass:
    """What a class says about the norms that its methods call as ``self.NAME(...)``.

    held: the norms that are standard layers in every configuration.
    others: why another attribute is not, by its name.
    named: the attributes that hold a norm as the name of what builds it tells, ``held`` included.
    init: the class's own ``__init__``. has_op: it builds the layer of the codemod already.
    blocked: why no attribute can be added to this class; None: one can.
    """

    node: ast.ClassDef
    held: dict[str, HeldNorm]
    others: dict[str, str]
    named: frozenset[str]
    init: Function | None
    has_op: bool
    blocked: str | None


def standard_names(tree: ast.Module) -> dict[str, str]:
    """The names by which the module knows vLLM's standard norm layers."""
    return {
        alias.asname or alias.name: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == LAYERNORM
        for alias in node.names
        if alias.name in STANDARD
    }


def methods(node: ast.ClassDef) -> list[Function]:
    return [item for item in node.body if isinstance(item, Function)]


def norm_class(
    node: ast.ClassDef, names: dict[str, str], every: Sequence[ast.ClassDef]
) -> NormClass:
    """What ``node`` holds. names: see ``standard_names``. every: all classes of the module."""
    init = next((m for m in methods(node) if m.name == "__init__"), None)
    held: dict[str, HeldNorm] = {}
    others: dict[str, str] = {}
    named: set[str] = set()
    top = {id(statement) for statement in init.body} if init else set()
    for method in methods(node):
        for attribute, statement, value in _stores(method):
            if isinstance(value, ast.Call) and "norm" in ast.unparse(value.func).lower():
                named.add(attribute)
            if attribute in held or attribute in others:
                held.pop(attribute, None)
                others[attribute] = f"self.{attribute} is set in more than one place"
                continue
            layer = _layer(value, names)
            if layer is None:
                others[attribute] = f"self.{attribute} is no standard norm layer"
            elif id(statement) not in top:
                others[attribute] = f"self.{attribute} is built under a condition"
            else:
                assert statement.end_lineno is not None
                held[attribute] = HeldNorm(layer, statement.lineno, statement.end_lineno)
    named.discard(OP_ATTRIBUTE)
    blocked = _blocked(node, init, every)
    has_op = OP_ATTRIBUTE in others
    if (has_op and not _builds_op_once(node, top)) or OP_ATTRIBUTE in _class_level(node):
        blocked = f"{node.name} has a {OP_ATTRIBUTE} that is something else"
    return NormClass(node, held, others, frozenset(named), init, has_op, blocked)


def _builds_op_once(node: ast.ClassDef, top: set[int]) -> bool:
    """Whether ``__init__`` builds the layer in every case, and nothing else takes its place."""
    stores = [
        (statement, value)
        for method in methods(node)
        for attribute, statement, value in _stores(method)
        if attribute == OP_ATTRIBUTE
    ]
    return len(stores) == 1 and all(
        id(statement) in top and isinstance(value, ast.Call) and ast.unparse(value.func) == OP
        for statement, value in stores
    )


def _class_level(node: ast.ClassDef) -> set[str]:
    """The names that the body of the class itself binds."""
    names = {item.name for item in node.body if isinstance(item, Function | ast.ClassDef)}
    for item in node.body:
        if isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _layer(value: ast.expr | None, names: dict[str, str]) -> str | None:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return names.get(value.func.id)
    return None


def _stores(method: Function) -> Iterator[tuple[str, ast.stmt, ast.expr | None]]:
    """Each ``self.NAME = value`` of a method."""
    if not method.args.args:
        return
    self = method.args.args[0].arg
    for statement in ast.walk(method):
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == self
            ):
                yield target.attr, statement, value


def _blocked(
    node: ast.ClassDef, init: Function | None, every: Sequence[ast.ClassDef]
) -> str | None:
    if init is None:
        return f"{node.name} has no __init__ of its own, in which the layer could be built"
    if init.body[0].lineno == init.lineno:
        return f"the __init__ of {node.name} stands in one line"
    for other in _derived(node, every):
        own = next((m for m in methods(other) if m.name == "__init__"), None)
        if own is not None and not calls_super(own):
            return (
                f"its subclass {other.name} does not run its __init__, in which the layer would "
                "be built"
            )
    return None


def _derived(node: ast.ClassDef, every: Sequence[ast.ClassDef]) -> list[ast.ClassDef]:
    """The subclasses of a class in its module, and theirs."""
    names, found = {node.name}, list[ast.ClassDef]()
    while new := [
        other
        for other in every
        if other not in found
        and any(isinstance(base, ast.Name) and base.id in names for base in other.bases)
    ]:
        found += new
        names |= {other.name for other in new}
    return found


def calls_super(init: Function) -> bool:
    """Whether an ``__init__`` runs that of the next class, as ``super().__init__(...)``."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "__init__"
        and isinstance(call.func.value, ast.Call)
        and isinstance(call.func.value.func, ast.Name)
        and call.func.value.func.id == "super"
        and not call.func.value.args
        for call in ast.walk(init)
    )
