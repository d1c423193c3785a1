"""Plain stand-ins for vLLM's two norm layers, of the same arithmetic as the ops.

What a norm computes and where it rounds is said in ``normport.kernels.arithmetic``. The proof of a
file without a vLLM around it compares with these layers, stand-ins of kernels compute with these
functions, and the tests compare them bit for bit with vLLM's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normport.kernels.arithmetic import normalize, scale


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    variance_size: int | None = None,
    offset: bool = False,
) -> Tensor:
    """The op ``rms_norm`` as vLLM writes it: without checks, so a weight may broadcast."""
    wide = x.to(torch.float32)
    return scale(normalize(wide, eps, variance_size), weight, offset, offset).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    variance_size: int | None = None,
    offset: bool = False,
) -> tuple[Tensor, Tensor]:
    """The op ``fused_add_rms_norm`` as vLLM writes it. Nothing is changed in place."""
    wide = x.to(torch.float32) + residual.to(torch.float32)
    out = scale(normalize(wide, eps, variance_size), weight, offset, offset).to(x.dtype)
    return out, wide.to(x.dtype)


def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm`` with the weight ``1 + weight``, added and multiplied in float32."""
    return rms_norm(x, weight, eps, None, True)


def fused_add_gemma_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """``fused_add_rms_norm`` with the weight ``1 + weight``, added and multiplied in float32."""
    return fused_add_rms_norm(x, residual, weight, eps, None, True)


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
