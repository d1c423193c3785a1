"""What the backport adds to ``vllm/_xpu_ops.py``."""

import math

import torch

from vllm import ir
from vllm.utils.torch_utils import direct_register_custom_op

# Older vllm-xpu-kernels releases lack the Gemma norms.
HAS_GEMMA_RMS_NORM = hasattr(torch.ops._C, "gemma_rms_norm") and hasattr(
    torch.ops._C, "fused_add_gemma_rms_norm"
)
# The most frequent one first, where a search ends soonest.
_GEMMA_RMS_NORM_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def gemma_rms_norm_native(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """``GemmaRMSNorm.forward_native``, past the IR's choice of provider.

    With a float32 input the ``vllm_c`` provider accepts the float32 ``weight + 1``
    and runs a kernel that has the very limits this is the fallback for.
    """
    native = ir.ops.rms_norm.impls["native"].impl_fn
    return native(x, weight.float() + 1.0, epsilon)


def fused_add_gemma_rms_norm_native(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``GemmaRMSNorm.forward_native`` with a residual, past the IR's choice too."""
    native = ir.ops.fused_add_rms_norm.impls["native"].impl_fn
    return native(x, residual, weight.float() + 1.0, epsilon)


def gemma_rms_norm_supported(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the Gemma kernels read rows like those of ``x`` correctly.

    Looks only at what the row count cannot change, so it may be called in traced
    code: vLLM drops Dynamo's guards, and a branch on the row count would freeze.
    Rows of one element are not supported: the kernel throws for some of their strides.
    """
    dtype = x.dtype
    return (
        dtype == weight.dtype
        and dtype in _GEMMA_RMS_NORM_DTYPES
        and 2 <= x.ndim <= 4
        and weight.ndim == 1
        and 1 < weight.numel() == x.shape[-1]
        and weight.is_contiguous()
    )


def fused_add_gemma_rms_norm_traceable(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> bool:
    """Whether traced code may leave the sum of both to ``xpu_gemma_rms_norm``.

    Looks only at what a graph fixes. Strides and shared memory do not matter to a sum.
    """
    return (
        residual.dtype == x.dtype
        and residual.shape == x.shape
        and residual.device == x.device
        and gemma_rms_norm_supported(x, weight)
    )


def fused_add_gemma_rms_norm_supported(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> bool:
    """Whether the fused kernel computes ``x`` and ``residual`` correctly.

    It walks both as dense rows, so all three must be contiguous, and no two may share
    memory; without tokens it fails. It is one expression with few calls because every
    decode step passes it hundreds of times.
    """
    dtype, shape = x.dtype, x.shape
    if not (
        dtype is weight.dtype
        and dtype is residual.dtype
        and dtype in _GEMMA_RMS_NORM_DTYPES
        and shape == residual.shape
        and (len(shape) == 2 or _steps_by_rows(x))
        and weight.ndim == 1
        and 1 < weight.numel() == shape[-1]
        and x.device == residual.device
        and x.is_contiguous()
        and residual.is_contiguous()
        and weight.is_contiguous()
    ):
        return False
    size, weight_size = x.nbytes, weight.nbytes
    at_x, at_residual = x.data_ptr(), residual.data_ptr()
    at_weight = weight.data_ptr()
    return (
        size > 0
        and (at_x + size <= at_residual or at_residual + size <= at_x)
        and (at_x + size <= at_weight or at_weight + weight_size <= at_x)
        and (at_residual + size <= at_weight or at_weight + weight_size <= at_residual)
    )


def _steps_by_rows(x: torch.Tensor) -> bool:
    """Whether the fused kernel finds the rows of ``x``, contiguous and of rank 3 or 4.

    It steps by ``stride(-2)``. For a dimension of size 1 that may be any number, since
    ``is_contiguous`` ignores it: e.g. after a transpose of (1, tokens, hidden). In rank
    2 it is then the stride of the only row, which is never taken.
    """
    if not 3 <= x.ndim <= 4:
        return False
    hidden = x.shape[-1]
    return x.stride(-2) == hidden or x.numel() == hidden


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie at one address, e.g. after ``expand``."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
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


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum(
        stride * (size - 1)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return (last + 1) * tensor.element_size()


def gemma_rms_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """Run the kernel into a new, contiguous ``out``, or the native norm.

    For arguments that ``gemma_rms_norm_supported`` accepts, outside of traced code.
    """
    if x.numel() == 0:
        return
    if _overlaps_itself(x) or _share_memory(x, weight):
        out.copy_(gemma_rms_norm_native(x, weight, epsilon))
    else:
        torch.ops._C.gemma_rms_norm.default(out, x, weight, epsilon)


def _xpu_gemma_rms_norm_impl(
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
) -> None:
    """Gemma RMS norm of the last dimension of ``input`` into ``out``.

    Args:
        out: as ``input`` in shape and dtype; contiguous for the kernel. [written]
        input: float16, bfloat16 or float32, 2 to 4 dimensions, may be strided.
        weight: (hidden,), the raw weight: the kernel adds the 1.
        epsilon: added to the mean of the squares.

    Whatever the kernel cannot take is computed natively, in here, so that the choice
    is made anew for every row count.
    """
    if input.numel() == 0:
        return
    if (
        gemma_rms_norm_supported(input, weight)
        and out.is_contiguous()
        and out.dtype == input.dtype
        and out.shape == input.shape
        and not _share_memory(out, input)
        and not _share_memory(out, weight)
    ):
        gemma_rms_norm(out, input, weight, epsilon)
    else:
        out.copy_(gemma_rms_norm_native(input, weight, epsilon))


def _xpu_gemma_rms_norm_fake(
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
) -> None:
    return


def _xpu_fused_add_gemma_rms_norm_impl(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
) -> None:
    """Gemma RMS norm of ``input + residual``, in place.

    Args:
        input: becomes the normalized sum. Contiguous for the kernel. [written]
        residual: as ``input``; becomes the sum, rounded. [written]
        weight: (hidden,), the raw weight: the kernel adds the 1.
        epsilon: added to the mean of the squares.

    The kernel normalizes the sum as it is stored, rounded to the dtype, where the
    native path normalizes the unrounded sum: in float16 and bfloat16 results may
    differ by a rounding step or two. That is accepted, as upstream accepts it.

    Raises:
        RuntimeError: the result cannot be written in place, because the residual has
            another shape or dtype or because memory is shared.
    """
    if input.numel() == 0:
        return
    if fused_add_gemma_rms_norm_supported(input, residual, weight):
        torch.ops._C.fused_add_gemma_rms_norm.default(input, residual, weight, epsilon)
        return
    if (
        residual.shape != input.shape
        or residual.dtype != input.dtype
        or _overlaps_itself(input)
        or _overlaps_itself(residual)
        or _share_memory(input, residual)
        or _share_memory(input, weight)
        or _share_memory(residual, weight)
    ):
        raise RuntimeError(
            "xpu_fused_add_gemma_rms_norm works in place: input and residual must "
            "have the same shape and dtype and share no memory; call "
            "GemmaRMSNorm.forward_native instead"
        )
    normalized, total = fused_add_gemma_rms_norm_native(
        input, residual, weight, epsilon
    )
    input.copy_(normalized)
    residual.copy_(total)


def _xpu_fused_add_gemma_rms_norm_fake(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
) -> None:
    return


def register_ops() -> None:
    if HAS_GEMMA_RMS_NORM:
        direct_register_custom_op(
            op_name="xpu_gemma_rms_norm",
            op_func=_xpu_gemma_rms_norm_impl,
            mutates_args=["out"],
            fake_impl=_xpu_gemma_rms_norm_fake,
        )

        direct_register_custom_op(
            op_name="xpu_fused_add_gemma_rms_norm",
            op_func=_xpu_fused_add_gemma_rms_norm_impl,
            mutates_args=["input", "residual"],
            fake_impl=_xpu_fused_add_gemma_rms_norm_fake,
        )
