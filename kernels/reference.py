"""The norm definitions, with the order of rounding, and plain stand-ins for vLLM's two layers.

The order is that of vLLM 0.24 to 0.33 (``vllm/ir/ops/layernorm.py`` and
``vllm/model_executor/layers/layernorm.py``):

1. the input is widened to float32 (and the residual added there, unrounded);
2. it is normalized in float32: ``y = x * rsqrt(mean(x ** 2) + eps)``;
3. ``y`` is cast to the weight's dtype (the first rounding, none for a float32 weight);
4. it is multiplied by the weight in that dtype;
5. the product is cast to the input's dtype (the last rounding).

Gemma's norm is the same function with the float32 weight ``1 + w``. These definitions are what
a kernel is compared with, and they are compared bit for bit with vLLM's own layers in the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, variance_size: int | None = None
) -> Tensor:
    """Root-mean-square norm over the last axis of ``x``.

    x: ``[..., size]``, floating point. weight: ``[size]`` of any floating dtype, or None.
    variance_size: take the mean of squares over the first so many elements only.
    Returns ``[..., size]`` in the dtype of ``x``.
    """
    wide = x.to(torch.float32)
    return _scale(_normalize(wide, eps, variance_size), weight).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Norm of ``x + residual``, and that sum.

    The norm is taken of the unrounded float32 sum; the returned residual is the sum rounded to
    the dtype of ``x``. Both results have the shape and dtype of ``x``. Nothing is changed in
    place.
    """
    wide = x.to(torch.float32) + residual.to(torch.float32)
    out = _scale(_normalize(wide, eps, variance_size), weight).to(x.dtype)
    return out, wide.to(x.dtype)


def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm`` with the weight ``1 + weight``, added and multiplied in float32."""
    return rms_norm(x, weight.float() + 1.0, eps)


def fused_add_gemma_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """``fused_add_rms_norm`` with the weight ``1 + weight``, added and multiplied in float32."""
    return fused_add_rms_norm(x, residual, weight.float() + 1.0, eps)


def _normalize(wide: Tensor, eps: float, variance_size: int | None) -> Tensor:
    measured = wide if variance_size is None else wide[..., :variance_size]
    return wide * torch.rsqrt(measured.pow(2).mean(dim=-1, keepdim=True) + eps)


def _scale(normalized: Tensor, weight: Tensor | None) -> Tensor:
    return normalized if weight is None else normalized.to(weight.dtype) * weight


class RMSNorm(nn.Module):
    """What vLLM's ``RMSNorm`` computes natively, without vLLM.

    ``weight`` is a parameter of ones in ``dtype`` (the default dtype if None); with
    ``has_weight=False`` it is a plain tensor of ones that the norm does not use and no
    checkpoint key appears.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        var_hidden_size: int | None = None,
        has_weight: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
        self.has_weight = has_weight
        self.weight = torch.ones(hidden_size, dtype=dtype or torch.get_default_dtype())
        if has_weight:
            self.weight = nn.Parameter(self.weight)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        weight = self.weight.data if self.has_weight else None
        size = self.variance_size_override
        if residual is None:
            return rms_norm(x, weight, self.variance_epsilon, size)
        return fused_add_rms_norm(x, residual, weight, self.variance_epsilon, size)


class GemmaRMSNorm(nn.Module):
    """What vLLM's ``GemmaRMSNorm`` computes natively: ``weight`` is a parameter of zeros."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return gemma_rms_norm(x, self.weight.data, self.variance_epsilon)
        return fused_add_gemma_rms_norm(x, residual, self.weight.data, self.variance_epsilon)
