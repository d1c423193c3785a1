"""What the guarded IR providers add to an eager RMSNorm call on XPU, against vLLM without them.

    NORMPORT_SIMULATE=xpu PYTHONPATH=tests/simulated python bench/providers.py [--json]

Wants vLLM and the simulated XPU of the tests; vLLM's own messages go to stderr. Two sides take
turns in one process, through vLLM's own layer: the order of providers with ours first, and vLLM's
own, ``vllm_c, native``, which is what ``forward_xpu`` of 0.29 to 0.30 comes to. The kernel is a
stand-in that does nothing, so the figures are the host's share of a call and the ratio is the worst
case. The first and the third case are what the providers are for; in the others both are asked and
decline. Exits with 1 above ``--limit``.
"""

from __future__ import annotations

import argparse
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
from vllm.plugins import load_general_plugins

HIDDEN = 6656
OWN = ["vllm_c", "native"]
CASES = {
    "one float16 row": (torch.float16, True, (1, HIDDEN)),
    "one bfloat16 row": (torch.bfloat16, True, (1, HIDDEN)),
    "heads of one token": (torch.float16, False, (52, 128)),
    "64 float16 rows": (torch.float16, True, (64, HIDDEN)),
}


def measure(layer: RMSNorm, x: torch.Tensor, repeats: int, calls: int) -> dict[str, list[float]]:
    """Nanoseconds of the thread per call of both sides, one figure per turn."""
    ours = ir.ops.rms_norm.get_priority()
    figures: dict[str, list[float]] = {"ours": [], "vllm": []}
    for turn in range(-3, repeats):
        order = [("ours", ours), ("vllm", OWN)]
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
    config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    report: dict[str, Any] = {"repeats": options.repeats, "calls": options.calls, "cases": {}}
    gc.disable()
    with (
        set_current_vllm_config(config),
        config.kernel_config.ir_op_priority.set_priority(),
        ir.enable_torch_wrap(config.compilation_config.ir_enable_torch_wrap),
        torch.no_grad(),
    ):
        for case, (dtype, weighted, shape) in CASES.items():
            layer = RMSNorm(shape[-1], has_weight=weighted, dtype=dtype)
            figures = measure(
                layer, torch.zeros(shape, dtype=dtype), options.repeats, options.calls
            )
            pairs = list(zip(figures["ours"], figures["vllm"], strict=True))
            added = statistics.quantiles([a - b for a, b in pairs], n=4)
            ratio = statistics.quantiles([a / b for a, b in pairs], n=4)
            report["cases"][case] = {
                "ns": {side: round(statistics.median(times)) for side, times in figures.items()},
                "added_ns": [round(value) for value in added],
                "ratio": [round(value, 3) for value in ratio],
            }
            if not options.json:
                print(
                    f"{case:<20} adds {added[1]:6.0f} ns [{added[0]:.0f}, {added[2]:.0f}]; "
                    f"ratio {ratio[1]:.3f} [{ratio[0]:.3f}, {ratio[2]:.3f}]"
                )
    report["missed"] = [
        f"{case}: a call takes {found['ratio'][1]:.3f} times as long, more than {options.limit:g}"
        for case, found in report["cases"].items()
        if found["ratio"][1] > options.limit
    ]
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"MISSED: {sentence}" for sentence in report["missed"]))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
