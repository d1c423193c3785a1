"""NP101: ``x * (1 + w)`` multiplied in float32 is vLLM's ``GemmaRMSNorm``."""

from __future__ import annotations

from normport.codemods.model import Computes
from normport.codemods.registry import LAYERNORM, Example, NormSite, Rule, Target, starts_otherwise


def _applies(computes: Computes) -> bool:
    return (
        computes.weight == "offset" and computes.offset == 1.0 and computes.multiply_in == "float32"
    )


def _target(site: NormSite, unsafe: bool) -> Target:
    reason = starts_otherwise(site.computes, "GemmaRMSNorm")
    text = f"GemmaRMSNorm({site.size}, eps={site.eps})"
    return Target("GemmaRMSNorm", text, {LAYERNORM: ("GemmaRMSNorm",)}, reason)


RULES = (
    Rule(
        code="NP101",
        kind="convert",
        title="model-local norm with an offset weight: declare GemmaRMSNorm",
        why=(
            "A local class hides the norm from vLLM's per-device dispatch. GemmaRMSNorm multiplies "
            "by weight.float() + 1.0 in float32 and rounds once, which is bit-equal to a local "
            "float32 (1 + w) norm, and keeps the parameter name `weight`."
        ),
        examples=(
            Example(
                before="""\
import torch
from torch import nn


class OffsetNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1 + self.weight.float())).type_as(x)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
""",
                after="""\
from torch import nn

from vllm.model_executor.layers.layernorm import GemmaRMSNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
""",
            ),
        ),
        applies=_applies,
        target=_target,
    ),
)
