"""The norms as Triton kernels, for any backend of Triton. Imported only where Triton is.

One program takes one row and keeps it in registers, so every element is read once. What is rounded
is converted to the narrow dtype and back, and every product is taken in float32. So the kernels
round where the definitions do, whatever a backend makes of a product of two bfloat16.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _normalize(row: Any, size: Any, epsilon: Any) -> Any:
    """``row`` holds zeros behind its end, which add nothing to the sum."""
    return row * tl.rsqrt(tl.sum(row * row, axis=0) / size + epsilon)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scale(
    normalized: Any,
    weight: Any,
    columns: Any,
    inside: Any,
    has_weight: tl.constexpr,
    offset: tl.constexpr,
    wide: tl.constexpr,
) -> Any:
    if has_weight:
        narrow = tl.load(weight + columns, mask=inside, other=0.0)
        factor = narrow.to(tl.float32)
        if offset:
            factor = factor + 1.0
        if wide:
            normalized = normalized * factor
        else:
            factor = factor.to(narrow.dtype).to(tl.float32)
            normalized = normalized.to(narrow.dtype).to(tl.float32) * factor
            normalized = normalized.to(narrow.dtype).to(tl.float32)
    return normalized


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rms_norm(
    x: Any,
    weight: Any,
    out: Any,
    inner: Any,
    outer_stride: Any,
    inner_stride: Any,
    size: Any,
    measured: Any,
    epsilon: Any,
    has_weight: tl.constexpr,
    offset: tl.constexpr,
    wide: tl.constexpr,
    partial: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < size
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    if partial:
        part = tl.where(columns < measured, value, 0.0)
        normalized = value * tl.rsqrt(tl.sum(part * part, axis=0) / measured + epsilon)
    else:
        normalized = _normalize(value, size, epsilon)
    scaled = _scale(normalized, weight, columns, inside, has_weight, offset, wide)
    tl.store(out + row * size + columns, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm_add_norm(
    x: Any,
    residual: Any,
    weight1: Any,
    weight2: Any,
    z: Any,
    y: Any,
    x_stride: Any,
    residual_stride: Any,
    size: Any,
    epsilon1: Any,
    epsilon2: Any,
    has_weight1: tl.constexpr,
    has_weight2: tl.constexpr,
    offset1: tl.constexpr,
    wide1: tl.constexpr,
    offset2: tl.constexpr,
    wide2: tl.constexpr,
    round_norm: tl.constexpr,
    round_sum: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < size
    narrow = y.dtype.element_ty
    value = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    added = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0)
    normalized = _normalize(value, size, epsilon1)
    normalized = _scale(normalized, weight1, columns, inside, has_weight1, offset1, wide1)
    if round_norm:
        normalized = normalized.to(narrow).to(tl.float32)
    total = normalized + added.to(tl.float32)
    rounded = total.to(narrow)
    tl.store(y + row * size + columns, rounded, mask=inside)
    if round_sum:
        total = rounded.to(tl.float32)
    total = _normalize(total, size, epsilon2)
    total = _scale(total, weight2, columns, inside, has_weight2, offset2, wide2)
    tl.store(z + row * size + columns, total.to(narrow), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _head_norm(
    x: Any,
    weight: Any,
    out: Any,
    query_scale: Any,
    size: Any,
    epsilon: Any,
    has_weight: tl.constexpr,
    offset: tl.constexpr,
    wide: tl.constexpr,
    multiplied: tl.constexpr,
    block: tl.constexpr,
) -> None:
    columns = tl.arange(0, block)
    inside = columns < size
    narrow = out.dtype.element_ty
    value = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    value = _normalize(value, size, epsilon)
    value = _scale(value, weight, columns, inside, has_weight, offset, wide)
    if multiplied:
        value = value.to(narrow).to(tl.float32) * query_scale
    tl.store(out + columns, value.to(narrow), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _qk_norm(
    q: Any,
    k: Any,
    weight_q: Any,
    weight_k: Any,
    out_q: Any,
    out_k: Any,
    q_heads: Any,
    k_heads: Any,
    q_token: Any,
    q_head: Any,
    k_token: Any,
    k_head: Any,
    size: Any,
    epsilon: Any,
    query_scale: Any,
    has_weight_q: tl.constexpr,
    has_weight_k: tl.constexpr,
    offset: tl.constexpr,
    wide: tl.constexpr,
    multiplied: tl.constexpr,
    block: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    # 64 bits: where heads come first, the stride of a head grows with the tokens.
    head = tl.program_id(1).to(tl.int64)
    if head < q_heads:
        _head_norm(
            q + token * q_token + head * q_head,
            weight_q,
            out_q + (token * q_heads + head) * size,
            query_scale,
            size,
            epsilon,
            has_weight_q,
            offset,
            wide,
            multiplied,
            block,
        )
    else:
        other = head - q_heads
        _head_norm(
            k + token * k_token + other * k_head,
            weight_k,
            out_k + (token * k_heads + other) * size,
            query_scale,
            size,
            epsilon,
            has_weight_k,
            offset,
            wide,
            False,
            block,
        )


def _shape(size: int) -> dict[str, int]:
    """The block of a row, and the warps for it: 8 elements a thread, within a backend's limits."""
    block = triton.next_power_of_2(size)
    return {"block": block, "num_warps": min(16, max(1, block // 256))}


def launch_rms_norm(
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    loops: tuple[int, int, int, int],
    measured: int,
    epsilon: float,
    offset: bool,
    wide: bool,
) -> None:
    """``loops``: (outer, inner, outer stride, inner stride) of the rows of ``x``."""
    outer, inner, outer_stride, inner_stride = loops
    size = x.shape[-1]
    _rms_norm[(outer * inner,)](
        x,
        weight,
        out,
        inner,
        outer_stride,
        inner_stride,
        size,
        measured,
        epsilon,
        has_weight=weight is not None,
        offset=offset,
        wide=wide,
        partial=measured != size,
        **_shape(size),
    )


def launch_norm_add_norm(
    x: Tensor,
    residual: Tensor,
    weight1: Tensor | None,
    weight2: Tensor | None,
    z: Tensor,
    y: Tensor,
    rows: int,
    x_stride: int,
    residual_stride: int,
    epsilon1: float,
    epsilon2: float,
    **choices: bool,
) -> None:
    """``choices``: offset1, wide1, offset2, wide2, round_norm and round_sum of the op."""
    size = x.shape[-1]
    _norm_add_norm[(rows,)](
        x,
        residual,
        weight1,
        weight2,
        z,
        y,
        x_stride,
        residual_stride,
        size,
        epsilon1,
        epsilon2,
        has_weight1=weight1 is not None,
        has_weight2=weight2 is not None,
        **choices,
        **_shape(size),
    )


def launch_qk_norm(
    q: Tensor,
    k: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor | None,
    out_q: Tensor,
    out_k: Tensor,
    epsilon: float,
    offset: bool,
    wide: bool,
    query_scale: float | None,
) -> None:
    """q, k: ``[tokens, heads, head_dim]``; one launch for both."""
    tokens, q_heads, size = q.shape
    k_heads = k.shape[1]
    _qk_norm[(tokens, q_heads + k_heads)](
        q,
        k,
        weight_q,
        weight_k,
        out_q,
        out_k,
        q_heads,
        k_heads,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        size,
        epsilon,
        1.0 if query_scale is None else query_scale,
        has_weight_q=weight_q is not None,
        has_weight_k=weight_k is not None,
        offset=offset,
        wide=wide,
        multiplied=query_scale is not None,
        **_shape(size),
    )
