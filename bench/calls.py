"""What one eager call of each norm costs on the CPU, as MuseGlimmer has it and after the patches.

    python bench/calls.py [--hidden 1024] [--rows 1] [--turns 401] [--json]

Wants vLLM 0.29.0 (``make test-env``). Three sides take turns in one process, through vLLM's layers
and configuration of eager mode:

    unported   MuseGlimmerRMSNorm of the installed vLLM
    ported     its RMSNorm and GemmaRMSNorm, as released
    chained    those with ``forward_cpu`` of the norm-add-norm patch, and NormAddNorm

This is the share of a decode step that bench/engine.py cannot resolve: there the matrices take
nearly all of the time. Times are the thread's CPU time; ratios are taken turn by turn. No limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

import torch
import vllm
from norms import local_norm
from vllm import ir
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import layernorm

from normport.layers.in_tree import cpu_layernorm, norm_add_norm

HEAD_DIM = 64
SIDES = ("unported", "ported", "chained")
Call = Callable[[], Any]


def patched(name: str) -> type[torch.nn.Module]:
    """vLLM's class with the method that the patch adds to it, in a class of its own."""
    base = getattr(layernorm, name)
    method = getattr(cpu_layernorm, name).forward_cpu
    # The method asks for its class by name, as it does within vLLM's module.
    names = {**vars(layernorm), "_ONE": cpu_layernorm._ONE}
    bound = FunctionType(method.__code__, names, "forward_cpu", method.__defaults__)
    made: type[torch.nn.Module] = type(name, (base,), {"forward_cpu": bound})
    names[name] = made
    return made


def calls(hidden: int, rows: int) -> dict[str, dict[str, Call]]:
    """What is called, by norm and side."""
    local = local_norm(str(Path(vllm.__file__).parent.parent))
    x, residual = torch.randn(rows, hidden), torch.randn(rows, hidden)
    heads = torch.randn(rows * hidden // HEAD_DIM, HEAD_DIM)
    classes = {
        "ported": (layernorm.RMSNorm, layernorm.GemmaRMSNorm),
        "chained": (patched("RMSNorm"), patched("GemmaRMSNorm")),
    }
    made: dict[str, tuple[Any, Any, Any]] = {
        "unported": (
            local(eps=1e-5, with_scale=False),
            local(hidden, eps=1e-8, weight_offset=1),
            local(hidden, eps=1e-5, weight_offset=1),
        )
    }
    for side, (plain, gemma) in classes.items():
        weightless = plain(HEAD_DIM, eps=1e-5, has_weight=False)
        made[side] = weightless, gemma(hidden, eps=1e-8), gemma(hidden, eps=1e-5)
    # It takes the classes that it knows for plain ones.
    vars(norm_add_norm)["GemmaRMSNorm"] = classes["chained"][1]
    step = norm_add_norm.NormAddNorm()
    found: dict[str, dict[str, Call]] = {"weightless": {}, "weight + 1": {}, "norm, add, norm": {}}
    for side, (qk, post, pre) in made.items():
        found["weightless"][side] = lambda norm=qk: norm(heads)
        found["weight + 1"][side] = lambda norm=post: norm(x)

        def chain(post: Any = post, pre: Any = pre) -> Any:
            y = residual + post(x)
            return pre(y), y

        found["norm, add, norm"][side] = chain
    _, post, pre = made["chained"]
    found["norm, add, norm"]["chained"] = lambda: step(x, residual, post, pre)
    return found


def measure(sides: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Microseconds per call of each side, turn by turn; who starts alternates."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(-5, turns):
        for side in sides if turn % 2 else reversed(sides):
            started = time.thread_time_ns()
            for _ in range(10):
                sides[side]()
            spent = (time.thread_time_ns() - started) / 10_000
            if turn >= 0:
                found[side].append(spent)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--turns", type=int, default=401)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    report: dict[str, Any] = {**vars(options), "dtype": "bfloat16", "cases": {}, "missed": []}
    torch.set_default_dtype(torch.bfloat16)
    gc.disable()
    with (
        set_current_vllm_config(config),
        config.kernel_config.ir_op_priority.set_priority(),
        ir.enable_torch_wrap(config.compilation_config.ir_enable_torch_wrap),
        torch.inference_mode(),
    ):
        for case, sides in calls(options.hidden, options.rows).items():
            times = measure(sides, options.turns)
            report["cases"][case] = {
                "us": {side: statistics.quantiles(times[side], n=4) for side in SIDES},
                "ratio": {
                    side: statistics.quantiles(
                        [a / b for a, b in zip(times[side], times["unported"], strict=True)], n=4
                    )
                    for side in SIDES
                },
            }
    if options.json:
        print(json.dumps(report, indent=2))
        return 0
    for case, one in report["cases"].items():
        for side in SIDES:
            low, middle, high = one["ratio"][side]
            print(
                f"{case:16}{side:10}{one['us'][side][1]:7.1f} us   "
                f"{middle:.3f} of unported [{low:.3f}, {high:.3f}]"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
