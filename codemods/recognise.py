"""Reads a norm off the expression that a forward returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normport.codemods.model import Computes, Initial, MultiplyIn, WeightKind
from normport.codemods.sums import averaged, why_no_mean
from normport.codemods.tensor_calls import is_column, is_longer
from normport.codemods.values import (
    Cast,
    Const,
    Input,
    Items,
    Op,
    Source,
    Tensor,
    Unknown,
    Value,
    Weight,
    peel,
    walk,
)


@dataclass(frozen=True)
class Recognised:
    """A norm that was read completely.

    weight: the parameter it multiplies by. eps: the value under the root.
    """

    computes: Computes
    weight: Weight | None
    eps: Const | Source


@dataclass(frozen=True)
class NotStandard:
    """RMS normalisation with something in it that no standard layer has.

    code: the refusal's code. why: one clause for the finding.
    """

    code: str
    why: str
    computes: Computes | None = None


def recognise(value: Value) -> Recognised | NotStandard | None:
    """What ``value`` computes; None when there is no RMS normalisation in it at all."""
    value = averaged(value)
    if isinstance(value, Items):
        tensors = [v for v in value.values if _contains_norm(v)]
        if not tensors:
            return None
        rough = _rough(value)
        why = "its forward returns a tuple; return the norm alone, and keep the rest in the caller"
        if rough.mean_subtracted:
            why = "its forward returns a tuple, and it subtracts the mean; leave it"
        return NotStandard("NP216", why, rough)
    if not _contains_norm(value):
        return None
    extras = _extras(value)
    if extras is not None:
        return extras
    outer = value
    if isinstance(outer, Cast) and outer.dtype == "input":
        outer = outer.operand
    elif isinstance(value, Tensor) and value.dtype != "input":
        return NotStandard(
            "NP217", f"its result is {_dtype_text(value)}, not the input's dtype", _rough(value)
        )
    core = _core(outer)
    if core is not None:
        return _result(None, core, None, 0.0)
    if isinstance(outer, Op) and outer.kind == "mul":
        for norm, factor in (outer.operands, outer.operands[::-1]):
            core = _core(peel(norm))
            scale = _weight(factor)
            if core is not None and scale is not None:
                weight, offset = scale
                return _result(weight, core, _multiply_in(outer, norm), offset)
    return NotStandard("NP210", "its computation is not that of a standard norm", _rough(value))


def _result(
    weight: Weight | None,
    core: tuple[Value, str | None],
    multiply_in: MultiplyIn | None,
    offset: float,
) -> Recognised | NotStandard:
    eps, narrow = core
    kind: WeightKind = "none" if weight is None else ("offset" if offset else "scale")
    text = eps.text if isinstance(eps, Source) else None
    if isinstance(eps, Const) and isinstance(eps.value, int | float):
        text = eps.text or repr(eps.value)
    computes = Computes(
        weight=kind,
        offset=offset,
        multiply_in=multiply_in,
        eps=text,
        initial=_initial(weight),
        weight_dtype=None if weight is None else _stored_dtype(weight),
    )
    if narrow is not None:
        return NotStandard("NP218", narrow, computes)
    if text is None:
        why = eps.why if isinstance(eps, Unknown) else "it is computed"
        return NotStandard(
            "NP210",
            f"its epsilon is not known: {why}; pass a number or a value of the configuration",
            computes,
        )
    assert isinstance(eps, Const | Source)
    return Recognised(computes, weight, eps)


def _core(value: Value) -> tuple[Value, str | None] | None:
    """``(eps, what is not in float32)`` when ``value`` is x / rms(x), in any of its spellings."""
    if not isinstance(value, Op) or value.kind not in ("mul", "div"):
        return None
    pairs = [value.operands] if value.kind == "div" else [value.operands, value.operands[::-1]]
    for numerator, root in pairs:
        peeled = peel(root)
        wanted = "sqrt" if value.kind == "div" else "rsqrt"
        if value.kind == "mul" and isinstance(peeled, Op) and peeled.kind == "div":
            one, peeled = peeled.operands[0], peel(peeled.operands[1])  # 1 / sqrt(...)
            if one not in (Const(1), Const(1.0)):
                continue
            wanted = "sqrt"
        if not isinstance(peeled, Op):
            continue
        if peeled.kind != wanted or not isinstance(peel(numerator), Input):
            continue
        total = peel(peeled.operands[0])
        if not isinstance(total, Op) or total.kind != "add":
            continue
        for mean, eps in (total.operands, total.operands[::-1]):
            squared = _mean_of_square(peel(mean))
            if squared is None or isinstance(eps, Tensor):
                continue
            if peel(squared) == peel(numerator):
                return eps, _narrow(numerator, mean, root)
    return None


def _narrow(numerator: Value, mean: Value, root: Value) -> str | None:
    """Which part of a norm is not computed in float32: one clause."""
    steps = {
        "takes the mean of squares": mean,
        "takes the root": root,
        "multiplies its input by the root": numerator,
    }
    dtypes = {what: v.dtype if isinstance(v, Tensor) else "other" for what, v in steps.items()}
    found = {what: dtype for what, dtype in dtypes.items() if dtype != "float32"}
    if not found:
        return None
    what, dtype = next(iter(found.items()))
    if len(found) == len(steps) and len(set(found.values())) == 1:
        what = "normalises"
    words = {"input": "the input's dtype", "param": "the weight's dtype"}
    return f"it {what} in {words.get(dtype, 'another dtype')}, not in float32"


def _mean_of_square(value: Value) -> Value | None:
    if isinstance(value, Op) and value.kind == "mean" and value.detail == "last keepdim":
        return _square(peel(value.operands[0]))
    return None


def _square(value: Value) -> Value | None:
    if isinstance(value, Op):
        if value.kind == "square":
            return value.operands[0]
        if value.kind == "mul" and value.operands[0] == value.operands[1]:
            return value.operands[0]
    return None


def _weight(value: Value) -> tuple[Weight, float] | None:
    """``(parameter, offset)`` when ``value`` is a weight with a constant added, or without."""
    peeled = peel(value)
    if isinstance(peeled, Weight):
        return peeled, 0.0
    if isinstance(peeled, Op) and peeled.kind == "add":
        for weight, offset in (peeled.operands, peeled.operands[::-1]):
            inner = peel(weight)
            if not isinstance(inner, Weight) or not isinstance(offset, Const):
                continue
            if isinstance(offset.value, int | float):
                return inner, float(offset.value)
    return None


def _multiply_in(product: Op, norm: Value) -> MultiplyIn:
    """In which dtype the weight is multiplied, from the product's and the norm's own dtype."""
    norm_dtype = norm.dtype if isinstance(norm, Tensor) else "other"
    if product.dtype == "float32" and norm_dtype == "float32":
        return "float32"
    return "weight dtype" if norm_dtype == "param" else "input dtype"


def _stored_dtype(weight: Weight) -> Literal["run dtype", "float32", "other"]:
    words: dict[str, Literal["run dtype", "float32"]] = {
        "param": "run dtype",
        "float32": "float32",
    }
    return words.get(weight.dtype, "other")


def _initial(weight: Weight | None) -> Initial | None:
    return weight.initial if weight is not None else None


def _contains_norm(value: Value) -> bool:
    """Whether a reciprocal root of a mean (or sum) of squares occurs in ``value``."""
    for part in walk(value):
        if isinstance(part, Op) and part.kind in ("rsqrt", "sqrt"):
            for inner in walk(part):
                if (
                    isinstance(inner, Op)
                    and inner.kind in ("mean", "sum")
                    and any(
                        isinstance(i, Op) and (i.kind == "square" or _square(i) is not None)
                        for i in walk(inner)
                    )
                ):
                    return True
    return False


def _extras(value: Value) -> NotStandard | None:
    """The first thing in ``value`` that no standard layer does, in order of how much it tells."""
    parts = walk(value)
    kinds = {p.kind for p in parts if isinstance(p, Op)}
    rough = _rough(value)
    inputs = {p.position for p in parts if isinstance(p, Input)}
    if "all_reduce" in kinds:
        return NotStandard("NP205", "its variance is reduced over the tensor-parallel group", rough)
    if rough.mean_subtracted:
        return NotStandard("NP201", "it subtracts the mean", rough)
    if any(map(is_column, parts)):
        why = (
            "it views the mean of squares as one column, which fits a 2-D input alone; keep the "
            "dimension with .mean(-1, keepdim=True)"
        )
        return NotStandard("NP210", why, rough)
    if rough.grouped:
        return NotStandard("NP202", "it reshapes its input and normalises groups", rough)
    if rough.gated:
        return NotStandard("NP203", "it multiplies by a gate", rough)
    if rough.bias:
        return NotStandard("NP204", "it adds a bias", rough)
    if len(inputs) > 1:
        does = (
            "adds a second input as no standard layer does"
            if rough.residual
            else "uses a second input"
        )
        return NotStandard("NP216", f"it {does}; do that in the caller", rough)
    if "slice" in kinds:
        return NotStandard(
            "NP210", "it normalises a slice of its input; slice in the caller", rough
        )
    if any(isinstance(p, Op) and p.kind == "sum" for p in parts):
        return NotStandard("NP210", why_no_mean(value), rough)
    for part in parts:
        what = part.why if isinstance(part, Unknown) else ""
        if isinstance(part, Op) and part.kind.startswith("call:"):
            what = part.kind.removeprefix("call:")
        if what:
            why = f"its computation is not followed: {what}; write it out in tensor operations"
            return NotStandard("NP210", why, rough)
    return None


def _rough(value: Value) -> Computes:
    """As much of the semantics as can be said of a norm that is refused."""
    parts = walk(value)
    weights = [p for p in parts if isinstance(p, Weight)]
    subtracted = gate = bias = grouped = added = False
    for part in parts:
        if not isinstance(part, Op):
            continue
        if part.kind == "sub" and any(_is_mean(peel(o)) for o in part.operands):
            subtracted = True
        if part.kind == "mul" and any(
            isinstance(p, Op) and p.kind in ("call:silu", "call:sigmoid", "call:gelu")
            for o in part.operands
            for p in walk(o)
        ):
            gate = True
        if part.kind == "add" and any(isinstance(peel(o), Weight) for o in part.operands):
            bias = bias or any(_contains_norm(o) for o in part.operands)
        if part.kind == "add":
            summed = {o.position for o in map(peel, part.operands) if isinstance(o, Input)}
            added = added or len(summed) > 1
        if part.kind == "reshape" and not (is_longer(part) or is_column(part)):
            grouped = True
    main = weights[0] if weights else None
    return Computes(
        weight="none" if main is None else "scale",
        offset=0.0,
        multiply_in=None,
        eps=None,
        initial=_initial(main),
        residual=added and not gate,
        grouped=grouped,
        gated=gate,
        bias=bias,
        mean_subtracted=subtracted,
    )


def _is_mean(value: Value) -> bool:
    return isinstance(value, Op) and value.kind == "mean"


def _dtype_text(value: Value) -> str:
    dtype = value.dtype if isinstance(value, Tensor) else "other"
    return {"float32": "float32", "param": "in the weight's dtype"}.get(dtype, "in another dtype")
