"""What the backport adds to ``GemmaRMSNorm`` in vLLM's layernorm.py."""

from collections.abc import Callable

import torch

from vllm import envs


class GemmaRMSNorm(torch.nn.Module):
    """Stands for vLLM's class: the members that ``forward_xpu`` uses."""

    weight: torch.nn.Parameter
    variance_epsilon: float
    forward_native: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor]]

    def forward_xpu(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Use the Gemma kernels of vllm-xpu-kernels where they are right.

        Traced code only branches here on what the row count cannot change; the ops
        check the rest and compute natively where the kernel does not apply. With a
        residual, ``x`` and ``residual`` may be written in place: use what is returned.
        Traced code adds, then normalizes, and leaves its arguments alone.
        The fused kernel normalizes the rounded sum, the native path the unrounded one.
        """
        # Registers torch.ops.vllm.xpu_gemma_rms_norm; it imports on XPU only.
        import vllm._xpu_ops as _xpu_ops

        if not _xpu_ops.HAS_GEMMA_RMS_NORM:
            return self.forward_native(x, residual)

        weight = self.weight.data
        epsilon = self.variance_epsilon
        # Outside of traced code the op layer would only cost time.
        traced = torch.compiler.is_compiling()
        # The order of the kernels' reductions depends on the number of tokens.
        invariant = envs.VLLM_BATCH_INVARIANT
        if residual is None:
            if not invariant and _xpu_ops.gemma_rms_norm_supported(x, weight):
                # The kernel writes contiguous rows, whatever the strides of x.
                out = torch.empty_like(x, memory_format=torch.contiguous_format)
                if traced:
                    torch.ops.vllm.xpu_gemma_rms_norm(out, x, weight, epsilon)
                else:
                    _xpu_ops.gemma_rms_norm(out, x, weight, epsilon)
                return out
            return _xpu_ops.gemma_rms_norm_native(x, weight, epsilon)
        if traced:
            if not invariant and _xpu_ops.fused_add_gemma_rms_norm_traceable(
                x, residual, weight
            ):
                # The fused op works in place, and a graph keeps neither that its
                # arguments share memory nor that they do not. The sum is a new tensor,
                # rounded as the fused kernel rounds it.
                total = x + residual
                out = torch.empty_like(total, memory_format=torch.contiguous_format)
                torch.ops.vllm.xpu_gemma_rms_norm(out, total, weight, epsilon)
                return out, total
        elif not invariant and _xpu_ops.fused_add_gemma_rms_norm_supported(
            x, residual, weight
        ):
            torch.ops._C.fused_add_gemma_rms_norm.default(x, residual, weight, epsilon)
            return x, residual
        return _xpu_ops.fused_add_gemma_rms_norm_native(x, residual, weight, epsilon)
