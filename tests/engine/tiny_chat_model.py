"""Write a random checkpoint with a tokenizer and a chat template, for serving benchmarks.

    python tiny_chat_model.py FOLDER [llama|gemma]

Its tokens are the bytes; what it says is noise. ``vllm bench serve`` needs the tokenizer and
``/v1/chat/completions`` the template.
"""

from __future__ import annotations

import sys
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "assistant:"
)


def main() -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = Path(sys.argv[1])
    kind = sys.argv[2] if len(sys.argv) > 2 else "llama"
    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
