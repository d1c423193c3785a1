"""Means and sums as a ``Flow`` follows them, and rarer functions that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from normport.codemods.lengths import length
from normport.codemods.tensor_calls import cast, promote
from normport.codemods.values import Const, DType, Items, Op, Tensor, Value

SPECIAL = {
    "nanmean", "nansum", "vecdot", "einsum", "float_power", "exp", "norm", "vector_norm",
    "normalize",
}  # fmt: skip


def reduce(
    owner: Tensor, name: str, arguments: Sequence[Value], keywords: Mapping[str, Value]
) -> Op:
    """A mean or sum; detail: ``last keepdim``, ``last``, ``other`` or ``all`` dimensions."""
    dim = keywords.get("dim", keywords.get("axis", arguments[0] if arguments else Const(None)))
    keep = keywords.get("keepdim", keywords.get("keepdims", Const(False)))
    if len(arguments) > 1:
        keep = arguments[1]
    if isinstance(dim, Items) and len(dim.values) == 1:
        dim = dim.values[0]
    if dim == Const(None):
        detail = "all"
    elif dim != Const(-1):
        detail = "other"
    else:
        detail = "last keepdim" if keep == Const(True) else "last"
    dtype = keywords.get("dtype")
    if isinstance(dtype, DType):
        owner = cast(owner, dtype.name)
    return Op(owner.dtype, name, (owner,), detail)


def special_call(
    name: str, arguments: Sequence[Value], keywords: Mapping[str, Value]
) -> Value | None:
    """What one of ``SPECIAL`` gives; detail ``by NAME`` where no norm is written so. None where it
    is something else, as ``self.norm(x)`` is."""
    if name == "einsum":
        return _einsum(arguments)
    owner, rest = (arguments[0], arguments[1:]) if arguments else (keywords.get("input"), ())
    if not isinstance(owner, Tensor):
        return None
    match name:
        case "nanmean" | "nansum":
            found = reduce(owner, name.removeprefix("nan"), rest, keywords)
            return replace(found, detail=f"{found.detail} by {name}")
        case "vecdot" if rest:
            return Op(owner.dtype, "sum", (_product(owner, rest[0]),), "last by vecdot")
        case "float_power" if rest:
            kind = {2: "square", -0.5: "rsqrt", 0.5: "sqrt"}.get(_number(rest[0]) or 0)
            return None if kind is None else Op(owner.dtype, kind, (owner,))
        case "exp":
            return _exp(owner)
        case "norm" | "vector_norm" | "normalize":
            return _length(name, owner, rest, keywords)
    return None


def _einsum(arguments: Sequence[Value]) -> Value | None:
    """``"...d,...d->..."``: a sum of products over what the result lacks."""
    if len(arguments) != 3 or not isinstance(arguments[0], Const):
        return None
    inputs, arrow, output = str(arguments[0].value).replace(" ", "").partition("->")
    left, comma, right = inputs.partition(",")
    one, two = arguments[1:]
    if not (arrow and comma and left == right and len(output) < len(left)):
        return None
    if not isinstance(one, Tensor):
        return None
    return Op(one.dtype, "sum", (_product(one, two),), "last by einsum")


def _exp(owner: Tensor) -> Value | None:
    """``exp(-0.5 * log(v))``, a root in disguise."""
    if isinstance(owner, Op) and owner.kind == "mul":
        for factor, part in (owner.operands, owner.operands[::-1]):
            is_log = isinstance(part, Op) and part.kind.split(".")[-1] in ("log", "call:log")
            if _number(factor) == -0.5 and is_log and isinstance(part, Op):
                return Op(owner.dtype, "rsqrt", (part.operands[0],))
    return None


def _length(
    name: str, owner: Tensor, rest: Sequence[Value], keywords: Mapping[str, Value]
) -> Value | None:
    """Torch's norms of vectors, where they say over which dimension."""
    names = ("ord" if name == "vector_norm" else "p", "dim", "keepdim")
    given = {**dict(zip(names, rest, strict=False)), **keywords}
    power = given.get("p", given.get("ord", Const(2)))
    if "dim" not in given and name != "normalize":
        return None
    if _number(power) != 2:
        return None
    dim, keep = given.get("dim", Const(1)), given.get("keepdim", Const(name == "normalize"))
    summed = reduce(owner, "sum", (dim, keep), {})
    total = length(owner, replace(summed, operands=(Op(owner.dtype, "square", (owner,)),)))
    if name != "normalize":
        return total
    floor = Op(owner.dtype, "floor", (total, given.get("eps", Const(1e-12, text="1e-12"))))
    return Op(owner.dtype, "div", (owner, floor))


def _product(left: Tensor, right: Value) -> Op:
    return Op(promote(left, right), "mul", (left, right))


def _number(value: Value) -> float | None:
    number = value.value if isinstance(value, Const) else None
    return float(number) if isinstance(number, int | float) else None
