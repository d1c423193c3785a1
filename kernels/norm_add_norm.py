"""The op ``norm_add_norm``: what a sandwich model computes between two of its blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from normport.kernels.arithmetic import check_input, check_same, check_weight, normalize, scale
from normport.kernels.op import op


@op
def norm_add_norm(
    x: Tensor,
    residual: Tensor,
    weight1: Tensor | None,
    weight2: Tensor | None,
    epsilon1: float,
    epsilon2: float,
    offset1: bool = False,
    wide1: bool = False,
    offset2: bool = False,
    wide2: bool = False,
    round_norm: bool = True,
    round_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """``y = norm(x) + residual; z = norm(y)``; returns ``(z, y)``.

    x, residual: ``[..., size]`` of one floating dtype. weight1, weight2: ``[size]`` or None.
    epsilon1, offset1, wide1 belong to the norm of ``x``; epsilon2, offset2, wide2 to the norm of
    the sum; see ``rms_norm``. The sum is taken in float32.
    round_norm: round the first norm to the dtype of ``x`` before it is added.
    round_sum: round the sum before it is normalized. ``y`` is rounded in any case.
    Both results are new and have the shape and dtype of ``x``.

    With both roundings it is bit-equal to two norm layers and an addition, as in MuseGlimmer and
    Gemma. It is not ``fused_add_rms_norm``: that one adds first, ``norm(x + residual)``.
    ValueError, TypeError: shapes or dtypes do not fit.
    """
    check_input(x)
    check_same(x, residual, "residual")
    check_weight(x, weight1, "weight1")
    check_weight(x, weight2, "weight2")
    dtype = x.dtype
    normed = scale(normalize(x.to(torch.float32), epsilon1), weight1, offset1, wide1)
    if round_norm:
        normed = normed.to(dtype)
    total = normed.to(torch.float32) + residual.to(torch.float32)
    y = total.to(dtype)
    if round_sum:
        total = y.to(torch.float32)
    return scale(normalize(total, epsilon2), weight2, offset2, wide2).to(dtype), y
