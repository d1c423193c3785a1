"""What a norm's code may do beside computing its result; a standard layer would not do it.

A call is taken to do something unless it is known to give a value and no more. In what is not
evaluated, whatever would run counts.
"""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import parameters, spelled

# Builtins that only give a value.
PURE = frozenset(
    {
        *("float", "int", "bool", "str", "repr", "len", "min", "max", "abs", "round", "tuple"),
        *("list", "hasattr", "getattr", "isinstance", "type", "super", "range", "sum"),
    }
)
# Functions of torch, and methods of tensors, that only give a value. Those that draw random
# numbers are not among them, nor those that write into what they are given.
_VALUES = frozenset(
    {
        *("abs", "add", "addcmul", "clamp", "clip", "div", "divide", "exp", "float_power", "fma"),
        *("lerp", "log", "maximum", "minimum", "mul", "multiply", "neg", "pow", "reciprocal"),
        *("rsqrt", "sqrt", "square", "sub", "subtract", "true_divide", "where"),
        *("mean", "nanmean", "nansum", "norm", "std", "sum", "var", "var_mean", "vector_norm"),
        *("bmm", "dot", "einsum", "inner", "matmul", "mm", "vecdot"),
        *("gelu", "normalize", "relu", "rms_norm", "sigmoid", "silu", "softplus", "tanh"),
        *("cat", "chunk", "concat", "contiguous", "detach", "clone", "expand", "flatten"),
        *("movedim", "permute", "repeat", "reshape", "split", "squeeze", "stack", "swapaxes"),
        *("tensor_split", "transpose", "unflatten", "unsqueeze", "view", "view_as", "reshape_as"),
        *("bfloat16", "double", "float", "half", "to", "type", "type_as", "item", "tolist"),
        *("dim", "element_size", "is_contiguous", "numel", "size", "stride", "get_device"),
        *("arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "new_empty"),
        *("new_full", "new_ones", "new_tensor", "new_zeros", "ones", "ones_like", "tensor"),
        *("zeros", "zeros_like", "Parameter", "Size", "device", "finfo", "iinfo"),
        *("get_default_dtype", "is_floating_point", "is_tensor", "promote_types", "result_type"),
    }
)


# Where they are at home. An operator of the same name below ``torch.ops`` may do anything.
_HOMES = frozenset(
    {
        *("torch", "torch.Tensor", "torch.linalg", "torch.special"),
        *("torch.nn", "torch.nn.functional", "torch.nn.parameter"),
    }
)
# Methods by which sets, loggers and the like do something.
_OF_OTHERS = frozenset({"add", "log"})
# Functions of which an argument behind the first ones says that they write into what they are
# given.
_PLACES = {"relu": 1, "silu": 1, "normalize": 4}


def is_quiet_function(name: str) -> bool:
    """Whether a call of the function with this dotted name only gives a value."""
    home, _, last = name.rpartition(".")
    if name in PURE or home == "math":
        return True
    return home in _HOMES and last in _VALUES


def is_quiet_method(name: str) -> bool:
    """Whether a call of the tensor's method only gives a value."""
    return name in _VALUES


def has_out(node: ast.Call) -> bool:
    """Whether the call may write its result into a tensor that it is given."""
    last = spelled(node.func).rpartition(".")[2]
    by_place = len(node.args) > _PLACES.get(last, len(node.args))
    return by_place or any(keyword.arg in ("out", "inplace") for keyword in node.keywords)


def defining(module: ModuleInfo, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """What is evaluated when the function is defined, its decorators left out."""
    arguments = node.args
    run = [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]
    if module.postpones_annotations:
        return run
    annotations = [*(one.annotation for one in parameters(arguments)), node.returns]
    return [*run, *(one for one in annotations if one is not None)]


def unread(module: ModuleInfo, *nodes: ast.AST | None) -> str | None:
    """The first thing that expressions which are not evaluated would do; a lambda only defines."""
    for node in nodes:
        if node is None:
            continue
        below = node.args if isinstance(node, ast.Lambda) else node
        found = _does(module, node) or unread(module, *ast.iter_child_nodes(below))
        if found is not None:
            return found
    return None


def _does(module: ModuleInfo, node: ast.AST) -> str | None:
    match node:
        case ast.Yield() | ast.YieldFrom() | ast.Await():
            return f"`{spelled(node)}` in line {node.lineno}"
        case ast.NamedExpr():
            return f"an assignment to `{node.target.id}` in line {node.lineno}"
        case ast.Call(func=function):
            name = module.qualified(function) or spelled(function)
            quiet = is_quiet_function(name) or (
                isinstance(function, ast.Attribute)
                and function.attr not in _OF_OTHERS
                and is_quiet_method(function.attr)
            )
            if not quiet or has_out(node):
                return f"a call of `{spelled(function)}` in line {node.lineno}"
    return None
