"""Provider ``triton``: our Triton kernels, on any device that Triton has a backend for."""

from __future__ import annotations

import functools
import importlib.util
import os
from types import ModuleType

import torch
from torch import Tensor

from normport.kernels.guards import (
    FLOATS,
    row_strides,
    single_stride,
    why_not_input,
    why_not_residual,
    why_not_weight,
    why_unreadable,
)
from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.qk_norm import qk_norm
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

MAX_SIZE = 16384
"""Elements of the longest row that one program keeps in registers (64 KiB of float32)."""

MAX_PROGRAMS = 2**31 - 1
"""Programs along the first axis of a grid; CUDA's limit, the smallest of the backends'."""

MAX_HEADS = 65535
"""Programs along the second axis of a grid."""


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, as it does for tests on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _device_type() -> str | None:
    """The kind of device that Triton compiles for, or None."""
    if interpreted():
        return "cpu"
    from triton.runtime.driver import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        driver,
    )

    try:
        return str(driver.active.get_active_torch_device().type)
    except RuntimeError:  # no backend has a device here
        return None


def supported() -> str | None:
    """Whether Triton is installed and has a device."""
    if importlib.util.find_spec("triton") is None:
        return Reason.NOT_INSTALLED
    return None if _device_type() is not None else Reason.OTHER_PLATFORM


@functools.cache
def _kernels() -> ModuleType:
    from normport.kernels.providers import triton_kernels

    return triton_kernels


def _why_not(x: Tensor) -> str | None:
    reason = why_not_input(x)
    if reason is not None:
        return reason
    if x.shape[-1] > MAX_SIZE:
        return Reason.SIZE
    if x.numel() > MAX_PROGRAMS * x.shape[-1]:
        return Reason.ROWS
    if x.device.type != _device_type():
        return Reason.OTHER_PLATFORM
    return why_unreadable(x)


def _why_not_weight(x: Tensor, weight: Tensor | None) -> str | None:
    return why_not_weight(x, weight, FLOATS) or why_unreadable(weight)


def _rms_norm_guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    reason = _why_not(x) or _why_not_weight(x, weight)
    if reason is None and variance_size is not None and not 0 < variance_size <= x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if reason is None and row_strides(x) is None:
        return Reason.LAYOUT
    return reason


@rms_norm.provider("triton", supported=supported, supports_args=_rms_norm_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    loops = row_strides(x)
    assert loops is not None
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    measured = variance_size or x.shape[-1]
    _kernels().launch_rms_norm(x, weight, out, loops, measured, epsilon, offset, wide)
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
    reason = (
        _why_not(x)
        or why_not_residual(x, residual)
        or _why_not_weight(x, weight1)
        or _why_not_weight(x, weight2)
    )
    if reason is None and (single_stride(x) is None or single_stride(residual) is None):
        return Reason.LAYOUT
    return reason or why_unreadable(residual)


@norm_add_norm.provider("triton", supported=supported, supports_args=_norm_add_norm_guard)
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
    of_x, of_residual = single_stride(x), single_stride(residual)
    assert of_x is not None
    assert of_residual is not None
    z = torch.empty_like(x, memory_format=torch.contiguous_format)
    y = torch.empty_like(z)
    _kernels().launch_norm_add_norm(
        x,
        residual,
        weight1,
        weight2,
        z,
        y,
        of_x[0],
        of_x[1],
        of_residual[1],
        epsilon1,
        epsilon2,
        offset1=offset1,
        wide1=wide1,
        offset2=offset2,
        wide2=wide2,
        round_norm=round_norm,
        round_sum=round_sum,
    )
    return z, y


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
    if q.dim() != 3 or k.dim() != 3:
        return Reason.RANK
    if q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        return Reason.SIZE
    if q.dtype != k.dtype:
        return Reason.DTYPE
    if q.device != k.device:
        return Reason.DEVICE
    reason = (
        _why_not(q) or _why_not(k) or _why_not_weight(q, weight_q) or _why_not_weight(k, weight_k)
    )
    if reason is not None:
        return reason
    if q.shape[1] + k.shape[1] > MAX_HEADS:
        return Reason.ROWS
    if q.shape[-1] > 1 and (q.stride(-1) != 1 or k.stride(-1) != 1):
        return Reason.LAYOUT
    return None


@qk_norm.provider("triton", supported=supported, supports_args=_qk_norm_guard)
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
    out_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    out_k = torch.empty_like(k, memory_format=torch.contiguous_format)
    _kernels().launch_qk_norm(
        q, k, weight_q, weight_k, out_q, out_k, epsilon, offset, wide, query_scale
    )
    return out_q, out_k
