"""An epsilon that is passed as a tensor, where the standard layers take a number."""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import expression, walk

_LIBRARIES = ("torch.", "numpy.", "jax.")
# Of torch and numpy, what gives numbers.
_NUMBERS = ("finfo", "iinfo", "item", "tolist")
_STEPS = 4
"""How many names are followed."""


def tensor_epsilon(module: ModuleInfo, call: ast.Call, text: str) -> str | None:
    """Why ``text``, what ``call`` passes for an epsilon, is no number; None where it may be one."""
    if not _gives_tensor(module, call, expression(text), _STEPS):
        return None
    return f"its epsilon `{text}` is a tensor, and a standard layer takes a number; pass that"


def _gives_tensor(module: ModuleInfo, call: ast.Call, node: ast.expr, steps: int) -> bool:
    match node:
        case ast.Call(func=function):
            if isinstance(function, ast.Attribute) and function.attr in _NUMBERS:
                return False
            if isinstance(function, ast.Attribute) and _gives_tensor(
                module, call, function.value, steps
            ):
                return True  # torch.tensor(1e-6).to(device)
            return (module.qualified(function) or "").startswith(_LIBRARIES)
        case ast.BinOp(left=left, right=right):
            return any(_gives_tensor(module, call, part, steps) for part in (left, right))
        case ast.UnaryOp(operand=value) | ast.NamedExpr(value=value):
            return _gives_tensor(module, call, value, steps)
        case ast.IfExp(body=body, orelse=orelse):
            return any(_gives_tensor(module, call, part, steps) for part in (body, orelse))
        case ast.Name(id=name) if steps:
            return any(
                _gives_tensor(module, call, value, steps - 1)
                for value in _values(module, call, name)
            )
    return False


def _values(module: ModuleInfo, call: ast.Call, name: str) -> list[ast.expr]:
    """What the function around ``call``, or else the file, assigns to a name."""
    function = module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef)
    if function is not None:
        inside = [
            node.value
            for node in walk(function)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and any(
                isinstance(target, ast.Name) and target.id == name
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            )
        ]
        if inside:
            return inside
    constant = module.constants.get(name)
    return [] if constant is None else [constant]
