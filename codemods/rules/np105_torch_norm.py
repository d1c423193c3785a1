"""NP105: ``torch.nn.RMSNorm`` is ``RMSNorm`` with a float32 weight, or without one."""

from __future__ import annotations

from normport.codemods.registry import LAYERNORM, Example, NormSite, Rule, Target

_SAFE = (
    "Bit-equal where the checkpoint's dtype is the run's dtype: torch.nn.RMSNorm multiplies in "
    "float32 and RMSNorm only with a float32 weight, so the weight is declared float32; fused "
    "kernels, which want the weight in the input's dtype, decline it (plain RMSNorm with --unsafe)."
)
_STORED = (
    "The weight is stored in float32 whatever the run's dtype, and so is this one: bit-equal for "
    "every checkpoint."
)
_UNSAFE = (
    "torch.nn.RMSNorm multiplies in float32 and rounds once; plain RMSNorm rounds before the "
    "multiply in bf16 and fp16, so some outputs differ by one rounding step."
)


def _target(site: NormSite, unsafe: bool) -> Target:
    if site.computes.weight == "none":
        text = f"RMSNorm({site.size}, eps={site.eps}, has_weight=False)"
        return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",)})
    if unsafe:
        text = f"RMSNorm({site.size}, eps={site.eps})"
        return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",)}, _UNSAFE)
    text = f"RMSNorm({site.size}, eps={site.eps}, dtype=torch.float32)"
    reason = _STORED if site.computes.weight_dtype == "float32" else _SAFE
    return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",), "torch": ()}, reason)


RULES = (
    Rule(
        code="NP105",
        kind="convert",
        title="torch.nn.RMSNorm: declare vLLM's RMSNorm",
        why=(
            "torch.nn.RMSNorm is no CustomOp, so vLLM does not dispatch it per device. It "
            "normalises and multiplies in float32 and rounds once, which RMSNorm does with a "
            "float32 weight. Without an eps it uses float32's machine epsilon, for bf16 and fp16 "
            "inputs too, so that is written out. elementwise_affine=False is has_weight=False."
        ),
        examples=(
            Example(
                before="""\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
""",
                after="""\
import torch
from torch import nn

from vllm.model_executor.layers.layernorm import RMSNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps, dtype=torch.float32
        )

    def forward(self, x):
        return self.norm(x)
""",
            ),
            Example(
                before="""\
from torch import nn


class Attention(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.q_norm = nn.RMSNorm([head_dim], elementwise_affine=False)

    def forward(self, q):
        return self.q_norm(q)
""",
                after="""\
from torch import nn

from vllm.model_executor.layers.layernorm import RMSNorm


class Attention(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.q_norm = RMSNorm(head_dim, eps=1.1920928955078125e-07, has_weight=False)

    def forward(self, q):
        return self.q_norm(q)
""",
            ),
        ),
        target=_target,
    ),
)
