# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The step between two sub-layers of a sandwich-norm model, as one layer."""

from typing import Any

import torch
import torch.nn as nn

from vllm import ir
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.layernorm import GemmaRMSNorm


@CustomOp.register("norm_add_norm")
class NormAddNorm(CustomOp):
    """``y = post_norm(x) + residual; z = pre_norm(y)``; returns ``(z, y)``.

    Not a fused add and norm: ``fused_add_rms_norm`` normalizes ``x + residual``. Each
    norm keeps its own eps, weight and rounding, and both round to the dtype of their
    input: the first before the sum, which is rounded before the second.

    The layer holds neither parameters nor the norms. They stay attributes of the model,
    under the names that checkpoints have, and are passed with each call. What is native
    is their two calls, so whatever they dispatch to is what runs; a platform's kernel
    comes in as its own class by ``CustomOp.register_oot``.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward_native(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        post_norm: nn.Module,
        pre_norm: nn.Module,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """PyTorch-native implementation equivalent to forward()."""
        y = post_norm(x) + residual
        return pre_norm(y), y

    def forward_cuda(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        post_norm: nn.Module,
        pre_norm: nn.Module,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_native(x, residual, post_norm, pre_norm)

    def forward_cpu(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        post_norm: nn.Module,
        pre_norm: nn.Module,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same results in fewer calls, whose overhead is what a norm of a few rows
        costs here. Traced code takes the native path and is fused; another
        implementation of the norms' op is called as it is."""
        if torch.compiler.is_dynamo_compiling() or (
            ir.ops.rms_norm.get_priority() != ["native"]
        ):
            return self.forward_native(x, residual, post_norm, pre_norm)
        y = _eager_norm(post_norm, x) + residual
        return _eager_norm(pre_norm, y), y


# Added to a narrower weight it makes a float32 sum, as widening the weight first does.
_ONE = torch.ones(1, dtype=torch.float32, device="cpu")


def _eager_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """``norm(x)``, for a plain GemmaRMSNorm without the layers above its arithmetic.

    On the CPU ``torch.rms_norm`` in float32 is the chain of ops that is natively
    ``ir.ops.rms_norm``. A norm that is something else or has hooks is called as it is.
    """
    if type(norm) is not GemmaRMSNorm or norm._forward_hooks or norm._forward_pre_hooks:
        return norm(x)
    weight = norm.weight + _ONE
    normed = torch.rms_norm(x.float(), weight.shape, weight, norm.variance_epsilon)
    return normed.type_as(x)
