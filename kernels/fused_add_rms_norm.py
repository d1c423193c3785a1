"""The op ``fused_add_rms_norm``: norm of input plus residual, from the unrounded sum."""

from __future__ import annotations

import torch
from torch import Tensor

from normport.kernels.arithmetic import check_input, check_weight, normalize, scale
from normport.kernels.op import op


@op
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """Norm of ``x + residual``, and that sum.

    The sum is taken in float32 and normalized before it is rounded; the returned residual is the
    sum rounded to the dtype of ``x``. Both results are new and have the dtype of ``x`` and the
    shape to which ``x`` and ``residual`` broadcast. The other parameters are those of ``rms_norm``.

    With the defaults this is vLLM's ``ir.ops.fused_add_rms_norm``, bit for bit. It is not the norm
    of a sandwich model, which adds after normalizing: that is ``norm_add_norm``.
    """
    check_input(x)
    check_input(residual, "residual")
    check_weight(x, weight)
    total = x.to(torch.float32) + residual.to(torch.float32)
    out = scale(normalize(total, epsilon, variance_size), weight, offset, wide).to(x.dtype)
    return out, total.to(x.dtype)
