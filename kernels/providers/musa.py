"""Provider ``musa``: vllm-musa's fused norm where it is loaded, and torch_musa's ``F.rms_norm``.

torch_musa puts one kernel behind ``torch.nn.functional.rms_norm``; vllm-musa adds an in-place
``fused_add_rms_norm`` and has no plain norm of its own. ``F.rms_norm`` rounds to the input's dtype,
then multiplies by the weight, as vLLM's RMSNorm does; a norm that is multiplied in float32, such as
Gemma's, is computed in float32 throughout, which is exact at the price of two conversions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normport.kernels.fused_add_rms_norm import fused_add_rms_norm
from normport.kernels.guards import FLOATS, why_not_input, why_not_residual, why_not_weight
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm
from normport.kernels.schemas import why_not_schema

NAMESPACE = "_C_musa_ops"
FUSED = "musa_fused_add_rms_norm"
SCHEMA = "(Tensor! input, Tensor! residual, Tensor weight, float eps, int block_x=0) -> ()"
"""As vllm-musa's csrc/musa/torch_bindings.cpp declares it (2026)."""


def supported() -> str | None:
    """Whether torch_musa (or a stand-in for it) made ``torch.musa``."""
    return None if hasattr(torch, "musa") else Reason.NOT_INSTALLED


def fused_supported() -> str | None:
    """Whether vllm-musa registered the op that this was written for."""
    return supported() or why_not_schema(FUSED, SCHEMA, NAMESPACE)


def _guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    exact = wide or x.dtype is torch.float32
    reason = why_not_input(x) or why_not_weight(x, weight, FLOATS if exact else None)
    if reason is not None:
        return reason
    if variance_size is not None and variance_size != x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if weight is None:
        return None
    if offset and not exact:
        return Reason.ROUNDING
    # The weight's dtype is where a norm that is not wide rounds.
    return Reason.WEIGHT_DTYPE if not wide and weight.dtype is not x.dtype else None


@rms_norm.provider("musa", supported=supported, supports_args=_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    shape = x.shape[-1:]
    if weight is None or not (offset or wide):
        return functional.rms_norm(x, shape, weight, epsilon)
    factor = weight.float()
    if offset:
        factor = factor + 1.0
    return functional.rms_norm(x.float(), shape, factor, epsilon).to(x.dtype)


def _fused_guard(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    if weight is None:
        return Reason.WEIGHT_MISSING
    reason = why_not_residual(x, residual) or why_not_input(x) or why_not_weight(x, weight)
    if reason is not None:
        return reason
    if variance_size is not None and variance_size != x.shape[-1]:
        return Reason.VARIANCE_SIZE
    return Reason.OFFSET if offset else None


@fused_add_rms_norm.provider("musa", supported=fused_supported, supports_args=_fused_guard)
def _fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    # The kernel works in place on dense rows, the op returns new tensors.
    out = x.clone(memory_format=torch.contiguous_format)
    total = residual.clone(memory_format=torch.contiguous_format)
    getattr(torch.ops, NAMESPACE).musa_fused_add_rms_norm.default(out, total, weight, epsilon)
    return out, total
