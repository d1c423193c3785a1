"""Run one engine on the simulated XPU and write down its graphs and kernel calls, as JSON.

    python plugin_runner.py CHECKPOINT OUT (eager|compiled)

NORMPORT_SIMULATE=xpu-engine and the folder ``tests/simulated`` on PYTHONPATH make the platform.
A graph's record is what Inductor is handed: the operators left when vLLM's passes are through.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import xpu_kernels
from engine_runner import loaded_model, norms, register, shut_down

NEW_TOKENS = 4


def watch_graphs() -> list[dict[str, Any]]:
    from vllm.compilation.passes.inductor_pass import get_pass_context
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    seen: list[dict[str, Any]] = []
    run = PostGradPassManager.__call__

    def watched(self: Any, graph: Any) -> None:
        run(self, graph)
        span = get_pass_context().compile_range
        targets = Counter(str(node.target) for node in graph.nodes if node.op == "call_function")
        seen.append({"range": [span.start, span.end], "ops": targets})

    PostGradPassManager.__call__ = watched  # type: ignore[method-assign]
    return seen


def main() -> None:
    checkpoint, out, mode = sys.argv[1:]
    register()
    from vllm import LLM, SamplingParams

    graphs = watch_graphs()
    compiled = mode == "compiled"
    with loaded_model(Path(checkpoint)) as seen:
        llm = LLM(
            model=checkpoint,
            dtype="float16",
            enforce_eager=not compiled,
            max_model_len=128,
            max_num_seqs=4,
            max_num_batched_tokens=128,
            seed=0,
            enable_prefix_caching=False,
            disable_log_stats=True,
            skip_mm_profiling=True,
            compilation_config={"compile_sizes": [1]} if compiled else {},
        )
    config = llm.llm_engine.vllm_config
    from normport.layers import plugin

    xpu_kernels.calls.clear()
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    prompt = {"prompt_token_ids": [1, *range(4, 20)]}
    tokens = llm.generate([prompt], greedy, use_tqdm=False)[0].outputs[0].token_ids
    record = {
        "plugin": plugin.OUTCOME,
        "mode": config.compilation_config.mode.name,
        "priority": config.kernel_config.ir_op_priority.rms_norm,
        "fuse_norm_quant": config.compilation_config.pass_config.fuse_norm_quant,
        "norms": norms(seen["model"]),
        "graphs": graphs,
        "calls": Counter(xpu_kernels.calls),
        "tokens": list(tokens),
    }
    shut_down(llm)
    Path(out).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
