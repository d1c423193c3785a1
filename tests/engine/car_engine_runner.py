"""Runs of vLLM's CPU engine, tensor parallel 2, compiled; one after the other.

    python car_engine_runner.py HOME RUNS.json

RUNS is a list of {"name", "kind", "options"}; each run writes HOME/NAME/log and outputs.json, and
the ranks write into HOME/NAME/report. vLLM is imported once and the runs are forked, their ranks
too: importing it in every process would take longer than what is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tiny_qwen
import vllm
from vllm.v1.executor import multiproc_executor  # what a run would import first

PROMPT_LENGTHS = (2, 9, 15, 30)
NEW_TOKENS = 8
TIMEOUT_S = 600
"""Of one run; what a run takes on a machine without other work is in docs/car-rmsnorm.md."""

assert multiproc_executor


def generate(llm: Any) -> list[dict[str, Any]]:
    prompts = [
        {"prompt_token_ids": [1, *((7 * i + 13 * n) % 400 + 4 for i in range(length - 1))]}
        for n, length in enumerate(PROMPT_LENGTHS)
    ]
    sampling = vllm.SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=3, detokenize=False
    )
    seen = []
    # One prompt after the other: its length alone decides the compile range of its prefill.
    for prompt in prompts:
        (done,) = llm.generate([prompt], sampling, use_tqdm=False)
        chosen = done.outputs[0]
        assert chosen.logprobs is not None
        steps = list(zip(chosen.logprobs, chosen.token_ids, strict=True))
        seen.append(
            {
                "tokens": list(chosen.token_ids),
                "logprobs": [step[token].logprob for step, token in steps],
                "margins": [
                    step[token].logprob - max(v.logprob for t, v in step.items() if t != token)
                    for step, token in steps
                ],
            }
        )
    return seen


def start(checkpoint: Path, compilation: dict[str, Any]) -> Any:
    return vllm.LLM(
        model=str(checkpoint),
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


def run(home: Path, name: str, kind: str, options: dict[str, Any]) -> None:
    folder = home / name
    checkpoint = home / f"checkpoint-{kind}"
    if not checkpoint.exists():
        tiny_qwen.make(checkpoint, kind)
    os.environ["NORMPORT_CAR_REPORT"] = str(folder / "report")
    llm = start(checkpoint, options)
    (folder / "outputs.json").write_text(json.dumps(generate(llm)))


def forked(home: Path, job: dict[str, Any]) -> None:
    """One run in a process group of its own, so that nothing of it outlives its time."""
    folder = home / job["name"]
    folder.mkdir()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = 0
        try:
            run(home, **job)
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = None
    while status is None and time.monotonic() - began < TIMEOUT_S:
        ended, raw = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(raw)
        else:
            time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    seconds = time.monotonic() - began
    (folder / "ended.json").write_text(json.dumps({"status": status, "seconds": seconds}))


if __name__ == "__main__":
    for job in json.loads(Path(sys.argv[2]).read_text()):
        forked(Path(sys.argv[1]), job)
