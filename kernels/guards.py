"""Predicates that the providers' guards are made of. Each gives the reason against, or None.

They look at metadata only, and at addresses only of tensors that are on a device. A size that is
symbolic is never compared, because a comparison would specialize the graph that is being traced.
"""

from __future__ import annotations

import math
from collections.abc import Container

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from normport.kernels.reasons import Reason

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""The dtypes that the kernels of all devices are written for."""


def symbolic(x: Tensor) -> bool:
    """Whether a size of ``x`` is not a plain number yet."""
    return any(not isinstance(size, int) for size in x.shape)


def why_not_input(
    x: Tensor,
    dtypes: Container[torch.dtype] = FLOATS,
    ranks: Container[int] = range(1, 1 << 16),
) -> Reason | None:
    """Against an input that is symbolic, empty, or of another dtype or rank."""
    if x.dtype not in dtypes:
        return Reason.DTYPE
    if x.dim() not in ranks:
        return Reason.RANK
    if symbolic(x):
        return Reason.SYMBOLIC
    if x.numel() == 0:
        return Reason.EMPTY
    return None


def why_not_weight(
    x: Tensor, weight: Tensor | None, dtypes: Container[torch.dtype] | None = None
) -> Reason | None:
    """Against a weight that is not one contiguous row on the input's device.

    dtypes: what it may have; None: only the input's.
    """
    if weight is None:
        return None
    if weight.dtype not in dtypes if dtypes is not None else weight.dtype != x.dtype:
        return Reason.WEIGHT_DTYPE
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        return Reason.WEIGHT_SHAPE
    if not weight.is_contiguous():
        return Reason.WEIGHT_LAYOUT
    if weight.device != x.device:
        return Reason.DEVICE
    return None


def why_not_residual(x: Tensor, residual: Tensor) -> Reason | None:
    """Against a residual of another shape, dtype or device than the input."""
    if residual.dtype != x.dtype or residual.shape != x.shape or residual.device != x.device:
        return Reason.RESIDUAL
    return None


def readable(x: Tensor) -> bool:
    """Whether the values of ``x`` are what lies at its address.

    Asked by kernels that are handed addresses; the others get the values through PyTorch. Not so
    for a view that negates, and for a subclass that holds its values in other tensors.
    """
    if x.is_neg():
        return False
    kind = type(x)
    if kind is Tensor or kind is torch.nn.Parameter:
        return True
    return not isinstance(x, FakeTensor) and x.data_ptr() != 0


def why_unreadable(x: Tensor | None) -> Reason | None:
    """Why a kernel that is handed addresses cannot read a tensor, if there is one."""
    return None if x is None or readable(x) else Reason.NO_MEMORY


def row_strides(x: Tensor) -> tuple[int, int, int, int] | None:
    """``x`` as two nested loops over rows: (outer, inner, outer stride, inner stride).

    Strides are in elements. None: the elements of a row are not neighbors, or it takes more loops.
    """
    size = x.shape[-1]
    if x.is_contiguous():
        return 1, x.numel() // size, 0, size
    if x.dim() > 3 or (size > 1 and x.stride(-1) != 1):
        return None
    if x.dim() == 2:
        return 1, x.shape[0], 0, x.stride(0)
    if x.dim() == 3:
        return x.shape[0], x.shape[1], x.stride(0), x.stride(1)
    return None


def single_stride(x: Tensor) -> tuple[int, int] | None:
    """``x`` as one loop over rows, (rows, stride of a row), or None where it takes more."""
    found = row_strides(x)
    if found is None:
        return None
    outer, inner, outer_stride, inner_stride = found
    if outer == 1:
        return inner, inner_stride
    if inner == 1:
        return outer, outer_stride
    return (outer * inner, inner_stride) if outer_stride == inner * inner_stride else None


def overlaps_itself(x: Tensor) -> bool:
    """Whether two elements may lie at one address, e.g. after ``expand``."""
    if x.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors that are not empty may have an address in common."""
    at_a, at_b = a.data_ptr(), b.data_ptr()
    if at_a >= at_b + _extent(b) or at_b >= at_a + _extent(a):
        return False
    if a.dtype != b.dtype or a.stride(-1) != 1 or b.stride(-1) != 1:
        return True
    # Slices of the columns of one buffer interleave without sharing anything.
    pitch = math.gcd(*a.stride()[:-1], *b.stride()[:-1])
    offset = (at_b - at_a) // a.element_size() % pitch if pitch else 0
    return offset < a.shape[-1] or pitch - offset < b.shape[-1]


def _extent(x: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if x.is_contiguous():
        return x.nbytes
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return (last + 1) * x.element_size()
