"""NP100: the site already declares a standard layer."""

from __future__ import annotations

from normport.codemods.registry import Rule

RULES = (
    Rule(
        code="NP100",
        kind="done",
        title="a standard norm layer is declared",
        why=(
            "RMSNorm and GemmaRMSNorm of vllm.model_executor.layers.layernorm are CustomOps: vLLM "
            "picks their implementation per device. There is nothing to do."
        ),
        examples=(),
    ),
)
