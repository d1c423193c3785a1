"""Finds roots of a mean of squares among the values of a ``Flow``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from normport.codemods.values import Cast, Const, Items, Op, Tensor, Value, peel, walk

# Calls that hand the squares on to the root, by a word in their name.
_PASSING = ("reduce", "gather", "cat", "chunk", "split", "clamp", "contiguous", "stack")

VARIANCE = "the variance and the mean"
"""How a mean of squares is made that is the variance and the square of the mean."""


@dataclass(frozen=True)
class Root:
    """A reciprocal root of a mean of squares.

    value: the root itself. squared: what is squared. eps: what is added, None for nothing.
    detail: over which dimensions the mean goes, see ``flow``.
    floored: ``mean`` or ``root``, of which the smallest value is bounded instead.
    outside: the epsilon is added to the root, not to the mean.
    """

    value: Value
    squared: Value
    eps: Value | None
    detail: str
    dtype: str
    floored: Literal["", "mean", "root"] = ""
    outside: bool = False


def root_of(value: Value, device: bool = False) -> Root | None:
    """The root that ``value`` is, if it is one.

    device: in a kernel, which reduces in ways that are not followed and over whole blocks.
    """
    if not isinstance(value, Op) or value.kind not in ("rsqrt", "sqrt"):
        return None
    return _Search(value, device).find(value.operands[0], divided=False, eps=None, floored=False)


class _Search:
    """Looks for the mean of squares below one root."""

    def __init__(self, root: Op, device: bool) -> None:
        self.root = root
        self.device = device
        self._seen: set[tuple[int, bool]] = set()

    def find(self, value: Value, divided: bool, eps: Value | None, floored: bool) -> Root | None:
        key = id(value), divided
        if key in self._seen:
            return None
        self._seen.add(key)
        if isinstance(value, Cast):
            return self.find(value.operand, divided, eps, floored)
        if isinstance(value, Items):
            return self._any(value.values, divided, eps, floored)
        if not isinstance(value, Op):
            return None
        operands = value.operands
        match value.kind:
            case "add":
                squared = _by_variance(operands)
                if squared is not None:
                    mean = Op(value.dtype, "mean", (), f"by {VARIANCE}")
                    return self._root(squared, mean, eps, floored)
                for part, other in (operands, operands[::-1]):
                    found = self.find(part, divided, other if eps is None else eps, floored)
                    if found is not None:
                        return found
            case "floor":
                return self.find(operands[0], divided, eps or operands[1], True)
            case "div":
                found = self.find(operands[0], True, eps, floored)
                return found or self._hidden(operands[0], eps)
            case "mul" if operands[0] is not operands[1]:
                for part in operands:
                    found = self.find(part, True, eps, floored)
                    if found is not None:
                        return found
                if any(map(_is_fraction, operands)):
                    return self._hidden(value, eps)
            case "mean" | "sum":
                if value.kind == "sum" and not divided:
                    return None
                return self._root(square_of(operands[0]), value, eps, floored)
            case "square" | "mul":
                inner = peel(operands[0])
                if isinstance(inner, Op) and inner.kind == "sqrt":  # the square of a length
                    return self.find(inner.operands[0], divided, eps, floored)
                if self.device and divided:
                    return self._root(square_of(value), value, eps, floored)
            case kind if kind in ("reshape", "slice", "either") or self._passes(kind):
                return self._any(operands, divided, eps, floored)
        return None

    def _any(
        self, parts: Sequence[Value], divided: bool, eps: Value | None, floored: bool
    ) -> Root | None:
        """One of several: the first root, with the squares of all."""
        found = [self.find(part, divided, eps, floored) for part in parts]
        roots = [root for root in found if root is not None]
        if len(roots) < 2:
            return roots[0] if roots else None
        squares = tuple(root.squared for root in roots)
        return replace(roots[0], squared=Op("input", "either", squares))

    def _hidden(self, value: Value, eps: Value | None) -> Root | None:
        """In a kernel: ``total / n + eps``, where it is not seen how the total came about."""
        if not self.device or eps is None or not isinstance(value, Tensor):
            return None
        if any(isinstance(part, Op) and part.kind == "sub" for part in walk(value)):
            return None
        return Root(self.root, value, eps, "other", value.dtype)

    def _passes(self, kind: str) -> bool:
        called = kind.startswith("call:")
        return called and (self.device or any(word in kind for word in _PASSING))

    def _root(
        self, squared: Value | None, mean: Op, eps: Value | None, floored: bool
    ) -> Root | None:
        if squared is None or is_centered(squared):
            return None
        if mean.detail.startswith("all") and not self.device:
            return None  # the loudness of a signal, not a norm over a dimension
        bounded: Literal["", "mean"] = "mean" if floored else ""
        return Root(self.root, squared, eps, mean.detail, mean.dtype, bounded)


def _is_fraction(value: Value) -> bool:
    """In a kernel: ``1.0 / n`` as a factor, or a total that only a mean is made of."""
    if isinstance(value, Const):
        return value.value is None  # arithmetic on numbers
    if isinstance(value, Op) and value.kind.startswith("call:"):
        return bool(value.operands) and all(map(_is_fraction, value.operands))
    return isinstance(value, Op) and value.kind in ("div", "sum")


def _by_variance(operands: Sequence[Value]) -> Value | None:
    """``x`` where the operands are its variance and the square of its mean."""
    for one, two in (operands, operands[::-1]):
        inner, mean = peel(one), square_of(two)
        mean = peel(mean) if mean is not None else None
        if not (isinstance(inner, Op) and inner.kind.split(".")[-1] in ("call:var", "var")):
            continue
        if (
            isinstance(mean, Op)
            and mean.kind == "mean"
            and same(inner.operands[0], mean.operands[0])
        ):
            return inner.operands[0]
    return None


def square_of(value: Value) -> Value | None:
    """What is squared in ``value``."""
    value = peel(value)
    if not isinstance(value, Op):
        return None
    if value.kind == "square":
        return _without_sign(value.operands[0])
    if value.kind == "mul" and len(value.operands) == 2 and same(*value.operands):
        return value.operands[0]
    if value.kind == "either":
        found = [s for s in map(square_of, value.operands) if s is not None]
        return next((s for s in found if not is_centered(s)), found[0] if found else None)
    return None


def _without_sign(value: Value) -> Value:
    peeled = peel(value)
    if isinstance(peeled, Op) and peeled.kind.startswith("call:") and "abs" in peeled.kind:
        return peeled.operands[0]
    return value


def is_centered(value: Value) -> bool:
    """Whether something, a mean in all likelihood, was subtracted: not an RMS norm."""
    value = base(value)
    if not isinstance(value, Op):
        return False
    if value.kind == "either":
        return all(is_centered(part) for part in value.operands)
    if value.kind == "mul":
        return any(is_centered(part) for part in value.operands)
    return value.kind == "sub"


def same(left: Value, right: Value) -> bool:
    """Whether both are the same numbers."""
    left, right = peel(left), peel(right)
    return left is right or left == right


def base(value: Value) -> Value:
    """``value`` without casts, reshapes and slices around it."""
    while True:
        if isinstance(value, Cast):
            value = value.operand
        elif isinstance(value, Op) and value.kind in ("reshape", "slice"):
            value = value.operands[0]
        else:
            return value
