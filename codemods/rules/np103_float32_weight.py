"""NP103: ``x * w`` multiplied in float32 is ``RMSNorm`` with a float32 weight."""

from __future__ import annotations

from normport.codemods.model import Computes
from normport.codemods.registry import LAYERNORM, Example, NormSite, Rule, Target, starts_otherwise

_SAFE = (
    "Bit-equal where the checkpoint's dtype is the run's dtype: RMSNorm rounds before it "
    "multiplies unless its weight is float32, so the weight is declared float32; fused kernels, "
    "which want the weight in the input's dtype, decline it (plain RMSNorm with --unsafe)."
)
_STORED = (
    "The local weight is stored in float32 whatever the run's dtype, and so is this one: "
    "bit-equal for every checkpoint."
)
_UNSAFE = (
    "The local class multiplies in float32 and rounds once; plain RMSNorm rounds before the "
    "multiply in bf16 and fp16, so some outputs differ by one rounding step."
)


def _applies(computes: Computes) -> bool:
    return computes.weight == "scale" and computes.multiply_in == "float32"


def _target(site: NormSite, unsafe: bool) -> Target:
    starts = starts_otherwise(site.computes, "RMSNorm")
    start = f" {starts}" if starts else ""
    if unsafe:
        text = f"RMSNorm({site.size}, eps={site.eps})"
        return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",)}, _UNSAFE + start)
    text = f"RMSNorm({site.size}, eps={site.eps}, dtype=torch.float32)"
    reason = _STORED if site.computes.weight_dtype == "float32" else _SAFE
    return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",), "torch": ()}, reason + start)


RULES = (
    Rule(
        code="NP103",
        kind="convert",
        title="model-local norm that multiplies in float32: declare RMSNorm(dtype=torch.float32)",
        why=(
            "A local class hides the norm from vLLM's per-device dispatch. RMSNorm casts to the "
            "weight's dtype before it multiplies; only with a float32 weight is that bit-equal to "
            "a local norm that multiplies in float32. A float32 checkpoint served in bf16 or fp16 "
            "is a case of its own: the local class rounds the weight on load, a float32 weight "
            "does not. With --unsafe plain RMSNorm is declared, which fused kernels accept and "
            "which differs in bf16 and fp16 by one rounding step in about a quarter of outputs."
        ),
        examples=(
            Example(
                before="""\
import torch
from torch import nn


class ScaleNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).type_as(x)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = ScaleNorm(config.hidden_size)

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
        self.norm = RMSNorm(config.hidden_size, eps=1e-6, dtype=torch.float32)

    def forward(self, x):
        return self.norm(x)
""",
            ),
        ),
        applies=_applies,
        target=_target,
    ),
)
