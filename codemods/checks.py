"""Checks that a conversion must pass; each raises ``Refused`` with a code and a clause."""

from __future__ import annotations

import ast

from normport.codemods.casts import built_cast
from normport.codemods.model import Computes
from normport.codemods.module_info import ModuleInfo
from normport.codemods.uses import (
    Binding,
    ClassUses,
    cast_input,
    class_objection,
    module_cast,
)
from normport.codemods.values import Const, Source, Unknown, Weight
from normport.codemods.walks import walked_use

_OWN_METHODS = {"__init__", "forward", "extra_repr", "__repr__"}


class Refused(Exception):
    """The site is refused: by which rule, why, and what is known of what it computes."""

    def __init__(self, code: str, why: str, computes: Computes | None = None) -> None:
        self.code = code
        self.why = why
        self.computes = computes


def check_dtypes(module: ModuleInfo, bound: Binding, computes: Computes) -> None:
    """Where the dtypes are what the rules take them for: the run's, and the same for both."""
    if computes.multiply_in == "input dtype":
        line = cast_input(module, bound)
        if line is not None:
            why = (
                f"its input is converted to another dtype before line {line}, and the local "
                "class multiplies in the input's dtype, RMSNorm in the weight's"
            )
            raise Refused("NP208", why, computes)
        lines = [line for line in (module_cast(module), built_cast(module)) if line is not None]
        if lines:
            why = (
                f"a module is converted in line {min(lines)}, so that the input may have another "
                "dtype than the weight, and the local class multiplies in the input's dtype, "
                "RMSNorm in the weight's"
            )
            raise Refused("NP222", why, computes)
    if computes.multiply_in == "float32" and computes.weight == "scale":
        line = module_cast(module)
        if line is not None:
            why = f"a module is converted in line {line}, and a float32 weight with it"
            raise Refused("NP222", why, computes)


def check_arguments(module: ModuleInfo, call: ast.Call, target: str, computes: Computes) -> None:
    """Every argument that may do something is evaluated once, as before."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        acts = [n for n in ast.walk(argument) if isinstance(n, ast.Call | ast.NamedExpr)]
        acts = [n for n in acts if not _only_looks(n)]
        text = module.segment(argument)
        if acts and target.count(text) != 1:
            why = f"its argument `{text}` would not be evaluated once as it is now"
            raise Refused("NP215", why, computes)


def check_class(
    module: ModuleInfo,
    node: ast.ClassDef,
    uses: ClassUses,
    reached: set[str],
    computes: Computes,
) -> None:
    """Whether the class is a plain module whose name means it everywhere.

    reached: its methods that the constructor or forward calls.
    """
    if node.decorator_list:
        text = ast.unparse(node.decorator_list[0])
        raise Refused("NP211", f"it is decorated with @{text}", computes)
    bases = [module.qualified(base) for base in node.bases]
    if bases != ["torch.nn.Module"] or node.keywords:
        text = ", ".join(ast.unparse(base) for base in node.bases) or "nothing"
        raise Refused("NP211", f"it inherits from {text}, not from nn.Module alone", computes)
    found = class_objection(module, node, uses)
    if found is not None:
        raise Refused(found.code, found.why, computes)
    walked = walked_use(module, node)
    if walked is not None:
        text, line = walked
        why = f"`{text}` in line {line}, in a walk over all modules, may mean it"
        raise Refused("NP214", why, computes)
    _check_body(module, node, reached, computes)


def _check_body(
    module: ModuleInfo, node: ast.ClassDef, reached: set[str], computes: Computes
) -> None:
    """Nothing but the constructor, forward, what they call, and how it prints."""
    inside = set(ast.walk(node))
    names: list[str] = []
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            names.append(statement.name)
        elif isinstance(statement, ast.AnnAssign | ast.Assign | ast.Pass):
            continue
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            why = f"its body has a statement in line {statement.lineno} that is not followed"
            raise Refused("NP211", why, computes)
    if len(set(names)) != len(names):
        raise Refused("NP221", "one of its methods is defined twice", computes)
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef):
            continue
        name = statement.name
        for part in module.attributes.get(name, []):
            if part not in inside and name not in _OWN_METHODS:
                why = f"its method {name} is used in line {part.lineno}"
                raise Refused("NP214", why, computes)
        if name not in _OWN_METHODS | reached:
            why = f"its method {name} has a meaning of its own to whoever calls it"
            raise Refused("NP211", why, computes)
        if statement.decorator_list and name in ("__init__", "forward"):
            text = ast.unparse(statement.decorator_list[0])
            raise Refused("NP211", f"its {name} is decorated with @{text}", computes)


def _only_looks(node: ast.AST) -> bool:
    """``getattr(config, "x", 1)`` and conversions: calls that only give a value."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "int", "float", "len", "max", "min", "bool")
    )


def weight_objection(weight: Weight, names: set[str], computes: Computes) -> tuple[str, str] | None:
    """``(code, why)`` when the parameter is not one that a standard layer has.

    names: all parameters of the norm.
    """
    if weight.buffer:
        return "NP212", "its weight is a buffer"
    if names != {"weight"}:
        return "NP206", f"its parameter is called `{min(names, default='?')}`, not `weight`"
    if len(weight.shape) != 1:
        return "NP206", "its weight is not one-dimensional"
    size = weight.shape[0]
    if isinstance(size, Const) and not isinstance(size.value, int):
        return "NP206", "its weight is not one-dimensional"
    if size == Const(1):
        return "NP206", "its weight is a scalar"
    if not isinstance(size, Const | Source):
        why = size.why if isinstance(size, Unknown) else "a computed value"
        return "NP206", f"the size of its weight is not known: {why}"
    if weight.dtype == "other" or (weight.dtype == "float32" and computes.weight == "offset"):
        return "NP206", "its weight is stored in a dtype of its own"
    return None
