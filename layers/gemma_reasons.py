"""Why the Gemma dispatch of XPU does not take its kernels, in words.

The dispatch itself only asks yes or no, once per layer and decode step. These functions ask the
same questions one by one, for ``normport doctor`` and for counting; the dispatch matrix of the
tests shows for every case that they and the dispatch decide alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normport.layers.in_tree import xpu_ops


def gemma_refused(x: Tensor, weight: Tensor) -> str | None:
    """Why ``_C.gemma_rms_norm`` is not run for ``x`` and the raw ``weight``, or None."""
    refused = _weight_refused(x, weight)
    if refused is not None:
        return refused
    if x.numel() == 0:
        return "no elements"
    if xpu_ops._overlaps_itself(x):
        return "input overlaps itself"
    if xpu_ops._share_memory(x, weight):
        return "input shares memory with the weight"
    return None


def fused_gemma_refused(x: Tensor, residual: Tensor, weight: Tensor) -> str | None:
    """Why ``_C.fused_add_gemma_rms_norm`` is not run, or None."""
    refused = _weight_refused(x, weight)
    if refused is not None:
        return refused
    if residual.dtype != x.dtype:
        return "residual of another dtype"
    if residual.shape != x.shape:
        return "residual of another shape"
    if residual.device != x.device:
        return "residual on another device"
    if not x.is_contiguous():
        return "input not contiguous"
    if not residual.is_contiguous():
        return "residual not contiguous"
    if x.numel() == 0:
        return "no elements"
    if x.ndim > 2 and not xpu_ops._steps_by_rows(x):
        return "rows not at their own distance"
    if _meet(x, residual):
        return "input and residual share memory"
    if _meet(x, weight) or _meet(residual, weight):
        return "input or residual shares memory with the weight"
    return None


def _weight_refused(x: Tensor, weight: Tensor) -> str | None:
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return "dtype without a kernel"
    if weight.dtype != x.dtype:
        return "weight of another dtype"
    if not 2 <= x.ndim <= 4:
        return "not 2-D to 4-D"
    if weight.ndim != 1 or weight.shape[0] != x.shape[-1]:
        return "weight of another shape"
    if weight.shape[0] < 2:
        return "rows of one element"
    if not weight.is_contiguous():
        return "weight not contiguous"
    return None


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors have an address in common."""
    at_a, at_b = a.data_ptr(), b.data_ptr()
    return at_a < at_b + b.nbytes and at_b < at_a + a.nbytes
