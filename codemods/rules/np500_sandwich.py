"""NP501 to NP506: ``norm(x) + residual``, which an opt-in pass makes one layer call."""

from __future__ import annotations

from normport.codemods.registry import Example, Rule, changed

_LAYER = """\
from torch import nn

from vllm.model_executor.layers.layernorm import GemmaRMSNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.post_norm = GemmaRMSNorm(config.hidden_size, eps=config.post_norm_eps)
        self.pre_norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.scale = config.scale

    def forward(self, x, residual):
        x = self.post_norm(x)
        x = residual + x
        residual = x
        x = self.pre_norm(x)
        return self.mlp(x), residual
"""
_CONVERTED = """\
from torch import nn

from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.layers.norm_add_norm import NormAddNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.post_norm = GemmaRMSNorm(config.hidden_size, eps=config.post_norm_eps)
        self.pre_norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm_add_norm = NormAddNorm()
        self.scale = config.scale

    def forward(self, x, residual):
        x, residual = self.norm_add_norm(x, residual, self.post_norm, self.pre_norm)
        return self.mlp(x), residual
"""
_SUM = "x = residual + x"
_NORM = "x = self.pre_norm(x)"


def _refusal(code: str, title: str, why: str, *examples: Example) -> Rule:
    return Rule(code=code, kind="refuse", title=title, why=why, examples=examples, part="sandwich")


RULES = (
    Rule(
        code="NP501",
        kind="convert",
        title="norm(x) + residual, then a norm: one call of NormAddNorm (opt-in)",
        why=(
            "Between two sub-layers of a sandwich-norm model three small ops follow each other: "
            "the norm of what the first gave, the sum with the residual, and the norm before the "
            "second. As one layer they can be one kernel. Natively the layer calls the two norms "
            "as before, with their own eps, weight and rounding, so nothing changes. It is not "
            "fused_add_rms_norm, which normalizes x + residual. `normport port "
            "--with-norm-add-norm` writes this as an optional patch, with the layer."
        ),
        examples=(
            Example(_LAYER, _CONVERTED),
            Example(
                changed(
                    _LAYER,
                    (
                        "x = self.post_norm(x)\n        x = residual + x",
                        "x = self.post_norm(self.attn(x)) + residual",
                    ),
                ).before,
                changed(
                    _CONVERTED,
                    ("(x, residual, self.post", "(\n            self.attn(x), residual, self.post"),
                    ("self.pre_norm)\n        return", "self.pre_norm\n        )\n        return"),
                ).before,
            ),
            Example(changed(_LAYER, (_SUM, "x = torch.add(residual, x)")).before, _CONVERTED),
            Example(changed(_LAYER, (_SUM, "x = residual.add(x)")).before, _CONVERTED),
            Example(
                changed(
                    _LAYER,
                    (
                        _NORM + "\n        return self.mlp(x), residual",
                        "x = self.mlp(self.pre_norm(x))\n        return x, residual",
                    ),
                ).before,
                changed(
                    _CONVERTED,
                    ("return self.mlp(x), residual", "x = self.mlp(x)\n        return x, residual"),
                ).before,
            ),
        ),
        part="sandwich",
    ),
    _refusal(
        "NP502",
        "more than the sum stands between the two norms",
        "A factor on the norm's result (as in hyperclovax), a third addend or a scaled sum (as in "
        "gemma3n) is a computation that norm_add_norm does not have; dropping it would change the "
        "model.",
        changed(_LAYER, (_SUM, "x = residual + x * self.scale")),
        changed(_LAYER, ("residual = x\n", "x = x * self.scale\n")),
        changed(_LAYER, (_SUM, "x += residual")),
        changed(_LAYER, (_SUM, "x = torch.add(residual, x, alpha=self.scale)")),
    ),
    _refusal(
        "NP503",
        "no norm follows the sum",
        "Models that norm only behind their sub-layers (olmo2, exaone4) give the sum to the next "
        "sub-layer as it is: there is no second norm to take in.",
        changed(_LAYER, (_NORM, "x = self.mlp(x)")),
    ),
    _refusal(
        "NP504",
        "a norm that is not always a standard layer of its class",
        "The layer calls the norms that it is given, so each must be an RMSNorm or GemmaRMSNorm "
        "that the class builds whatever its configuration. A model-local norm is converted first; "
        "LayerNorm subtracts a mean, which no kernel for this layer does.",
        changed(_LAYER, ("self.post_norm = GemmaRMSNorm(", "self.post_norm = LocalNorm(")),
        changed(
            _LAYER,
            (
                "        self.pre_norm = G",
                "        if config.pre_norm:\n            self.pre_norm = G",
            ),
        ),
    ),
    _refusal(
        "NP505",
        "other code stands between the norms, or uses what would no longer be there",
        "The three steps become one statement, so nothing may run between them, none may depend "
        "on a branch, and the first norm's result must not be read by anything but the sum. A sum "
        "that is written into a tensor (`add_`, `out=`) changes what others hold.",
        changed(_LAYER, (_SUM, "x = residual.add_(x)")),
        changed(_LAYER, (_SUM, "torch.add(residual, x, out=residual)")),
        changed(_LAYER, (_SUM, "print(x.shape)\n        " + _SUM)),
        changed(_LAYER, ("        " + _SUM, "        y = x\n        x = residual + x")),
        changed(
            _LAYER,
            (
                "        x = self.post_norm(x)",
                "        if self.scale:\n            x = self.post_norm(x)",
            ),
        ),
    ),
    _refusal(
        "NP506",
        "the sum leaves the layer: the next norm is another module's",
        "The last norm of one layer and the first of the next could run as one only if a layer "
        "handed on its result before the norm, or the norm of the next. Pipeline parallelism "
        "sends what a layer returns to another rank, and auxiliary hidden states (EAGLE) are read "
        "from it, so what it returns stays.",
        changed(_LAYER, (_NORM + "\n        return self.mlp(x), residual", "return x, residual")),
    ),
)
