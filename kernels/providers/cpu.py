"""Provider ``cpu``: the norms as compiled loops over rows, for float32, bfloat16 and float16.

torch.compile of the native function is not used, for two reasons that bench/norms.py shows: its
code leaves out roundings that the definition makes, and calling it costs more than the norm of a
row. The compiled library (``cpu_build``) is called through ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normport.kernels.guards import (
    readable,
    row_strides,
    single_stride,
    why_not_input,
    why_not_residual,
    why_not_weight,
    why_unreadable,
)
from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.providers.cpu_build import build
from normport.kernels.qk_norm import qk_norm
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

GRAIN = 32768
"""Elements that are worth a thread: ATen's own grain size (at::internal::GRAIN_SIZE)."""

_SUFFIX = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
# float16 is missing here because not every compiler has it: the full guard finds out.
_PLAIN = frozenset({torch.float32, torch.bfloat16})
# cpu_norms.cpp: the structures RmsNorm, NormAddNorm and QkNorm
_PACK = {
    "rms_norm": struct.Struct("3P6qf2i").pack,
    "norm_add_norm": struct.Struct("6P4q2f5i").pack,
    "qk_norm": struct.Struct("6P8q2f4i").pack,
}
# cpu_norms.cpp: enum Kind
_GIVEN, _FLOAT32, _OFFSET, _WIDE = 1, 2, 4, 8


def supported() -> str | None:
    """Whether the kernels could be compiled here; the first call compiles them."""
    return build().reason


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Callable[..., Any] | None:
    """The C function of a norm for a dtype; None where the compiler has no such type."""
    library = build().library
    assert library is not None
    symbol = f"{name}_{_SUFFIX[dtype]}"
    if not hasattr(library, symbol):
        return None
    function = library[symbol]
    function.argtypes, function.restype = [ctypes.c_char_p], None
    pack = _PACK[name]

    def call(*arguments: Any) -> None:
        function(pack(*arguments))

    return call


def _plain(x: Tensor) -> bool:
    """Whether ``x`` passes every check at once: what decode and prefill hand in."""
    return (
        x.is_contiguous()
        and x.is_cpu
        and x.dtype in _PLAIN
        and type(x.numel()) is int
        and readable(x)
    )


def _threads(elements: int, parts: int) -> int:
    """How many threads the work is worth, in no more than ``parts``."""
    if elements < 2 * GRAIN:
        return 1
    return max(1, min(torch.get_num_threads(), elements // GRAIN, parts))


def _kind(weight: Tensor | None, offset: bool, wide: bool) -> int:
    if weight is None:
        return 0
    kind = _GIVEN
    if weight.dtype is torch.float32:
        kind |= _FLOAT32
    if offset:
        kind |= _OFFSET
    if wide:
        kind |= _WIDE
    return kind


def _address(weight: Tensor | None) -> int:
    return 0 if weight is None else weight.data_ptr()


def _why_not(name: str, x: Tensor) -> str | None:
    reason = why_not_input(x)
    if reason is None and _function(name, x.dtype) is None:
        return Reason.DTYPE
    return reason or why_unreadable(x)


def _why_not_weight(x: Tensor, weight: Tensor | None) -> str | None:
    if weight is None:
        return None
    if (
        weight.dtype is x.dtype
        and weight.dim() == 1
        and weight.shape[0] == x.shape[-1]
        and weight.is_contiguous()
        and weight.is_cpu
    ):
        reason = None
    else:
        reason = why_not_weight(x, weight, {x.dtype, torch.float32})
    return reason or why_unreadable(weight)


def _rms_norm_guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    reason = _why_not("rms_norm", x) or _why_not_weight(x, weight)
    if reason is None and variance_size is not None and not 0 < variance_size <= x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if reason is None and row_strides(x) is None:
        return Reason.LAYOUT
    return reason


@rms_norm.provider("cpu", supported=supported, supports_args=_rms_norm_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    function, loops = _function("rms_norm", x.dtype), row_strides(x)
    assert function is not None
    assert loops is not None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    size = x.shape[-1]
    function(
        x.data_ptr(),
        _address(weight),
        out.data_ptr(),
        *loops,
        size,
        variance_size or size,
        epsilon,
        _kind(weight, offset, wide),
        _threads(x.numel(), loops[0] * loops[1]),
    )
    return out


def _norm_add_norm_guard(
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
) -> str | None:
    if (
        _plain(x)
        and residual.is_contiguous()
        and residual.is_cpu
        and residual.dtype is x.dtype
        and residual.shape == x.shape
        and x.numel()
        and readable(residual)
    ):
        return _why_not_weight(x, weight1) or _why_not_weight(x, weight2)
    reason = (
        _why_not("norm_add_norm", x)
        or why_not_residual(x, residual)
        or _why_not_weight(x, weight1)
        or _why_not_weight(x, weight2)
    )
    if reason is None and (single_stride(x) is None or single_stride(residual) is None):
        return Reason.LAYOUT
    return reason or why_unreadable(residual)


@norm_add_norm.provider("cpu", supported=supported, supports_args=_norm_add_norm_guard)
def _norm_add_norm(
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
    function = _function("norm_add_norm", x.dtype)
    assert function is not None
    size = x.shape[-1]
    if x.is_contiguous() and residual.is_contiguous():
        z, rows, stride, residual_stride = torch.empty_like(x), x.numel() // size, size, size
    else:
        found, of_residual = single_stride(x), single_stride(residual)
        assert found is not None
        assert of_residual is not None
        (rows, stride), (_, residual_stride) = found, of_residual
        z = torch.empty_like(x, memory_format=torch.contiguous_format)
    y = torch.empty_like(z)
    function(
        x.data_ptr(),
        residual.data_ptr(),
        _address(weight1),
        _address(weight2),
        z.data_ptr(),
        y.data_ptr(),
        rows,
        size,
        stride,
        residual_stride,
        epsilon1,
        epsilon2,
        _kind(weight1, offset1, wide1),
        _kind(weight2, offset2, wide2),
        round_norm,
        round_sum,
        _threads(x.numel(), rows),
    )
    return z, y


def _heads(x: Tensor) -> tuple[int, int, int, int] | None:
    """``[tokens, heads, head_dim]`` as (tokens, heads, token stride, head stride), or None."""
    if x.dim() != 3 or (x.shape[-1] > 1 and x.stride(-1) != 1):
        return None
    return x.shape[0], x.shape[1], x.stride(0), x.stride(1)


def _plain_heads(q: Tensor, k: Tensor) -> bool:
    """Whether ``q`` and ``k`` pass every check at once, as views of one qkv tensor do."""
    if not (q.dim() == 3 == k.dim() and q.is_cpu and k.is_cpu):
        return False
    of_q, of_k = q.numel(), k.numel()
    return (
        type(of_q) is int is type(of_k)
        and of_q > 0 < of_k
        and q.dtype is k.dtype
        and q.dtype in _PLAIN
        and q.shape[0] == k.shape[0]
        and q.shape[2] == k.shape[2]
        and q.stride(2) == 1 == k.stride(2)
        and readable(q)
        and readable(k)
    )


def _qk_norm_guard(
    q: Tensor,
    k: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor | None,
    epsilon: float,
    offset: bool = False,
    wide: bool = False,
    query_scale: float | None = None,
) -> str | None:
    if weight_q is None and weight_k is None and _plain_heads(q, k):
        return None
    if q.dim() != 3 or k.dim() != 3:
        return Reason.RANK
    if q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        return Reason.SIZE
    if q.dtype != k.dtype:
        return Reason.DTYPE
    if q.device != k.device:
        return Reason.DEVICE
    reason = (
        _why_not("qk_norm", q)
        or _why_not("qk_norm", k)
        or _why_not_weight(q, weight_q)
        or _why_not_weight(k, weight_k)
    )
    if reason is None and (_heads(q) is None or _heads(k) is None):
        return Reason.LAYOUT
    return reason


@qk_norm.provider("cpu", supported=supported, supports_args=_qk_norm_guard)
def _qk_norm(
    q: Tensor,
    k: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor | None,
    epsilon: float,
    offset: bool = False,
    wide: bool = False,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    function = _function("qk_norm", q.dtype)
    assert function is not None
    out_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    out_k = torch.empty_like(k, memory_format=torch.contiguous_format)
    tokens, size = q.shape[0], q.shape[-1]
    function(
        q.data_ptr(),
        k.data_ptr(),
        _address(weight_q),
        _address(weight_k),
        out_q.data_ptr(),
        out_k.data_ptr(),
        tokens,
        q.shape[1],
        k.shape[1],
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        size,
        epsilon,
        1.0 if query_scale is None else query_scale,
        _kind(weight_q, offset, wide),
        _kind(weight_k, offset, wide),
        query_scale is not None,
        _threads(q.numel() + k.numel(), tokens),
    )
    return out_q, out_k
