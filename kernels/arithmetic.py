"""The arithmetic that every norm definition is made of, and the checks of their arguments.

The order of rounding is that of vLLM 0.24 to 0.33 (``vllm/ir/ops/layernorm.py``):

1. the input is widened to float32;
2. it is normalized in float32: ``y = x * rsqrt(mean(x ** 2) + epsilon)``;
3. ``y`` is cast to the weight's dtype (the first rounding, none for a float32 weight);
4. it is multiplied by the weight in that dtype;
5. the product is cast to the input's dtype (the last rounding).

Two parameters change step 3 and 4, so that one definition covers the norms in the field:

- ``offset``: the weight stands for ``1 + weight``, added in float32 (and rounded to the weight's
  dtype when the multiplication is in that dtype).
- ``wide``: multiply in float32, before the only cast, whatever the weight's dtype.

Gemma's norm is ``offset=True, wide=True``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def normalize(wide: Tensor, epsilon: float, variance_size: int | None = None) -> Tensor:
    """``wide * rsqrt(mean(wide ** 2) + epsilon)`` over the last axis, in the dtype of ``wide``."""
    measured = wide if variance_size is None else wide[..., :variance_size]
    return wide * torch.rsqrt(measured.pow(2).mean(dim=-1, keepdim=True) + epsilon)


def scale(normalized: Tensor, weight: Tensor | None, offset: bool, wide: bool) -> Tensor:
    """Multiply by the weight; in float32 if ``wide``, else in the weight's dtype."""
    if weight is None:
        return normalized
    if offset:
        factor = weight.float() + 1.0
        if not wide:
            factor = factor.to(weight.dtype)
    else:
        factor = weight.float() if wide else weight
    return normalized.to(factor.dtype) * factor


def check_input(x: Tensor, name: str = "x") -> None:
    """ValueError or TypeError unless ``x`` is a floating-point tensor of rank 1 or more."""
    if not x.is_floating_point():
        raise TypeError(f"{name} must be of a floating-point dtype, not {x.dtype}")
    if x.dim() == 0:
        raise ValueError(f"{name} must have at least one dimension, the one that is normalized")


def check_weight(x: Tensor, weight: Tensor | None, name: str = "weight") -> None:
    """ValueError or TypeError unless ``weight`` is None or ``[x.shape[-1]]``, floating point."""
    if weight is None:
        return
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{name} must have the shape ({x.shape[-1]},) of the normalized dimension, "
            f"not {tuple(weight.shape)}"
        )
    if not weight.is_floating_point():
        raise TypeError(f"{name} must be of a floating-point dtype, not {weight.dtype}")


def check_same(x: Tensor, other: Tensor, name: str) -> None:
    """ValueError or TypeError unless ``other`` has the shape and dtype of ``x``."""
    if other.shape != x.shape:
        raise ValueError(
            f"{name} must have the shape {tuple(x.shape)} of x, not {tuple(other.shape)}"
        )
    if other.dtype != x.dtype:
        raise TypeError(f"{name} must have the dtype {x.dtype} of x, not {other.dtype}")
