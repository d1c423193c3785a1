"""What the norm-add-norm patch adds to vLLM's layernorm.py for the CPU."""

from collections.abc import Callable

import torch

from vllm import ir


class RMSNorm(torch.nn.Module):
    """Stands for vLLM's class: the members that ``forward_cpu`` uses."""

    weight: torch.Tensor
    pass_weight: bool
    variance_epsilon: float
    variance_size_override: int | None
    forward_native: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor]]

    def forward_cpu(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """What forward_native computes, in fewer calls: they are what a few rows cost.

        On the CPU ``torch.rms_norm`` is the chain of ops that is natively
        ``ir.ops.rms_norm``, for the dtypes that it widens to float32. Traced code is
        fused as it is; a subclass, and another implementation of the op, keep the
        native path.
        """
        weight = self.weight if self.pass_weight else None
        if (
            residual is not None
            or type(self) is not RMSNorm
            or self.variance_size_override is not None
            or x.dtype is torch.float64
            or (weight is not None and weight.dtype is not x.dtype)
            or torch.compiler.is_dynamo_compiling()
            or ir.ops.rms_norm.get_priority() != ["native"]
        ):
            return self.forward_native(x, residual)
        normed = torch.rms_norm(x, x.shape[-1:], None, self.variance_epsilon)
        return normed if weight is None else normed * weight.data


class GemmaRMSNorm(torch.nn.Module):
    """Stands for vLLM's class: the members that ``forward_cpu`` uses."""

    weight: torch.nn.Parameter
    variance_epsilon: float
    forward_native: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor]]

    def forward_cpu(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """What forward_native computes, in fewer calls; see ``RMSNorm.forward_cpu``."""
        if (
            residual is not None
            or type(self) is not GemmaRMSNorm
            or torch.compiler.is_dynamo_compiling()
            or ir.ops.rms_norm.get_priority() != ["native"]
        ):
            return self.forward_native(x, residual)
        weight = self.weight + _ONE
        normed = torch.rms_norm(x.float(), weight.shape, weight, self.variance_epsilon)
        return normed.type_as(x)


# Added to a narrower weight it makes a float32 sum, as widening the weight first does.
_ONE = torch.ones(1, dtype=torch.float32, device="cpu")
