"""What converts a module, or replaces a parameter of it, after it was built.

A conversion rounds a weight that a standard layer is to hold in float32, and parts the weight's
dtype from the run's, on which the rules rely.
"""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo
from normport.codemods.stored import FUNCTIONS, parameter, stored_value, values_of

_CASTS = ("half", "bfloat16", "float", "double", "to", "type")
# Methods of a module that give the module itself.
_CHAINED = frozenset(
    {*_CASTS, "cuda", "cpu", "xpu", "eval", "train", "requires_grad_", "apply", "to_empty"}
)
_WALKS = frozenset({"modules", "named_modules", "children", "named_children", "get_submodule"})
_PASSED_ON = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "next", "iter", "cast"})
_NO_MODULES = frozenset(
    {"NamedTuple", "TypedDict", "Protocol", "ABC", "Enum", "IntEnum", "StrEnum", "TensorSchema"}
)
_STEPS = 6
"""How many variables, attributes and functions are followed."""


def module_cast(module: ModuleInfo) -> int | None:
    """The line where a module of this file is converted to another dtype, or None.

    A module is converted in place: a call that stands alone or is assigned back converts one, and
    so does any call on what is seen to be a module that this file defines.
    """
    for name in _CASTS:
        for attribute in module.attributes.get(name, []):
            owner = attribute.value
            call = module.parents[attribute]
            if not isinstance(call, ast.Call) or call.func is not attribute:
                # Kept to be called later; a type is often kept under the name of `type`.
                if (
                    name != "type"
                    and isinstance(attribute.ctx, ast.Load)
                    and is_module(module, owner)
                ):
                    return attribute.lineno
                continue
            if name == "to" and not _may_be_dtype(call):
                continue
            if (
                isinstance(module.parents[call], ast.Expr)
                or _is_assigned_back(module, call, owner)
                or (module.qualified(owner) or "").startswith("torch.nn.Module")
                or is_module(module, owner)
            ):
                return attribute.lineno
    return None


def _is_assigned_back(module: ModuleInfo, call: ast.Call, owner: ast.expr) -> bool:
    """``self.part = self.part.half()``; of a plain name that is how a tensor is converted."""
    outer = module.parents[call]
    text = ast.unparse(owner)
    if not text.startswith("self."):
        return False
    return isinstance(outer, ast.Assign) and [ast.unparse(t) for t in outer.targets] == [text]


def _may_be_dtype(call: ast.Call) -> bool:
    """Whether ``.to(...)`` may name a dtype, not a device alone."""
    if any(k.arg not in ("device", "non_blocking", "memory_format", "copy") for k in call.keywords):
        return True
    return any(not _is_device(argument) for argument in call.args[:1]) or len(call.args) > 1


def _is_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | int)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "device" in name.lower()


def is_module(module: ModuleInfo, node: ast.expr, steps: int = _STEPS) -> bool:
    """Whether ``node`` is seen to be a module that may hold what this file defines: built from
    a class of the file, however it is passed on."""
    if not steps:
        return False
    steps -= 1
    match node:
        case ast.Name(id="self"):
            owner = module.enclosing(node, ast.ClassDef)
            return isinstance(owner, ast.ClassDef) and _may_be_module(owner)
        case ast.Name():
            if any(is_module(module, value, steps) for value in values_of(module, node)):
                return True
            scope = module.enclosing(node, *FUNCTIONS)
            declared = parameter(scope, node.id) if scope is not None else None
            if declared is None or scope is None:
                return False
            return _is_module_type(module, declared.annotation) or _is_applied(module, scope)
        case ast.Attribute():
            stores = [n for n in module.attributes[node.attr] if isinstance(n.ctx, ast.Store)]
            values = [value for store in stores for value in stored_value(module, store)]
            return any(is_module(module, value, steps) for value in values)
        case ast.Call():
            return _gives_module(module, node, steps)
        case ast.Subscript() | ast.Starred() | ast.NamedExpr() | ast.Await():
            return is_module(module, node.value, steps)
        case ast.IfExp():
            return any(is_module(module, part, steps) for part in (node.body, node.orelse))
        case ast.BoolOp():
            return any(is_module(module, part, steps) for part in node.values)
        case ast.List() | ast.Tuple():
            return any(is_module(module, part, steps) for part in node.elts)
        case ast.Dict():
            return any(is_module(module, part, steps) for part in node.values)
        case ast.ListComp() | ast.GeneratorExp():
            return is_module(module, node.elt, steps)
        case ast.DictComp():
            return is_module(module, node.value, steps)
    return False


def _gives_module(module: ModuleInfo, call: ast.Call, steps: int) -> bool:
    function = call.func
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(function, ast.Attribute):
        if function.attr in _WALKS:
            return True
        if function.attr in _CHAINED or function.attr in ("items", "values"):
            return is_module(module, function.value, steps)
        name = function.attr
    elif isinstance(function, ast.Name):
        name = function.id
        if name == "super":
            return True
        classes = [n for n in module.each(ast.ClassDef) if n.name == name]
        if classes:
            return any(_may_be_module(node) for node in classes)
        made = module.functions.get(name)
        if made is not None:
            returns = [n.value for n in ast.walk(made) if isinstance(n, ast.Return) and n.value]
            return any(is_module(module, value, steps) for value in returns)
    else:
        return False  # what a call gives is called: that runs a module
    # A container, or a function that hands on what it is given.
    handed = name[:1].isupper() or name in _PASSED_ON
    return handed and any(is_module(module, argument, steps) for argument in arguments)


def _may_be_module(node: ast.ClassDef) -> bool:
    """Whether instances of the class may be modules: it has a base that is no plain type."""
    bases = {_last_word(base) for base in node.bases}
    return bool(bases - _NO_MODULES) and not any(
        "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _is_module_type(module: ModuleInfo, annotation: ast.expr | None) -> bool:
    for part in ast.walk(annotation) if annotation is not None else ():
        if isinstance(part, ast.Name | ast.Attribute):
            if module.qualified(part) == "torch.nn.Module":
                return True
            name = _last_word(part)
            if any(n.name == name and _may_be_module(n) for n in module.each(ast.ClassDef)):
                return True
    return False


def _is_applied(module: ModuleInfo, function: ast.AST) -> bool:
    """Whether a function is given to ``apply``, which calls it with every module."""
    for attribute in module.attributes.get("apply", []):
        call = module.parents[attribute]
        given = call.args if isinstance(call, ast.Call) and call.func is attribute else []
        if function in given:
            return True
        if any(_last_word(one) == getattr(function, "name", None) for one in given):
            return True
    return False


def _last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
