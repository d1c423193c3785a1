"""Write MuseGlimmer checkpoints small enough for a CPU, with random weights.

    python tiny_muse_glimmer.py FOLDER

One checkpoint per entry of ``CHECKPOINTS`` goes into FOLDER, under its name.

Keys are the canonical ones of the model's Hugging Face export (``model.language_model.*``,
``model.vision_tower.*``); the configuration keeps what the norms depend on: two different eps
around the sandwich norms, offset-one weights there, a plain scale at the end, one layer with
rotary positions and a sliding window, one without. The same arguments give the same bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CHECKPOINTS = {
    "float32": ("float32", False),
    "bfloat16": ("bfloat16", False),
    "float16": ("float16", False),
    "vision": ("bfloat16", True),
}
"""Name -> the dtype, and whether it has the vision tower."""

LAYERS = 2
HIDDEN = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
INTERMEDIATE = 384
VOCABULARY = 512

VISION_LAYERS = 2
VISION_HIDDEN = 64
VISION_INTERMEDIATE = 128
PATCH = 14
PATCH_FRAMES = 2
MERGE = 2
GRID = 4
ADAPTER = 96

SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
MEDIA_TOKENS = (
    "<|image_start|>",
    "<|image_end|>",
    "<|vid_start|>",
    "<|vid_end|>",
    "<|vid_frame_separator|>",
    "<|image|>",
    "<|video|>",
    "<|patch|>",
)
VIDEO_TOKEN_ID = VOCABULARY - 2
IMAGE_TOKEN_ID = VOCABULARY - 1

Draw = Callable[..., "torch.Tensor"]


def text_config() -> dict[str, Any]:
    return {
        "model_type": "muse_glimmer_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_activation": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "post_norm_eps": 1e-8,
        "sliding_window": 32,
        # 1: rotary positions and sliding window, 0: neither.
        "no_rope_layers": [1, 0],
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.196,
        "final_logit_softcapping": 20.0,
        "normalize_tok_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def vision_config() -> dict[str, Any]:
    return {
        "model_type": "muse_glimmer_vision",
        "patch_size": PATCH,
        "patch_temporal": PATCH_FRAMES,
        "pos_emb_height": GRID,
        "pos_emb_width": GRID,
        "max_position_embeddings": GRID * GRID,
        "num_attention_heads": 2,
        "num_hidden_layers": VISION_LAYERS,
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_INTERMEDIATE,
        "merge_kernel_size": MERGE,
        "output_dim": VISION_HIDDEN * MERGE**2,
        "adapter_dim": ADAPTER,
        "layer_types": ["sliding_attention", "full_attention"],
    }


def text_tensors(draw: Draw) -> dict[str, torch.Tensor]:
    root = "model.language_model."
    tensors = {root + "embed_tokens.weight": draw(VOCABULARY, HIDDEN, spread=0.05)}
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "self_attn.gate_proj": (HEADS * HEAD_DIM, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            tensors[f"{root}layers.{layer}.{name}.weight"] = draw(*shape)
        for name in SANDWICH:
            tensors[f"{root}layers.{layer}.{name}.weight"] = draw(HIDDEN, spread=0.3)
    tensors[root + "norm.weight"] = draw(HIDDEN, spread=0.3, around=1.0)
    tensors["lm_head.weight"] = draw(VOCABULARY, HIDDEN, spread=0.2)
    return tensors


def vision_tensors(draw: Draw) -> dict[str, torch.Tensor]:
    root = "model.vision_tower."
    patch = PATCH_FRAMES * 3 * PATCH**2
    size, inner = VISION_HIDDEN, VISION_INTERMEDIATE
    tensors = {
        root + "patch_embedder.patch_embedding.weight": draw(size, patch),
        root + "patch_embedder.position_embedding_table.weight": draw(GRID**2, size, spread=0.1),
        "model.vision_adapter.fc1.weight": draw(ADAPTER, size * MERGE**2),
        "model.vision_adapter.fc2.weight": draw(ADAPTER, ADAPTER),
        "model.vision_projection.weight": draw(HIDDEN, ADAPTER),
    }
    norms = ["ln_pre", "ln_post"]
    for layer in range(VISION_LAYERS):
        at = f"layers.{layer}."
        norms += [at + "norm1", at + "norm2"]
        for name, rows, columns in (
            ("attn.q_proj", size, size),
            ("attn.k_proj", size, size),
            ("attn.v_proj", size, size),
            ("attn.proj", size, size),
            ("mlp.fc1", inner, size),
            ("mlp.fc2", size, inner),
        ):
            tensors[f"{root}{at}{name}.weight"] = draw(rows, columns)
            tensors[f"{root}{at}{name}.bias"] = draw(rows, spread=0.1)
    for name in norms:
        tensors[f"{root}{name}.weight"] = draw(size, spread=0.1, around=1.0)
        tensors[f"{root}{name}.bias"] = draw(size, spread=0.1)
    return tensors


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer: only the ids of the media tokens matter, prompts come as ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words = [f"w{number}" for number in range(VOCABULARY - len(special) - len(MEDIA_TOKENS))]
    ids = {word: number for number, word in enumerate([*special, *words, *MEDIA_TOKENS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*special, *MEDIA_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(folder: Path, dtype: str, *, vision: bool) -> None:
    """Write the checkpoint into ``folder``; ``dtype`` is a torch dtype's name, e.g. ``float16``."""
    # Here, because the tests read this module's constants where torch may be missing.
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, spread: float | None = None, around: float = 0.0) -> torch.Tensor:
        scale = shape[-1] ** -0.5 if spread is None else spread
        return (around + scale * torch.randn(*shape, generator=generator)).to(getattr(torch, dtype))

    tensors = text_tensors(draw) | (vision_tensors(draw) if vision else {})
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config: dict[str, Any] = {
        "architectures": ["MuseGlimmerForCausalLM"],
        "model_type": "muse_glimmer",
        "has_vision": vision,
        "dtype": dtype,
        "tie_word_embeddings": False,
        "image_token_id": IMAGE_TOKEN_ID,
        "video_token_id": VIDEO_TOKEN_ID,
        "text_config": text_config(),
    }
    if vision:
        config["vision_config"] = vision_config()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)


def main() -> None:
    for name, (dtype, vision) in CHECKPOINTS.items():
        write(Path(sys.argv[1]) / name, dtype, vision=vision)


if __name__ == "__main__":
    main()
