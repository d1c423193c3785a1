"""Runs of vLLM's CPU engine with several ranks, one after the other.

    python car_engine_runner.py HOME JOBS.json

JOBS is a list of ``car_engine.job``; each run writes log, outputs.json and ended.json into
HOME/NAME, and its ranks write into HOME/NAME/report. vLLM is imported once and the runs are forked,
their ranks too: importing it in every process would take longer than what is run.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tiny_qwen
import vllm
from vllm.model_executor.models import ModelRegistry, qwen3_5
from vllm.v1.executor import multiproc_executor  # what every run would import first

PROMPT_LENGTHS = (2, 9, 15, 30)
NEW_TOKENS = 8
TIMEOUT_S = 900
"""Of one run, on a busy machine; what they take on another one is in docs/car-rmsnorm.md."""

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
        steps = [{str(t): entry.logprob for t, entry in step.items()} for step in chosen.logprobs]
        seen.append({"tokens": list(chosen.token_ids), "logprobs": steps})
    return seen


def kill_a_rank(llm: Any) -> None:
    """Generate again after the last rank died; the engine has to end with an error."""
    ranks = [p for p in multiprocessing.active_children() if p.name.startswith("VllmWorker")]
    os.kill(max(ranks, key=lambda process: process.name).pid or 0, signal.SIGKILL)
    generate(llm)
    print("the engine generated without one of its ranks", flush=True)


def run(home: Path, name: str, kind: str, then: str, options: dict[str, Any]) -> None:
    folder = home / name
    checkpoint = home / f"checkpoint-{kind}"
    if not checkpoint.exists():
        tiny_qwen.make(checkpoint, kind)
    os.environ["NORMPORT_CAR_REPORT"] = str(folder / "report")
    if then == "uneven":
        os.environ["NORMPORT_CAR_UNEVEN"] = "1"
    llm = vllm.LLM(
        model=str(checkpoint),
        dtype="bfloat16",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        seed=0,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        **({"tensor_parallel_size": 2} | options),
    )
    (folder / "outputs.json").write_text(json.dumps(generate(llm)))
    if then == "kill":
        kill_a_rank(llm)


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
    ended = None
    while ended is None and time.monotonic() - began < TIMEOUT_S:
        pid, raw = os.waitpid(child, os.WNOHANG)
        if pid:
            ended = os.waitstatus_to_exitcode(raw)
        else:
            time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended is None:
        os.waitpid(child, 0)
    seconds = round(time.monotonic() - began, 1)
    (folder / "ended.json").write_text(json.dumps({"status": ended, "seconds": seconds}))


if __name__ == "__main__":
    # By class, or vLLM would import itself once more, in a process that looks at the class.
    for model in (qwen3_5.Qwen3_5ForCausalLM, qwen3_5.Qwen3_5MoeForCausalLM):
        ModelRegistry.register_model(model.__name__, model)
    for job in json.loads(Path(sys.argv[2]).read_text()):
        forked(Path(sys.argv[1]), job)
