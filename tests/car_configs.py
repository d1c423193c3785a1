"""Model configs as their checkpoints carry them, cut to the fields that say which model it is."""

from __future__ import annotations

import copy
from typing import Any

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CT_FP8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
}
CT_INT8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
}


def dense(**text: Any) -> dict[str, Any]:
    """The 27B: a multimodal wrapper around its text model."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "num_attention_heads": 24,
            "dtype": "bfloat16",
            **text,
        },
        "vision_config": {"model_type": "qwen3_5", "hidden_size": 1152},
    }


def moe(**text: Any) -> dict[str, Any]:
    """The 35B-A3B."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "dtype": "bfloat16",
            **text,
        },
        "vision_config": {"model_type": "qwen3_5_moe", "hidden_size": 1152},
    }


def text_only(config: dict[str, Any]) -> dict[str, Any]:
    """The text model alone, as a text-only checkpoint holds it."""
    return copy.deepcopy(config["text_config"])


def quantized(config: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    return {**config, "quantization_config": how}
