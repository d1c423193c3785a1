"""RMS norms that are written with a vector's length: ``x / (x.norm(dim=-1) / sqrt(n))``.

``F.normalize(x) * sqrt(n)`` is one too; without the root of the size neither is: it makes vectors
of length one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from normport.codemods.roots import Root, square_of
from normport.codemods.values import Cast, Const, Op, Tensor, Value, peel

LENGTH = "length"
"""Detail of a ``sqrt`` that is a vector's length."""

_DEEPEST = 20


def length(owner: Tensor, summed: Value) -> Op:
    """The length of ``owner``, ``summed`` being the sum of its squares."""
    return Op(owner.dtype, "sqrt", (summed,), LENGTH)


def length_roots(value: Op) -> Iterator[tuple[Root, list[Value]]]:
    """Lengths that ``value`` divides by, where a root of a size makes them the root of a mean; with
    its numerators."""
    over: list[Value] = []
    under: list[Value] = []
    _take_apart(value, over, under, 0)
    for one in under:
        found = _length(one)
        if found is None:
            continue
        root, sizes_over, sizes_under = found
        over_all, under_all = [*over, *sizes_under], [*under, *sizes_over]
        if any(_is_root(o, "sqrt") for o in over_all) or any(
            _is_root(u, "rsqrt") for u in under_all
        ):
            yield root, [part for part in over if not _is_number(part)]


def _take_apart(value: Value, over: list[Value], under: list[Value], depth: int) -> None:
    """Numerators and denominators of a product."""
    inner = peel(value)
    if isinstance(inner, Op) and inner.kind in ("mul", "div") and depth < _DEEPEST:
        left, right = inner.operands
        _take_apart(left, over, under, depth + 1)
        if inner.kind == "mul":
            _take_apart(right, over, under, depth + 1)
        else:
            under.append(right)
    else:
        over.append(value)


def _length(value: Value) -> tuple[Root, list[Value], list[Value]] | None:
    """A length in a divisor, and what it is multiplied and divided by there."""
    over: list[Value] = []
    under: list[Value] = []
    eps: Value | None = None
    floored = False
    current = value
    while True:
        inner = peel(current)
        if not isinstance(inner, Op):
            return None
        if inner.kind == "sqrt" and inner.detail == LENGTH:
            total = inner.operands[0]
            squared = square_of(total.operands[0]) if isinstance(total, Op) else None
            if squared is None:
                return None
            bounded: Literal["", "root"] = "root" if floored else ""
            outside = eps is not None and not floored
            root = Root(inner, squared, eps, "by length", inner.dtype, bounded, outside)
            return root, over, under
        if inner.kind in ("add", "floor", "mul", "div"):
            holding = [o for o in inner.operands if _holds_length(o)]
            others = [o for o in inner.operands if not _holds_length(o)]
            if len(holding) != 1 or len(others) != 1:
                return None
            if inner.kind in ("add", "floor"):
                eps, floored = others[0], inner.kind == "floor"
            else:
                (over if inner.kind == "mul" else under).append(others[0])
            current = holding[0]
        elif inner.kind in ("reshape", "slice"):
            current = inner.operands[0]
        else:
            return None


def _holds_length(value: Value) -> bool:
    inner = peel(value)
    if not isinstance(inner, Op):
        return False
    if inner.kind == "sqrt" and inner.detail == LENGTH:
        return True
    kinds = ("add", "floor", "mul", "div", "reshape", "slice")
    return inner.kind in kinds and any(map(_holds_length, inner.operands))


def _is_root(value: Value, kind: str) -> bool:
    """Whether ``value`` is a root of something else than of a sum, as of a size."""
    inner = peel(value)
    if isinstance(inner, Op) and inner.kind in ("sqrt", "rsqrt") and inner.detail != LENGTH:
        return inner.kind == kind
    if isinstance(inner, Op) and inner.kind == "div" and isinstance(inner.operands[0], Const):
        return _is_root(inner.operands[1], "rsqrt" if kind == "sqrt" else "sqrt")
    return False


def _is_number(value: Value) -> bool:
    return isinstance(value, Const) or (
        isinstance(value, Cast | Op) and (_is_root(value, "sqrt") or _is_root(value, "rsqrt"))
    )
