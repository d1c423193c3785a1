"""A sum of squares that is divided by the number of its terms, which makes it their mean."""

from __future__ import annotations

from normport.codemods.values import (
    Cast,
    Const,
    Items,
    LastSize,
    Op,
    Source,
    Tensor,
    Value,
    Weight,
    walk,
)

_ADVICE = "write .mean(-1, keepdim=True) if it is"
# What only hands a sum on to the root.
_PLAIN = {"add", "sub", "sqrt", "rsqrt", "floor", "reshape"}


def averaged(value: Value) -> Value:
    """``value`` with every sum over the last dimension that is divided by its size as a mean.

    The size is that of the summed tensor itself, or of the one weight that multiplies it: a weight
    of another size would not fit.
    """
    parts = walk(value)
    if not any(isinstance(part, Op) and part.kind == "sum" for part in parts):
        return value
    sizes = _weight_sizes(parts)
    done: dict[int, Value] = {}

    def replaced(part: Value) -> Value:
        if id(part) not in done:
            done[id(part)] = _rebuilt(part)
        return done[id(part)]

    def _rebuilt(part: Value) -> Value:
        if isinstance(part, Cast):
            inner = replaced(part.operand)
            assert isinstance(inner, Tensor)
            return Cast(part.dtype, inner)
        if isinstance(part, Items):
            return Items(tuple(map(replaced, part.values)))
        if not isinstance(part, Op):
            return part
        summed = _whole(part.operands[0]) if part.kind == "div" else None
        if summed is not None and _is_size(part.operands[1], summed.operands[0], sizes):
            return Op(part.dtype, "mean", tuple(map(replaced, summed.operands)), summed.detail)
        operands = tuple(map(replaced, part.operands))
        if all(new is old for new, old in zip(operands, part.operands, strict=True)):
            return part
        return Op(part.dtype, part.kind, operands, part.detail)

    return replaced(value)


def why_no_mean(value: Value) -> str:
    """What keeps the sum of squares in ``value`` from being their mean: one clause."""
    parts = walk(value)
    sums = [part for part in parts if isinstance(part, Op) and part.kind == "sum"]
    scaled = False
    for part in parts:
        if isinstance(part, Op) and part.kind in ("div", "mul"):
            added = [one for one in map(_bare, part.operands) if _is_sum_and_more(one, sums)]
            if added:
                return (
                    "it adds something to the sum of squares before it divides that by a number, "
                    "so that the mean gets a part of it only; add it to the mean if that is meant"
                )
        if not isinstance(part, Op) or not any(_bare(o) in sums for o in part.operands):
            continue
        if part.kind == "div":
            return _why_not_by(part.operands[1], _bare(part.operands[0]), parts)
        scaled = scaled or part.kind not in _PLAIN
    if scaled:
        return f"it scales the sum of squares, and that this averages them is not seen; {_ADVICE}"
    return "it takes the root of the sum of squares, not of their mean"


def _is_sum_and_more(value: Value, sums: list[Op]) -> bool:
    """Whether ``value`` is one of the sums with something added to it."""
    added = isinstance(value, Op) and value.kind == "add"
    return added and isinstance(value, Op) and any(_bare(o) in sums for o in value.operands)


def _why_not_by(divisor: Value, summed: Value, parts: list[Value]) -> str:
    known = isinstance(divisor, LastSize) or divisor in _weight_sizes(parts)
    if known and _whole(summed) is None:
        return "it sums the squares over something else than the last dimension, or drops that"
    match divisor:
        case LastSize(why=text):
            what = f"{text}, the size of another tensor"
        case Source(text=text, param=param):
            what = f"its `{param}` ({text})" if param and param != text else f"`{text}`"
        case Const(value=number):
            what = repr(number)
        case _:
            what = "something that is not followed"
    return (
        f"it divides the sum of squares by {what}, and nothing shows that this is the size of the "
        f"last dimension; {_ADVICE}"
    )


def _whole(value: Value) -> Op | None:
    """``value`` if it is a sum over the last dimension that keeps that."""
    whole = isinstance(value, Op) and value.kind == "sum" and value.detail == "last keepdim"
    return value if whole and isinstance(value, Op) else None


def _is_size(divisor: Value, summed: Value, sizes: list[Value]) -> bool:
    """Whether ``divisor`` is the size of the last dimension of ``summed``."""
    if isinstance(divisor, LastSize):
        if isinstance(divisor.tensor, Weight):
            return divisor.tensor.shape[0] in sizes
        return _shaped(divisor.tensor) == _shaped(summed)
    return isinstance(divisor, Source | Const) and divisor in sizes


def _weight_sizes(parts: list[Value]) -> list[Value]:
    weights = [part for part in parts if isinstance(part, Weight) and len(part.shape) == 1]
    return [weight.shape[0] for weight in weights]


def _shaped(value: Value) -> Value:
    """The innermost tensor that has the shape of ``value`` for certain."""
    while True:
        if isinstance(value, Cast):
            value = value.operand
        elif isinstance(value, Op) and (
            value.kind in ("square", "neg")
            or (value.kind == "mul" and _shaped(value.operands[0]) == _shaped(value.operands[1]))
        ):
            value = value.operands[0]
        else:
            return value


def _bare(value: Value) -> Value:
    while isinstance(value, Cast):
        value = value.operand
    return value
