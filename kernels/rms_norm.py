"""The op ``rms_norm``: root-mean-square norm of the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from normport.kernels.arithmetic import check_input, check_weight, normalize, scale
from normport.kernels.op import op


@op
def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    """Root-mean-square norm over the last axis of ``x``.

    x: ``[..., size]``, floating point, any strides.
    weight: ``[size]`` of any floating dtype, or None.
    variance_size: take the mean of squares over the first so many elements only.
    offset: the weight stands for ``1 + weight``, added in float32.
    wide: multiply in float32 and round once; else in the weight's dtype, as vLLM's RMSNorm does.
    Returns a new ``[..., size]`` in the dtype of ``x``.

    With the defaults this is vLLM's ``ir.ops.rms_norm``, bit for bit; with ``offset`` and ``wide``
    its ``GemmaRMSNorm``. ValueError, TypeError: a shape or dtype that no norm has.
    """
    check_input(x)
    check_weight(x, weight)
    normalized = normalize(x.to(torch.float32), epsilon, variance_size)
    return scale(normalized, weight, offset, wide).to(x.dtype)
