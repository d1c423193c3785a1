"""How the name of a norm class is used in a file."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.uses import Objection, within


@dataclass
class ClassUses:
    """Uses of a class name beside its definition.

    calls: constructions. annotations: names inside annotations. bases: subclasses.
    checks: isinstance, issubclass and type comparisons. others: passed as a value, exported,
    aliased, called through functools.partial and the like.
    """

    calls: list[ast.Call] = field(default_factory=list)
    annotations: list[ast.Name] = field(default_factory=list)
    bases: list[ast.ClassDef] = field(default_factory=list)
    checks: list[ast.AST] = field(default_factory=list)
    others: list[ast.AST] = field(default_factory=list)


def class_uses(module: ModuleInfo, name: str) -> ClassUses:
    """Every use of the class ``name``, which the file defines at its top level or imports."""
    uses = ClassUses()
    definition = module.classes.get(name)
    loads = [node for node in module.names.get(name, []) if isinstance(node.ctx, ast.Load)]
    for node in sorted(loads, key=lambda node: (node.lineno, node.col_offset)):
        parent = module.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            uses.calls.append(parent)
        elif node in module.annotated:
            uses.annotations.append(node)
        elif isinstance(parent, ast.ClassDef) and node in parent.bases:
            uses.bases.append(parent)
        elif _is_super_argument(parent) and definition and within(module, node, definition):
            continue
        elif _is_type_check(module, node):
            uses.checks.append(node)
        else:
            uses.others.append(node)
    return uses


def _is_super_argument(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _is_type_check(module: ModuleInfo, node: ast.AST) -> bool:
    parent = module.parents.get(node)
    if isinstance(parent, ast.Tuple):
        parent = module.parents.get(parent)
    if isinstance(parent, ast.Compare):
        return True
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id in ("isinstance", "issubclass")
    )


def class_objection(module: ModuleInfo, name: str, uses: ClassUses) -> Objection | None:
    """Why a construction by the class's name may not be what it looks like, or why the class is
    more than its constructions."""
    if not module.means_one_thing(name):
        star = star_import(module)
        if star is not None:
            text = spelled(star)
            why = f"`{text}` in line {star.lineno} may bind {name}; import the names it is for"
            return Objection("NP221", why)
        return Objection("NP221", f"the name {name} is bound more than once; give each its own")
    if uses.checks:
        line = getattr(uses.checks[0], "lineno", 0)
        return Objection(
            "NP211", f"its type is checked in line {line}; ask for the standard layer there"
        )
    if uses.others:
        line = getattr(uses.others[0], "lineno", 0)
        return Objection(
            "NP211", f"the class itself is used as a value in line {line}; construct it by its name"
        )
    for constant in module.strings.get(name, []):
        if not _exported(module, constant):
            why = f"its name is used as a string in line {constant.lineno}; name the layer there"
            return Objection("NP211", why)
    line = _asked_name(module, name)
    if line is not None:
        why = f"a class is told by its name in line {line}; ask for the standard layer there"
        return Objection("NP211", why)
    comment = re.search(rf"#[ \t]*type:(?![ \t]*ignore)[^\r\n]*\b{name}\b", module.text)
    if comment is not None:
        line = len(re.findall(r"\r\n|\r|\n", module.text[: comment.start()])) + 1
        why = f"the type comment in line {line} names it; write it as an annotation"
        return Objection("NP224", why)
    return None


def _asked_name(module: ModuleInfo, name: str) -> int | None:
    """The line where an object's class is told by its name, which may be ``name`` or become
    a standard layer's; ``self`` and messages aside."""
    standard = ("rmsnorm", "gemmarmsnorm")
    for attribute in (
        *module.attributes.get("__name__", []),
        *module.attributes.get("__qualname__", []),
    ):
        owner = attribute.value
        if isinstance(owner, ast.Call) and spelled(owner.func) == "type" and owner.args:
            asked: ast.expr = owner.args[0]
        elif isinstance(owner, ast.Attribute) and owner.attr == "__class__":
            asked = owner.value
        else:
            continue
        parent = module.parents[attribute]
        if spelled(asked) == "self" or not isinstance(
            parent, ast.Compare | ast.Attribute | ast.Subscript
        ):
            continue
        outer = module.parents[parent] if isinstance(parent, ast.Attribute) else parent
        while isinstance(outer, ast.Call | ast.Attribute) and isinstance(
            module.parents[outer], ast.Call | ast.Attribute | ast.Compare
        ):
            outer = module.parents[outer]
        words = [
            part.value.lower()
            for part in walk(outer)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        known = (name.lower(), *standard)
        if not words or any(word in one for word in words for one in known):
            return attribute.lineno
    return None


def star_import(module: ModuleInfo) -> ast.ImportFrom | None:
    """The first ``from x import *`` of the file."""
    for node in module.parents:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return node
    return None


def _exported(module: ModuleInfo, constant: ast.Constant) -> bool:
    """Whether a string stands in ``__all__`` or in an annotation."""
    if constant in module.annotated:
        return True
    statement = module.enclosing(constant, ast.stmt)
    return isinstance(statement, ast.Assign | ast.AugAssign) and "__all__" in spelled(
        statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    )
