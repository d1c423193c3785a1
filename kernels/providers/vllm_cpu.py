"""Provider ``vllm_cpu``: ``torch.ops._C.rms_norm`` of vLLM's CPU build, where it means the same.

It multiplies in float32 and rounds once, reads its input as dense rows whatever the strides, and
takes whole vectors only. In bfloat16 its AVX2 build cuts off bits instead of rounding to the
nearest, so about half of the results differ: that dtype is left to provider ``cpu``. vLLM loads the
ops; this does not, because importing the wrong one of vLLM's builds ends the process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normport.kernels.guards import why_not_input, why_not_weight
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm
from normport.kernels.schemas import why_not_schema

NAMESPACE = "_C"
SCHEMA = "(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()"
"""As vLLM 0.29.0's CPU build declares it."""

VECTOR = 16
"""Elements of its widest vector of float32 or float16 (VEC_ELEM_NUM with AVX-512)."""


def supported() -> str | None:
    """Whether vLLM's CPU ops are loaded and are those that this was written for."""
    return why_not_schema("rms_norm", SCHEMA, NAMESPACE)


def _guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    reason = why_not_input(x) or why_not_weight(x, weight)
    if reason is not None:
        return reason
    if variance_size is not None and variance_size != x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if x.dtype is torch.bfloat16:
        return Reason.ROUNDING
    if weight is not None and offset:
        return Reason.OFFSET
    if weight is not None and x.dtype is not torch.float32 and not wide:
        return Reason.ROUNDING
    if x.shape[-1] % VECTOR:
        return Reason.SIZE
    return None if x.is_contiguous() else Reason.LAYOUT


@rms_norm.provider("vllm_cpu", supported=supported, supports_args=_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    out = torch.empty_like(x)
    getattr(torch.ops, NAMESPACE).rms_norm.default(out, x, weight, epsilon)
    return out
