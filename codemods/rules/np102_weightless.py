"""NP102: a norm without a weight is vLLM's ``RMSNorm(has_weight=False)``."""

from __future__ import annotations

from normport.codemods.model import Computes
from normport.codemods.registry import LAYERNORM, Example, NormSite, Rule, Target


def _applies(computes: Computes) -> bool:
    return computes.weight == "none"


def _target(site: NormSite, unsafe: bool) -> Target:
    text = f"RMSNorm({site.size}, eps={site.eps}, has_weight=False)"
    return Target("RMSNorm", text, {LAYERNORM: ("RMSNorm",)})


RULES = (
    Rule(
        code="NP102",
        kind="convert",
        title="model-local weightless norm: declare RMSNorm(has_weight=False)",
        why=(
            "A local class hides the norm from vLLM's per-device dispatch. RMSNorm with "
            "has_weight=False is bit-equal to a local weightless float32 norm and adds no "
            "checkpoint key. It needs the true size of the normalised dimension, because some "
            "out-of-tree platforms read the plain tensor that it keeps; the size is inferred from "
            "the data that flows into the norm, or given with --dim CLASS.attr=EXPR."
        ),
        examples=(
            Example(
                before="""\
import torch
from torch import nn


class PlainNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        self.q_norm = PlainNorm(eps=config.rms_norm_eps)

    def forward(self, q):
        q = q.reshape(-1, self.head_dim)
        return self.q_norm(q)
""",
                after="""\
from torch import nn

from vllm.model_executor.layers.layernorm import RMSNorm


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps, has_weight=False)

    def forward(self, q):
        q = q.reshape(-1, self.head_dim)
        return self.q_norm(q)
""",
            ),
        ),
        applies=_applies,
        target=_target,
    ),
)
