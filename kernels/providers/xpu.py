"""Provider ``xpu``: ``torch.ops._C`` of vllm-xpu-kernels.

What the kernels do, and the guards exclude, is known for release 0.1.14.1: they take float32,
float16 and bfloat16 of ranks 2 to 4 and a weight of the input's dtype, which they read as one dense
row; they copy an input whose rows are not dense; they have no guard for empty tensors. Since
August 2026 they multiply in float32 and round once, which vLLM accepts for a definition that rounds
twice (``vllm_c`` in ``vllm/kernels/vllm_c.py``), and so does this provider. The fused one
normalizes the rounded sum.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from normport.kernels.fused_add_rms_norm import fused_add_rms_norm
from normport.kernels.guards import (
    overlaps_itself,
    share_memory,
    why_not_input,
    why_not_residual,
    why_not_weight,
)
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm
from normport.kernels.schemas import XPU_SCHEMAS, why_not_registered

PACKAGE = "vllm_xpu_kernels"
NAMESPACE = "_C"
RANKS = range(2, 5)

_status: dict[str, str | None] = {}
"""What ``supported`` found out about each op."""


def why_not_loaded() -> str | None:
    """Import the package, which registers its ops; the reason if that fails."""
    if PACKAGE not in sys.modules and importlib.util.find_spec(PACKAGE) is None:
        return Reason.NOT_INSTALLED
    try:
        importlib.import_module(f"{PACKAGE}._C")
    except (ImportError, OSError):
        return Reason.CANNOT_LOAD
    return None


def _supported(name: str) -> str | None:
    for op in XPU_SCHEMAS:
        _status[op] = why_not_registered(op, NAMESPACE)
    # A process that has the ops has them, whichever package brought them.
    if _status[name] == Reason.OP_MISSING:
        reason = why_not_loaded()
        if reason is not None:
            return reason
        for op in XPU_SCHEMAS:
            _status[op] = why_not_registered(op, NAMESPACE)
    return _status[name]


def _op(name: str) -> Callable[..., None]:
    found: Callable[..., None] = getattr(getattr(torch.ops, NAMESPACE), name).default
    return found


def _rms_norm_supported() -> str | None:
    return _supported("rms_norm")


def _fused_add_rms_norm_supported() -> str | None:
    return _supported("fused_add_rms_norm")


def _why_not(
    x: Tensor,
    weight: Tensor | None,
    variance_size: int | None,
    offset: bool,
    wide: bool,
    gemma: str,
) -> str | None:
    reason: str | None = why_not_input(x, ranks=RANKS) or why_not_weight(x, weight)
    if reason is not None:
        return reason
    if variance_size is not None and variance_size != x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if offset and weight is not None:
        if not wide and x.dtype is not torch.float32:
            return Reason.ROUNDING
        if x.shape[-1] == 1:
            return Reason.SIZE
        if _status.get(gemma, Reason.OP_MISSING) is not None:
            return _status.get(gemma, Reason.OP_MISSING)
    if overlaps_itself(x):
        return Reason.OVERLAP
    if weight is not None and share_memory(x, weight):
        return Reason.SHARED
    return None


def _rms_norm_guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    return _why_not(x, weight, variance_size, offset, wide, "gemma_rms_norm")


@rms_norm.provider("xpu", supported=_rms_norm_supported, supports_args=_rms_norm_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if offset and weight is not None:
        _op("gemma_rms_norm")(out, x, weight, epsilon)
    else:
        _op("rms_norm")(out, x, weight, epsilon)
    return out


def _fused_add_rms_norm_guard(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    return why_not_residual(x, residual) or _why_not(
        x, weight, variance_size, offset, wide, "fused_add_gemma_rms_norm"
    )


@fused_add_rms_norm.provider(
    "xpu", supported=_fused_add_rms_norm_supported, supports_args=_fused_add_rms_norm_guard
)
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
    if offset and weight is not None:
        _op("fused_add_gemma_rms_norm")(out, total, weight, epsilon)
    else:
        _op("fused_add_rms_norm")(out, total, weight, epsilon)
    return out, total
