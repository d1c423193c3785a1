"""The op ``qk_norm``: the norm of every query and key head before the rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from normport.kernels.arithmetic import check_input, check_weight, normalize, scale
from normport.kernels.op import op


@op
def qk_norm(
    q: Tensor,
    k: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor | None,
    epsilon: float,
    offset: bool = False,
    wide: bool = False,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """RMS norm of every head of ``q`` and ``k``.

    q: ``[..., query_heads, head_dim]``, k: ``[..., key_heads, head_dim]``, of one floating dtype;
    any strides, so views of one qkv tensor will do (``qkv.split(...)`` and ``unflatten``).
    weight_q, weight_k: ``[head_dim]``, shared by the heads, or None. epsilon, offset, wide:
    see ``rms_norm``.
    query_scale: multiply the normed query by it after its cast to the dtype of ``q``, which rounds
    once more.
    Returns two new contiguous tensors with the shapes and dtype of ``q`` and ``k``.
    ValueError, TypeError: shapes or dtypes do not fit.
    """
    check_input(q, "q")
    check_input(k, "k")
    if q.dtype != k.dtype:
        raise TypeError(f"q and k must have one dtype, not {q.dtype} and {k.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have one head size, not {q.shape[-1]} and {k.shape[-1]}")
    check_weight(q, weight_q, "weight_q")
    check_weight(k, weight_k, "weight_k")
    out_q = scale(normalize(q.to(torch.float32), epsilon), weight_q, offset, wide).to(q.dtype)
    out_k = scale(normalize(k.to(torch.float32), epsilon), weight_k, offset, wide).to(k.dtype)
    if query_scale is not None:
        out_q = out_q * query_scale
    return out_q.contiguous(), out_k.contiguous()
