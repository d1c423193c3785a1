"""What one call of a norm gives back: the norm alone, or a tuple with the residual in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normport.codemods.recognise import NotStandard, Recognised, recognise
from normport.codemods.sums import averaged
from normport.codemods.values import Cast, Const, Input, Items, Op, Tensor, Value, peel


@dataclass(frozen=True)
class Outcome:
    """A call whose result was read completely.

    kind: ``single`` (the norm of the input), ``pair`` (that and ``second``, handed through) or
        ``residual`` (the standard layers' add-and-normalise: the norm of the unrounded sum of
        the input and ``second``, and that sum in the input's dtype).
    second: the argument that comes back or is added; None where the second item is None.
    """

    read: Recognised
    kind: Literal["single", "pair", "residual"] = "single"
    second: Input | None = None


def outcome(value: Value) -> Outcome | NotStandard | None:
    """What the value of a call is; None when there is no RMS normalisation in it at all."""
    value = averaged(value)
    if isinstance(value, Items) and len(value.values) == 2:
        first, second = value.values
        added = _residual(second)
        if added is not None:
            read = recognise(_on_sum(first, added))
            if isinstance(read, Recognised):
                return Outcome(read, "residual", added)
        elif second == Const(None) or (isinstance(second, Input) and second.position > 0):
            read = recognise(first)
            if isinstance(read, Recognised):
                return Outcome(read, "pair", second if isinstance(second, Input) else None)
    whole = recognise(value)
    return Outcome(whole) if isinstance(whole, Recognised) else whole


def _residual(value: Value) -> Input | None:
    """The argument that was added to the input in float32, if ``value`` is the rounded sum."""
    if not (isinstance(value, Cast) and value.dtype == "input"):
        return None
    return _added(value.operand)


def _added(value: Value) -> Input | None:
    """``r`` when ``value`` is the float32 sum of the input and the argument ``r``."""
    if not (isinstance(value, Op) and value.kind == "add" and value.dtype == "float32"):
        return None
    left, right = (peel(operand) for operand in value.operands)
    if not (isinstance(left, Input) and isinstance(right, Input)):
        return None
    found = sorted((left, right), key=lambda item: item.position)
    return found[1] if found[0].position == 0 < found[1].position else None


def _on_sum(value: Value, added: Input) -> Value:
    """``value`` with the sum of the input and ``added`` read as though it were the input."""
    done: dict[int, Value] = {}

    def replaced(part: Value) -> Value:
        if id(part) not in done:
            done[id(part)] = _replaced(part)
        return done[id(part)]

    def _replaced(part: Value) -> Value:
        if isinstance(part, Tensor) and _added(part) == added:
            return Cast("float32", Input("input", "x", 0))
        if isinstance(part, Cast):
            inner = replaced(part.operand)
            assert isinstance(inner, Tensor)
            return Cast(part.dtype, inner)
        if isinstance(part, Op):
            operands = tuple(replaced(operand) for operand in part.operands)
            return Op(part.dtype, part.kind, operands, part.detail)
        return part

    return replaced(value)
