"""What a norm computes that was found by a ``Flow``, and what in it no standard layer has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from normport.codemods.flow import Step
from normport.codemods.model import Computes, MultiplyIn
from normport.codemods.products import How
from normport.codemods.roots import VARIANCE, Root, base
from normport.codemods.values import (
    Cast,
    Const,
    Input,
    Items,
    Op,
    Source,
    Tensor,
    Value,
    peel,
    walk,
)
from normport.codemods.values import Weight as Parameter

_GATES = ("silu", "sigmoid", "gelu", "swish", "act_fn", "activation", "softplus", "tanh")
# How ``evaluate.py`` calls what a constructor stores in one of two branches.
_BRANCH = "call:a branch"
_GROUPS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Description:
    """code, why: the refusal that names what no standard layer does, if there is something."""

    computes: Computes
    code: str | None = None
    why: str | None = None


def describe(norm: Value, root: Root, product: Value, factor: Value, how: How) -> Description:
    """Read ``norm``, which holds ``product`` of ``factor`` and ``root``."""
    holding = _holding(norm, product)
    chain = _chain(_single(norm, holding), product, holding)
    weight, offset, multiply_in = _weight(chain, product)
    gated = any(_is_gate(op) for op in walk(norm))
    bias = any(_is_bias(op, inner) for op, inner in chain)
    added = _added(factor)
    grouped = _grouped(chain, factor)
    computes = Computes(
        weight="none" if weight is None else ("offset" if offset else "scale"),
        offset=offset,
        multiply_in=multiply_in,
        eps=_eps(root),
        initial=weight.initial if isinstance(weight, Parameter) else None,
        weight_dtype=_stored(weight),
        residual=added,
        grouped=grouped,
        gated=gated,
        bias=bias,
    )
    code, why = _named(root, how, computes)
    return Description(computes, code, why)


def grown(steps: Sequence[Step], product: Value) -> Value:
    """``product`` with the casts and weights that later steps put around it."""
    norm = product
    for step in steps:
        value = step.value
        if isinstance(value, Cast) and value.operand is norm:
            norm = value
        elif isinstance(value, Op) and any(operand is norm for operand in value.operands):
            others = [operand for operand in value.operands if operand is not norm]
            if value.kind == "mul" and all(leaf(other) is not None for other in others):
                norm = value
    return norm


def leaf(value: Value) -> tuple[Tensor, float] | None:
    """``(weight, offset)`` when ``value`` is one tensor that is only converted or shifted."""
    inner = base(value)
    if isinstance(inner, Parameter | Input):
        return inner, 0.0
    if isinstance(inner, Op) and inner.kind == "add":
        for part, other in (inner.operands, inner.operands[::-1]):
            found = leaf(part)
            if found is not None and isinstance(other, Const):
                number = other.value if isinstance(other.value, int | float) else 0.0
                return found[0], found[1] + float(number)
    if isinstance(inner, Op) and (inner.kind == "either" or inner.kind.startswith(_BRANCH)):
        found_all = [leaf(part) for part in inner.operands]
        if found_all and all(one is not None for one in found_all):
            return found_all[0]
    return None


def _holding(value: Value, product: Value) -> set[int]:
    """The ids of everything in ``value`` that ``product`` is a part of."""
    holding: set[int] = set()
    seen: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        current, done = stack.pop()
        if done:
            if current is product or any(id(part) in holding for part in _parts(current)):
                holding.add(id(current))
        elif id(current) not in seen:
            seen.add(id(current))
            stack.append((current, True))
            stack += [(part, False) for part in _parts(current)]
    return holding


def _parts(value: Value) -> tuple[Value, ...]:
    if isinstance(value, Cast):
        return (value.operand,)
    if isinstance(value, Items):
        return value.values
    return value.operands if isinstance(value, Op) else ()


def _single(norm: Value, holding: set[int]) -> Value:
    """The returned tensor that holds the product, where a tuple or either of two is returned."""
    while isinstance(norm, Items) or (isinstance(norm, Op) and norm.kind == "either"):
        found = [part for part in _parts(norm) if id(part) in holding]
        if not found:
            return norm
        norm = next((part for part in found if not isinstance(part, Items)), found[0])
    return norm


def _chain(norm: Value, product: Value, holding: set[int]) -> list[tuple[Op | Cast, Value]]:
    """From ``norm`` down to ``product``: each operation with its operand on the way."""
    chain: list[tuple[Op | Cast, Value]] = []
    current = norm
    while current is not product and isinstance(current, Op | Cast):
        inner = next((part for part in _parts(current) if id(part) in holding), None)
        if inner is None:
            break
        chain.append((current, inner))
        current = inner
    return chain


def _weight(
    chain: Sequence[tuple[Op | Cast, Value]], product: Value
) -> tuple[Tensor | None, float, MultiplyIn | None]:
    """The innermost weight, its offset and where it is multiplied."""
    for op, inner in reversed(chain):
        if isinstance(op, Op) and op.kind == "mul" and len(op.operands) == 2:
            other = op.operands[0] if op.operands[1] is inner else op.operands[1]
            found = leaf(other)
            if found is not None:
                return found[0], found[1], _multiply_in(op, inner)
    extra = _inside(product)
    return (extra[0], extra[1], "float32") if extra is not None else (None, 0.0, None)


def _inside(product: Value) -> tuple[Tensor, float] | None:
    """A weight among the factors of the product itself: ``x * (rsqrt(...) * w)``."""
    for part in walk(product):
        if isinstance(part, Op) and part.kind == "mul":
            for one, other in (part.operands, part.operands[::-1]):
                found = leaf(other)
                if (
                    found is not None
                    and isinstance(found[0], Parameter)
                    and any(isinstance(p, Op) and p.kind == "rsqrt" for p in walk(one))
                ):
                    return found
    return None


def _multiply_in(op: Op, inner: Value) -> MultiplyIn:
    dtype = inner.dtype if isinstance(inner, Tensor) else "other"
    if op.dtype == "float32" and dtype == "float32":
        return "float32"
    return "weight dtype" if dtype == "param" else "input dtype"


def _is_gate(op: Value) -> bool:
    if not isinstance(op, Op) or op.kind != "mul":
        return False
    return any(
        isinstance(part, Op)
        and part.kind.startswith("call:")
        and part.kind.removeprefix("call:").split(".")[-1].endswith(_GATES)
        for operand in op.operands
        for part in [base(operand)]
    )


def _is_bias(op: Op | Cast, inner: Value) -> bool:
    if not isinstance(op, Op) or op.kind != "add":
        return False
    others = [operand for operand in op.operands if operand is not inner]
    return any(isinstance(base(o), Parameter | Input) for o in others)


def _added(factor: Value) -> bool:
    """Whether the norm's input is a sum of two tensors."""
    for one in [base(factor)]:
        parts = one.operands if isinstance(one, Op) and one.kind == "either" else (one,)
        for part in map(base, parts):
            if isinstance(part, Op) and part.kind == "add":
                return all(isinstance(operand, Tensor) for operand in part.operands)
    return False


def _grouped(chain: Sequence[tuple[Op | Cast, Value]], factor: Value) -> bool:
    """Whether the input is cut into groups before, and put together again after, the norm."""
    one = peel(factor)
    parts = one.operands if isinstance(one, Op) and one.kind == "either" else (one,)
    return any(map(_regroups, map(peel, parts))) and any(_regroups(op) for op, _ in chain)


def _regroups(value: Value) -> bool:
    if not isinstance(value, Op):
        return False
    return value.kind == "reshape" or value.kind.endswith("rearrange")


def _eps(root: Root) -> str | None:
    eps = base(root.eps) if root.eps is not None else None
    if isinstance(eps, Const):
        return eps.text or repr(eps.value)
    if isinstance(eps, Source):
        return eps.text
    return (eps.name or None) if isinstance(eps, Input) else None


def _stored(weight: Tensor | None) -> Literal["run dtype", "float32", "other"] | None:
    if not isinstance(weight, Parameter):
        return None
    if weight.dtype == "param":
        return "run dtype"
    return "float32" if weight.dtype == "float32" else "other"


def _named(root: Root, how: How, computes: Computes) -> tuple[str | None, str | None]:
    """The most telling thing that no standard layer does."""
    for part in walk(root.value):
        if isinstance(part, Op) and any(word in part.kind for word in _GROUPS):
            return "NP205", "its variance is reduced over the tensor-parallel group"
    if computes.grouped:
        return "NP202", "it reshapes its input and normalises groups"
    if computes.gated:
        return "NP203", "it multiplies by a gate"
    if computes.bias:
        return "NP204", "it adds a bias"
    how_made = root.detail.partition("by ")[2]
    if how_made == "length":
        if root.floored:
            what = ", which it bounds from below,"
        else:
            what = ", to which it adds an epsilon," if root.outside else ""
        return "NP210", (
            f"it divides by the length of its input{what} and multiplies by a root of the size, "
            "which is an RMS norm with no epsilon in the mean of squares; declare RMSNorm if one "
            "there will do"
        )
    if how_made == VARIANCE:
        return "NP210", (
            "it takes the variance and the square of the mean together, which no standard layer "
            "does; write x.pow(2).mean(-1, keepdim=True) where that is meant"
        )
    if how_made:
        return "NP210", (
            f"it makes the mean of squares with {how_made}, which no standard layer does; write "
            "x.pow(2).mean(-1, keepdim=True) where that is meant"
        )
    if root.floored:
        what = "root" if root.floored == "root" else "mean of squares"
        return "NP210", f"it bounds the {what} from below instead of adding an epsilon to the mean"
    if root.outside:
        return "NP210", "it adds its epsilon to the root, not to the mean of squares under it"
    if how == "slice":
        return "NP210", "it normalises by a slice of its input; leave it"
    return None, None
