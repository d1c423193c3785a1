"""Tiny random Qwen3.5 checkpoints, dense and mixture of experts, text only.

python tiny_qwen.py FOLDER dense|moe
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

HIDDEN = 64
LAYERS = 2
HEAD_SCALE = 1 / 16
"""The leading logit is about ``HIDDEN * HEAD_SCALE``, and the others about a tenth of it."""
EPS = 0.125
COMMON = {
    "vocab_size": 512,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    # The CPU kernel of the linear attention takes no small ones.
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 512,
    # Far larger than a real one: with 1e-6 a norm that took another eps would give the same.
    "rms_norm_eps": EPS,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make(folder: Path, kind: str) -> Path:
    """Write a checkpoint whose next token is clear, and whose logprobs are not.

    A head of random rows has many logits that lie closer together than bfloat16 tells them apart.
    Here row ``(3 t + 7) % vocab`` of the head is the embedding of ``t``, scaled down: after ``t``
    that token leads by far more than a rounding, by how much depends on every layer, and its
    probability is far from 1, where a logprob would hide a change.
    """
    from transformers import (
        Qwen3_5ForCausalLM,
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig,
        Qwen3_5TextConfig,
    )

    torch.manual_seed(11)
    if kind == "dense":
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**COMMON, intermediate_size=128))
    else:
        config = Qwen3_5MoeTextConfig(
            **COMMON,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=2,
        )
        model = Qwen3_5MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        embedding = model.get_input_embeddings().weight.normal_()
        following = (3 * torch.arange(COMMON["vocab_size"]) + 7) % COMMON["vocab_size"]
        model.lm_head.weight[following] = embedding * HEAD_SCALE
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
