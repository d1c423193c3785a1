"""What the guards of the XPU Gemma dispatch cost, against vLLM 0.30's dispatch without them.

    python bench/guard.py [--source vllm==0.30.0] [--repeats 1001] [--calls 20] [--limit 1.1]

Three sides take turns within one process, so that all of them meet the same machine:

    upstream   GemmaRMSNorm.forward_xpu and its op, read from SOURCE when the benchmark runs
    ours       normport.layers.in_tree, the text that the backport patch contains
    unguarded  ours with every guard answering "yes" at once

Every side calls its own op of torch.ops, which calls the same stand-in for the XPU kernel: an op
with the kernel's schema whose implementation for the CPU does nothing. So the figures are the
host's share of a call, and the ratio is the worst case: any work in the kernel brings it
closer to 1. Times are the thread's CPU time and turns are short, because other work on the machine
would otherwise decide the outcome. The environment variables of vLLM are cached, as the engine
does before it serves. Outside of traced code ours calls the kernel's op directly, upstream through
an op of torch.ops.vllm: that saving is a part of the ratio.

Exits with 1 when the median ratio of a case is above the limit.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib.machinery
import json
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from normport.layers import in_tree
from normport.tools.errors import UserError
from normport.tools.sources import resolve

Norm = Callable[..., Any]
GUARDS = (
    "gemma_rms_norm_supported",
    "fused_add_gemma_rms_norm_supported",
)
# What overlaps or shares memory: answered "no" at once on the unguarded side.
FINDERS = ("_overlaps_itself", "_share_memory")
KERNELS = {
    "gemma_rms_norm": "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()",
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
}


def module(name: str, **names: object) -> types.ModuleType:
    """An empty module that ``import`` finds at its usual price."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == "vllm")
    vars(made).update(names)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made


def run_source(text: str, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(text, str(path), "exec"), names)
    return names


def pick(path: Path, *wanted: str) -> str:
    """The source of functions (``name``) and methods (``Class.name``) of a file, unindented."""
    text = path.read_text(encoding="utf-8")
    found = []
    for name in wanted:
        body: list[ast.stmt] = ast.parse(text).body
        for part in name.split("."):
            node = next((n for n in body if getattr(n, "name", None) == part), None)
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                raise UserError(f"{path} has no {name}; name a release from 0.30 on with --source")
            body = node.body
        assert isinstance(node, ast.FunctionDef)
        found.append(ast.unparse(node))
    return "\n".join(found)


def registrar(library: torch.library.Library) -> Callable[..., None]:
    """vLLM's direct_register_custom_op for a library of our own, on the CPU."""

    def register(
        op_name: str, op_func: Norm, mutates_args: list[str], fake_impl: Norm | None = None
    ) -> None:
        schema = torch.library.infer_schema(op_func, mutates_args=mutates_args)
        library.define(op_name + schema)
        library.impl(op_name, op_func, "CPU")

    return register


class Layer(torch.nn.Module):
    """What ``forward_xpu`` reads of a GemmaRMSNorm."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(hidden, dtype=dtype))
        self.variance_epsilon = 1e-6


def load_sides(root: Path, libraries: list[torch.library.Library]) -> dict[str, Norm]:
    """``forward_xpu`` of each side, its ops registered under a namespace of its own."""

    def library(namespace: str) -> torch.library.Library:
        libraries.append(torch.library.Library(namespace, "FRAGMENT"))
        return libraries[-1]

    kernels = library("_C")
    for name, schema in KERNELS.items():
        kernels.define(name + schema)
        kernels.impl(name, lambda *args: None, "CPU")

    module("vllm", __path__=[])
    envs = module("vllm.envs")
    envs_path = root / "vllm" / "envs.py"
    envs.__file__ = str(envs_path)
    run_source(envs_path.read_text(encoding="utf-8"), envs_path, vars(envs))
    # enable_envs_cache() does this too, and then reads every variable, some through other modules.
    vars(envs)["__getattr__"] = functools.cache(envs.__getattr__)
    module("vllm.ir")
    utils = module("vllm.utils.torch_utils") if module("vllm.utils") else None

    ours = Path(in_tree.__file__).parent
    sides: dict[str, Norm] = {}
    for side in ("ours", "unguarded"):
        assert utils is not None
        vars(utils)["direct_register_custom_op"] = registrar(library(side))
        ops = module("vllm._xpu_ops" if side == "ours" else f"vllm._xpu_ops_{side}")
        path = ours / "xpu_ops.py"
        run_source(path.read_text(encoding="utf-8"), path, vars(ops))
        ops.register_ops()
        if side == "unguarded":
            for guard in GUARDS:
                setattr(ops, guard, lambda *args: True)
            for finder in FINDERS:
                setattr(ops, finder, lambda *args: False)
        path = ours / "layernorm.py"
        text = path.read_text(encoding="utf-8").replace("torch.ops.vllm.", f"torch.ops.{side}.")
        if side == "unguarded":
            text = text.replace("import vllm._xpu_ops as", f"import vllm._xpu_ops_{side} as")
        sides[side] = run_source(text, path, {"__name__": side})["GemmaRMSNorm"].forward_xpu

    ops_path = root / "vllm" / "_xpu_ops.py"
    text = pick(ops_path, "_gemma_rms_norm_impl", "_fused_add_gemma_rms_norm_impl")
    names = run_source(text, ops_path, {"torch": torch})
    register = registrar(library("upstream"))
    register("xpu_gemma_rms_norm", names["_gemma_rms_norm_impl"], ["out"])
    register(
        "xpu_fused_add_gemma_rms_norm",
        names["_fused_add_gemma_rms_norm_impl"],
        ["input", "residual"],
    )
    path = root / "vllm" / "model_executor" / "layers" / "layernorm.py"
    text = pick(path, "GemmaRMSNorm.forward_xpu")
    text = text.replace("torch.ops.vllm.", "torch.ops.upstream.")
    sides["upstream"] = run_source(text, path, {"torch": torch})["forward_xpu"]
    return sides


def measure(
    sides: Mapping[str, Norm], args: tuple[Any, ...], repeats: int, calls: int
) -> dict[str, list[float]]:
    """Nanoseconds per call of every side, one figure per turn; who starts alternates."""
    figures: dict[str, list[float]] = {side: [] for side in sides}
    order = list(sides)
    for turn in range(-3, repeats):
        for side in order if turn % 2 else reversed(order):
            forward = sides[side]
            started = time.thread_time_ns()
            for _ in range(calls):
                forward(*args)
            spent = (time.thread_time_ns() - started) / calls
            if turn >= 0:
                figures[side].append(spent)
    return figures


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="vllm==0.30.0", help="release with forward_xpu")
    parser.add_argument("--hidden", type=int, default=6656)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1001)
    parser.add_argument("--calls", type=int, default=20, help="calls per turn")
    parser.add_argument("--limit", type=float, default=1.1, help="highest ratio that passes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.repeats < 2 or options.calls < 1:
        parser.error("--repeats must be at least 2 and --calls at least 1")
    tree = resolve(options.source, note=lambda text: print(text, file=sys.stderr))

    torch.set_num_threads(1)
    libraries: list[torch.library.Library] = []
    forwards = load_sides(tree.root, libraries)
    dtype = torch.bfloat16
    x = torch.randn(options.rows, options.hidden, dtype=dtype)
    cases = {"norm": (x,), "add and norm": (x, x.clone())}
    gc.disable()
    report: dict[str, Any] = {
        "upstream": tree.origin,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": options.rows,
        "hidden": options.hidden,
        "dtype": "bfloat16",
        "repeats": options.repeats,
        "calls": options.calls,
        "limit": options.limit,
        "cases": {},
    }
    with torch.no_grad():
        for case, args in cases.items():
            sides = {
                side: types.MethodType(forward, Layer(options.hidden, dtype))
                for side, forward in forwards.items()
            }
            figures = measure(sides, args, options.repeats, options.calls)
            pairs = zip(figures["ours"], figures["upstream"], strict=True)
            added = zip(figures["ours"], figures["unguarded"], strict=True)
            report["cases"][case] = {
                "ns_per_call": {side: quartiles(values) for side, values in figures.items()},
                "guard_ns": quartiles([a - b for a, b in added]),
                "ratio": quartiles([a / b for a, b in pairs]),
            }
    report["missed"] = [
        f"{case}: the guarded dispatch takes {found['ratio'][1]:.3f} times 0.30's, more than "
        f"{options.limit:g}"
        for case, found in report["cases"].items()
        if found["ratio"][1] > options.limit
    ]
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    return 1 if report["missed"] else 0


def print_report(report: Mapping[str, Any]) -> None:
    print(
        f"{report['rows']} x {report['hidden']} {report['dtype']}, torch {report['torch']}, "
        f"median [quartiles] of {report['repeats']} turns of {report['calls']} calls; "
        "the kernel is a stand-in that does nothing"
    )
    for case, found in report["cases"].items():
        print(f"{case}:")
        labels = {"upstream": f"{report['upstream']}", "ours": "ours", "unguarded": "no guards"}
        for side, label in labels.items():
            low, middle, high = found["ns_per_call"][side]
            print(f"  {label:<16} {middle:8.0f} ns/call   [{low:.0f}, {high:.0f}]")
        low, middle, high = found["guard_ns"]
        print(f"  {'guards add':<16} {middle:8.0f} ns/call   [{low:.0f}, {high:.0f}]")
        low, middle, high = found["ratio"]
        verdict = "within" if middle <= report["limit"] else "ABOVE"
        print(
            f"  {'ours/upstream':<16} {middle:8.3f}           [{low:.3f}, {high:.3f}]"
            f"   {verdict} {report['limit']}"
        )
    print(
        "eager calls with cached environment variables; ours calls the kernel's op directly, "
        "without the torch.ops.vllm layer that upstream goes through"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
