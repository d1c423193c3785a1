"""NP104: ``x.to(w.dtype) * w`` is vLLM's plain ``RMSNorm``."""

from __future__ import annotations

from normport.codemods.model import Computes
from normport.codemods.registry import LAYERNORM, Example, NormSite, Rule, Target, starts_otherwise


def _applies(computes: Computes) -> bool:
    return computes.weight == "scale" and computes.multiply_in in ("weight dtype", "input dtype")


def _target(site: NormSite, unsafe: bool) -> Target:
    text = f"RMSNorm({site.size}, eps={site.eps})"
    reason = starts_otherwise(site.computes, "RMSNorm")
    return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",)}, reason)


RULES = (
    Rule(
        code="NP104",
        kind="convert",
        title="model-local norm that rounds before the multiply: declare RMSNorm",
        why=(
            "A local class hides the norm from vLLM's per-device dispatch. RMSNorm normalises in "
            "float32, rounds to the weight's dtype and multiplies there, which is what this class "
            "does by hand."
        ),
        examples=(
            Example(
                before="""\
import torch
from torch import nn


class LlamaStyleNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = LlamaStyleNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
""",
                after="""\
from torch import nn

from vllm.model_executor.layers.layernorm import RMSNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
""",
            ),
        ),
        applies=_applies,
        target=_target,
    ),
)
