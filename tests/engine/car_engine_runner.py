"""Generate with vLLM's CPU engine, tensor parallel 2, compiled.

python car_engine_runner.py CHECKPOINT OUT.json [--off]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROMPT_LENGTHS = (2, 9, 15, 30)
NEW_TOKENS = 8


def main(checkpoint: str, out: str, *options: str) -> None:
    from vllm import LLM, SamplingParams

    compilation = {"pass_config": {"fuse_allreduce_rms": False}} if "--off" in options else {}
    llm = LLM(
        model=checkpoint,
        dtype="bfloat16",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        tensor_parallel_size=2,
        seed=0,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        compilation_config=compilation,
    )
    prompts = [
        {"prompt_token_ids": [1, *((7 * i + 13 * n) % 400 + 4 for i in range(length - 1))]}
        for n, length in enumerate(PROMPT_LENGTHS)
    ]
    sampling = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=3, detokenize=False
    )
    seen = []
    # One prompt after the other: its length alone decides the compile range of its prefill.
    for prompt in prompts:
        (done,) = llm.generate([prompt], sampling, use_tqdm=False)
        chosen = done.outputs[0]
        assert chosen.logprobs is not None
        seen.append(
            {
                "tokens": list(chosen.token_ids),
                "logprobs": [
                    step[token].logprob
                    for step, token in zip(chosen.logprobs, chosen.token_ids, strict=True)
                ],
            }
        )
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
