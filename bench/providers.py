"""What the guarded IR providers add to a call of RMSNorm on XPU, against vLLM without them.

    NORMPORT_SIMULATE=xpu PYTHONPATH=tests/simulated python bench/providers.py [--json]

Wants vLLM and the simulated XPU of the tests; vLLM's own messages go to stderr. Two sides take
turns in one process, through vLLM's own layer: the order of providers that a configuration has
with the plug-in, and the platform's own. In eager mode these are one order, ``vllm_c, native``,
and a difference would be a fault. So it is in compile mode, unless a graph of one known size is
compiled (``compile_sizes=[1]``): then ours stand before ``native``. Inside of a graph the choice
is made when it is compiled and costs a call nothing; measured is a norm outside of any, e.g. of a
vision encoder. The kernel is a stand-in that does nothing, so its figures are the host's share of
a call; ``native`` does compute, on this CPU. Exits with 1 when an eager call is above ``--limit``;
the others have no limit, because what ``native`` takes here says nothing of a device.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import time
import warnings
from typing import Any

# Before vLLM is imported: it logs to stdout by default.
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

import torch
from vllm import ir
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins

HIDDEN = 6656
EAGER = ("eager", CompilationConfig(mode=0))
COMPILED = ("outside of a graph", CompilationConfig(mode=3, compile_sizes=[1]))
"""What the table calls it, and the configuration."""
CASES = [
    (EAGER, "one float16 row", torch.float16, True, (1, HIDDEN)),
    (EAGER, "one bfloat16 row", torch.bfloat16, True, (1, HIDDEN)),
    (EAGER, "heads of one token", torch.float16, False, (52, 128)),
    (EAGER, "64 float16 rows", torch.float16, True, (64, HIDDEN)),
    (COMPILED, "one float16 row", torch.float16, True, (1, HIDDEN)),
    (COMPILED, "one bfloat16 row", torch.bfloat16, True, (1, HIDDEN)),
    (COMPILED, "heads of one token", torch.float16, False, (52, 128)),
    (COMPILED, "two float16 rows", torch.float16, True, (2, HIDDEN)),
]


def measure(
    layer: RMSNorm, x: torch.Tensor, orders: dict[str, list[str]], repeats: int, calls: int
) -> dict[str, list[float]]:
    """Nanoseconds of the thread per call of both sides, one figure per turn."""
    figures: dict[str, list[float]] = {side: [] for side in orders}
    for turn in range(-3, repeats):
        order = list(orders.items())
        for side, priority in order if turn % 2 else reversed(order):
            with ir.ops.rms_norm.set_priority(priority):
                started = time.thread_time_ns()
                for _ in range(calls):
                    layer(x)
                spent = (time.thread_time_ns() - started) / calls
            if turn >= 0:
                figures[side].append(spent)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=501)
    parser.add_argument("--calls", type=int, default=20, help="calls per turn")
    parser.add_argument("--limit", type=float, default=1.1, help="highest ratio that passes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if os.environ.get("NORMPORT_SIMULATE") != "xpu":
        parser.error("set NORMPORT_SIMULATE=xpu and PYTHONPATH=tests/simulated")
    torch.set_num_threads(1)
    load_general_plugins()
    nothing = torch.library.Library("_C", "FRAGMENT")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        nothing.impl("rms_norm", lambda *args: None, "CPU", allow_override=True)
    report: dict[str, Any] = {"repeats": options.repeats, "calls": options.calls, "cases": {}}
    gc.disable()
    for (mode, compilation), sizes, dtype, weighted, shape in CASES:
        case = f"{mode}, {sizes}"
        config = VllmConfig(compilation_config=copy.deepcopy(compilation))
        orders = {
            "ours": list(config.kernel_config.ir_op_priority.rms_norm),
            "vllm": list(current_platform.get_default_ir_op_priority(config).rms_norm),
        }
        with (
            set_current_vllm_config(config),
            ir.enable_torch_wrap(config.compilation_config.ir_enable_torch_wrap),
            torch.no_grad(),
        ):
            layer = RMSNorm(shape[-1], has_weight=weighted, dtype=dtype)
            x = torch.zeros(shape, dtype=dtype)
            figures = measure(layer, x, orders, options.repeats, options.calls)
            pairs = list(zip(figures["ours"], figures["vllm"], strict=True))
            added = statistics.quantiles([a - b for a, b in pairs], n=4)
            ratio = statistics.quantiles([a / b for a, b in pairs], n=4)
            report["cases"][case] = {
                "orders": orders,
                "ns": {side: round(statistics.median(times)) for side, times in figures.items()},
                "added_ns": [round(value) for value in added],
                "ratio": [round(value, 3) for value in ratio],
            }
            if not options.json:
                print(
                    f"{case:<39} adds {added[1]:6.0f} ns [{added[0]:.0f}, {added[2]:.0f}]; "
                    f"ratio {ratio[1]:.3f} [{ratio[0]:.3f}, {ratio[2]:.3f}]"
                )
    report["missed"] = [
        f"{case}: a call takes {found['ratio'][1]:.3f} times as long, more than {options.limit:g}"
        for case, found in report["cases"].items()
        if case.startswith(EAGER[0]) and found["ratio"][1] > options.limit
    ]
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"MISSED: {sentence}" for sentence in report["missed"]))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
