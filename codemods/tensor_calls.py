"""What tensor methods and torch functions mean to the symbolic evaluation."""

from __future__ import annotations

from dataclasses import replace

from normport.codemods.values import (
    Cast,
    Const,
    DType,
    DTypeName,
    Factory,
    Items,
    LastSize,
    Module,
    Op,
    Shape,
    Source,
    Tensor,
    Unknown,
    Value,
    Weight,
)

# Methods that return the same numbers in the same order.
_SAME = {"contiguous", "clone", "detach"}
_RESHAPES = {
    "reshape", "view", "view_as", "reshape_as", "unflatten", "flatten", "transpose", "permute",
    "unsqueeze", "squeeze", "chunk", "split", "expand", "repeat", "movedim", "swapaxes",
}  # fmt: skip
_ELEMENTWISE = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "multiply": "mul"}
_POINTWISE = {*_ELEMENTWISE.values(), "square", "rsqrt", "sqrt", "neg"}
_FACTORIES = {"torch.zeros": "zeros", "torch.ones": "ones", "torch.empty": "empty"}
RMS_NORMS = {"torch.nn.functional.rms_norm", "torch.rms_norm"}
MACHINE_EPS = "1.1920928955078125e-07"
"""Float32's machine epsilon: what torch's norms add when they are given no eps."""
_COLUMN = "to a column"
_ALL_REDUCES = ("all_reduce", "all_gather")


def promote(left: Value, right: Value) -> DTypeName:
    """The dtype of an elementwise operation, in the evaluator's words.

    A Python number never raises a tensor's dtype. Two parameters or inputs of unequal words
    (``input`` with ``param``) are taken as ``input``: vLLM loads both in the run's dtype.
    """
    dtypes = {v.dtype for v in (left, right) if isinstance(v, Tensor)}
    if len(dtypes) == 1:
        return dtypes.pop()
    if "other" in dtypes:
        return "other"
    return "float32" if "float32" in dtypes else "input"


def cast(value: Tensor, dtype: DTypeName) -> Tensor:
    """``value`` in ``dtype``; nothing is added when it already has it."""
    return value if value.dtype == dtype else Cast(dtype, value)


def call_tensor(
    owner: Tensor, name: str, arguments: list[Value], keywords: dict[str, Value]
) -> Value:
    """``owner.name(*arguments, **keywords)``."""
    if name == "float" and not arguments:
        return cast(owner, "float32")
    if name in ("to", "type", "type_as"):
        target = arguments[0] if arguments else keywords.get("dtype", Unknown("its target"))
        if isinstance(target, DType):
            return cast(owner, target.name)
        if isinstance(target, Tensor):
            return cast(owner, target.dtype)
        return Op("other", f"call:{name}", (owner,))
    if name in _SAME:
        return owner
    if name == "unsqueeze" and (*arguments, *keywords.values()) == (Const(-1),):
        return unsqueezed(owner, name)
    if name in _RESHAPES:
        sizes = arguments[0].values if arguments and isinstance(arguments[0], Items) else arguments
        column = name in ("view", "reshape") and len(sizes) > 1 and sizes[-1] == Const(1)
        return Op(owner.dtype, "reshape", (owner,), f"{name} {_COLUMN}" if column else name)
    if name == "pow" and not arguments and set(keywords) == {"exponent"}:
        arguments = [keywords["exponent"]]
    if name in ("pow", "square"):
        if name == "square" or arguments == [Const(2)] or arguments == [Const(2.0)]:
            return Op(owner.dtype, "square", (owner,))
        if arguments == [Const(-0.5)]:
            return Op(owner.dtype, "rsqrt", (owner,))
        if arguments == [Const(0.5)]:
            return Op(owner.dtype, "sqrt", (owner,))
        return Op(owner.dtype, "call:pow", (owner, *arguments))
    if name in ("mean", "sum"):
        return _reduce(owner, name, arguments, keywords)
    if name in ("rsqrt", "sqrt"):
        return Op(owner.dtype, name, (owner,))
    if name == "size" and not arguments and not keywords:
        return Shape("`.size()` of a tensor", owner)
    if name == "size" and (*arguments, *keywords.values()) == (Const(-1),):
        return LastSize("`.size(-1)` of a tensor", owner)
    if name in ("size", "dim", "numel"):
        return Unknown(f"`.{name}()` of a tensor")
    if name in _ELEMENTWISE and len(arguments) == 1 and not keywords:
        return Op(promote(owner, arguments[0]), _ELEMENTWISE[name], (owner, arguments[0]))
    operands = (owner, *arguments, *keywords.values())
    return Op("other", f"call:{name}", operands)


def _reduce(owner: Tensor, name: str, arguments: list[Value], keywords: dict[str, Value]) -> Value:
    dim = arguments[0] if arguments else keywords.get("dim", Const(None))
    keepdim = arguments[1] if len(arguments) > 1 else keywords.get("keepdim", Const(False))
    if isinstance(dim, Items) and len(dim.values) == 1:
        dim = dim.values[0]
    unknown = set(keywords) - {"dim", "keepdim", "dtype"}
    dtype = keywords.get("dtype")
    if isinstance(dtype, DType):
        owner = cast(owner, dtype.name)
    elif dtype is not None:
        unknown.add("dtype")
    detail = ""
    if dim == Const(-1) and not unknown and keepdim in (Const(True), Const(False)):
        detail = "last keepdim" if keepdim == Const(True) else "last"
    return Op(owner.dtype, name, (owner,), detail)


def unsqueezed(value: Tensor, how: str) -> Tensor:
    """``value`` with a last dimension of size 1: what ``keepdim=True`` leaves, where it is made
    of nothing but means and sums that left theirs out. how: the source text, where it is not.
    """
    return _with_kept(value) or Op(value.dtype, "reshape", (value,), how)


def is_longer(reshape: Op) -> bool:
    """Whether nothing is regrouped: there is a dimension of size 1 more."""
    return reshape.detail == "unsqueeze" or "None" in reshape.detail


def is_column(value: Value) -> bool:
    """Whether ``value`` is a reduced tensor that is viewed with a last dimension of size 1."""
    if not isinstance(value, Op) or value.kind != "reshape" or not value.detail.endswith(_COLUMN):
        return False
    reduced = value.operands[0]
    return isinstance(reduced, Tensor) and _with_kept(reduced) is not None


def _with_kept(value: Tensor) -> Tensor | None:
    if isinstance(value, Cast):
        inner = _with_kept(value.operand)
        return None if inner is None else Cast(value.dtype, inner)
    if not isinstance(value, Op):
        return None
    if value.kind in ("mean", "sum"):
        return replace(value, detail="last keepdim") if value.detail == "last" else None
    if value.kind not in _POINTWISE:
        return None
    operands: list[Value] = []
    for operand in value.operands:
        kept = _with_kept(operand) if isinstance(operand, Tensor) else operand
        if kept is None:
            return None
        operands.append(kept)
    return replace(value, operands=tuple(operands))


def rms_norm(arguments: list[Value], keywords: dict[str, Value]) -> Value:
    """``torch.nn.functional.rms_norm``, which computes in float32 and rounds once."""
    names = ("input", "normalized_shape", "weight", "eps")
    given = dict(zip(names, arguments, strict=False)) | keywords
    x, shape = given.get("input"), given.get("normalized_shape")
    weight, eps = given.get("weight", Const(None)), given.get("eps", Const(None))
    if not isinstance(x, Tensor):
        return Unknown("the call of rms_norm")
    many = isinstance(shape, Items) and len(shape.values) != 1
    hidden = isinstance(shape, Unknown) and not shape.why.endswith(".shape[-1:]`")
    detail = "" if many or hidden or shape is None else "last keepdim"
    if eps == Const(None):
        eps = Const(float(MACHINE_EPS), text=MACHINE_EPS)
    wide = cast(x, "float32")
    mean = Op("float32", "mean", (Op("float32", "square", (wide,)),), detail)
    root = Op("float32", "rsqrt", (Op("float32", "add", (mean, eps)),))
    norm = Op("float32", "mul", (wide, root))
    if weight != Const(None):
        norm = Op("float32", "mul", (norm, weight))
    return cast(norm, x.dtype)


def call_module(name: str, arguments: list[Value], keywords: dict[str, Value]) -> Value:
    """A call of an imported function by its dotted name."""
    if name == "torch.nn.Parameter" or name == "torch.nn.parameter.Parameter":
        data = arguments[0] if arguments else keywords.get("data")
        if isinstance(data, Factory):
            return Weight(data.dtype, "", data.shape, data.initial)
        if isinstance(data, Weight):
            return data
        return Unknown("a parameter made from something else than zeros, ones or empty")
    if name in RMS_NORMS:
        return rms_norm(arguments, keywords)
    if name in _FACTORIES:
        dtype = keywords.get("dtype")
        word: DTypeName = "param"
        if isinstance(dtype, DType):
            word = dtype.name
        elif dtype not in (None, Const(None)):
            word = "other"
        shape = tuple(arguments)
        if len(shape) == 1 and isinstance(shape[0], Items):
            shape = shape[0].values
        return Factory(word, shape, _FACTORIES[name])
    if name in ("float", "int", "bool"):
        if len(arguments) == 1 and isinstance(arguments[0], Const):
            return arguments[0]
        if len(arguments) == 1 and isinstance(arguments[0], Source):
            return Source(f"{name}({arguments[0].text})", arguments[0].param)
        if len(arguments) == 1 and isinstance(arguments[0], LastSize):
            return arguments[0]
        return Unknown(f"{name}() of a value that is not known")
    short = name.rsplit(".", 1)[-1]
    first = arguments[0] if arguments else keywords.get("input")
    if isinstance(first, Tensor):
        if any(word in short for word in _ALL_REDUCES):
            return Op(first.dtype, "all_reduce", (first,), short)
        if name.startswith(("torch.", "torch.nn.functional.")):
            rest = arguments[1:] if arguments else []
            words = {k: v for k, v in keywords.items() if k != "input"}
            return call_tensor(first, short, rest, words)
    operands = (*arguments, *keywords.values())
    if any(isinstance(o, Tensor) for o in operands):
        return Op("other", f"call:{short}", operands)
    return Unknown(f"the call of {name}")


__all__ = ["Module", "call_module", "call_tensor", "cast", "promote", "rms_norm"]
