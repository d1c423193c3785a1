"""norm_add_norm and qk_norm on the CPU, against the chain of the model that is not ported.

    python bench/norms.py [--source vllm==0.29.0] [--rows 1 4 16 64 512] [--turns 41] [--threads 1]

Three sides take turns within one process, so that all of them meet the same machine:

    eager      MuseGlimmerRMSNorm of SOURCE, read when the benchmark runs, as its decoder calls it
    compiled   torch.compile of that chain, compiled anew for every shape (dynamic=False)
    ours       the ops of normport.kernels, with the choice of a provider

and a copy of as many bytes as the op has to move, whose time over ours is the share of the
memory-copy bandwidth that is reached. Ratios are taken turn by turn; medians and quartiles are
printed. The allocator keeps what is freed, for all sides: glibc's gives large tensors back to the
system now and again, and whichever side then asks for one pays for its pages, which is as much as
the op itself (tcmalloc, which vLLM preloads on CPUs, keeps them). With one thread
times are the thread's CPU time, because other work on the machine would otherwise decide the
outcome; with more they are wall time.

Exits with 1 when in a case the median of eager/ours is below 2, or that of compiled/ours is
below 0.95.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.qk_norm import qk_norm
from normport.tools.errors import UserError
from normport.tools.sources import resolve

HIDDEN, HEAD_DIM, QUERY_HEADS, KEY_HEADS = 6656, 128, 52, 4
OVER_EAGER, OVER_COMPILED = 2.0, 0.95
MODEL = "vllm/model_executor/models/muse_glimmer.py"
QUERY_SCALE = 0.37
Call = Callable[[], Any]


def local_norm(source: str) -> type[nn.Module]:
    """The class MuseGlimmerRMSNorm, cut out of SOURCE."""
    tree = resolve(source, note=lambda text: print(text, file=sys.stderr))
    path = tree.root / MODEL
    if not path.is_file():
        raise UserError(f"{source} has no {MODEL}; name a release from 0.29 on with --source")
    wanted = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "MuseGlimmerRMSNorm"
    ]
    if not wanted:
        raise UserError(f"{path} has no class MuseGlimmerRMSNorm")
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), names)
    found: type[nn.Module] = names["MuseGlimmerRMSNorm"]
    return found


def norm(local: type[nn.Module], dtype: torch.dtype, size: int | None, eps: float) -> nn.Module:
    if size is None:
        return local(eps=eps, with_scale=False)
    made = local(size, eps=eps, weight_offset=1).to(dtype)
    nn.init.normal_(made.weight, std=0.1)  # type: ignore[arg-type]
    return made


def sandwich(local: type[nn.Module], rows: int, dtype: torch.dtype) -> tuple[Call, Call, Call, int]:
    """(eager, compiled, ours, bytes to move) of norm, addition and norm."""
    post, pre = norm(local, dtype, HIDDEN, 1e-8), norm(local, dtype, HIDDEN, 1e-5)
    x, residual = torch.randn(rows, HIDDEN).to(dtype), torch.randn(rows, HIDDEN).to(dtype)
    weights = post.weight.data, pre.weight.data

    def chain(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y = residual + post(x)
        return pre(y), y

    compiled = torch.compile(chain, dynamic=False, fullgraph=True)
    return (
        lambda: chain(x, residual),
        lambda: compiled(x, residual),
        lambda: norm_add_norm(x, residual, *weights, 1e-8, 1e-5, True, True, True, True),
        4 * x.nbytes,
    )


def heads(local: type[nn.Module], rows: int, dtype: torch.dtype) -> tuple[Call, Call, Call, int]:
    """(eager, compiled, ours, bytes to move) of the norms of query and key heads."""
    layer = norm(local, dtype, None, 1e-5)
    sizes = [QUERY_HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM]
    qkv = torch.randn(rows, sum(sizes)).to(dtype)
    q, k, _ = qkv.split(sizes, dim=-1)

    def chain(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = layer(q.reshape(-1, QUERY_HEADS, HEAD_DIM)).reshape(-1, sizes[0]) * QUERY_SCALE
        return q, layer(k.reshape(-1, KEY_HEADS, HEAD_DIM)).reshape(-1, sizes[1])

    def ours() -> tuple[Tensor, Tensor]:
        heads_q, heads_k = q.unflatten(-1, (-1, HEAD_DIM)), k.unflatten(-1, (-1, HEAD_DIM))
        out_q, out_k = qk_norm(heads_q, heads_k, None, None, 1e-5, query_scale=QUERY_SCALE)
        return out_q.flatten(-2), out_k.flatten(-2)

    compiled = torch.compile(chain, dynamic=False, fullgraph=True)
    moved = 2 * (sizes[0] + sizes[1]) * rows * qkv.element_size()
    return lambda: chain(q, k), lambda: compiled(q, k), ours, moved


def keep_freed_memory() -> None:
    """Have glibc take no block from the system that it gives back; elsewhere nothing is done."""
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, most)
        mallopt(trim_threshold, most)


def copy_of(moved: int) -> Call:
    source, target = (
        torch.ones(moved // 2, dtype=torch.uint8),
        torch.empty(moved // 2, dtype=torch.uint8),
    )
    return lambda: target.copy_(source)


def measure(
    sides: dict[str, Call], turns: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Microseconds per call of each side, turn by turn; a turn takes some hundred microseconds."""
    calls = {}
    for name, side in sides.items():
        side()
        begin = clock()
        for _ in range(3):
            side()
        calls[name] = max(1, min(50, int(600e-6 / max(1e-9, (clock() - begin) / 3))))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, side in sides.items():
            begin = clock()
            for _ in range(calls[name]):
                side()
            found[name].append((clock() - begin) / calls[name] * 1e6)
    return found


def ratios(over: list[float], under: list[float]) -> list[float]:
    low, middle, high = statistics.quantiles(
        [a / max(b, 1e-9) for a, b in zip(over, under, strict=True)], n=4
    )
    return [round(value, 3) for value in (low, middle, high)]


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    local = local_norm(options.source)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    for name, make in (("norm_add_norm", sandwich), ("qk_norm", heads)):
        for dtype in (torch.float32, torch.bfloat16):
            for rows in options.rows:
                torch._dynamo.reset()
                eager, compiled, ours, moved = make(local, rows, dtype)
                sides = {"eager": eager, "compiled": compiled, "ours": ours, "copy": copy_of(moved)}
                times = measure(sides, options.turns, clock)
                yield {
                    "norm": name,
                    "dtype": str(dtype).removeprefix("torch."),
                    "rows": rows,
                    "us": {side: round(statistics.median(times[side]), 1) for side in sides},
                    "eager/ours": ratios(times["eager"], times["ours"]),
                    "compiled/ours": ratios(times["compiled"], times["ours"]),
                    "share of copy": ratios(times["copy"], times["ours"]),
                }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", default="vllm==0.29.0")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    found = []
    missed: list[str] = []
    if not options.json:
        print(
            f"torch {torch.__version__}, {options.threads} thread(s), hidden {HIDDEN}, head_dim "
            f"{HEAD_DIM} ({QUERY_HEADS} query and {KEY_HEADS} key heads), {options.turns} turns; "
            "us per call, ratios as median [quartiles]"
        )
        print("norm           dtype     rows    eager compiled     ours  eager/ours            "
              "compiled/ours         share of copy")  # fmt: skip
    with torch.inference_mode():
        for case in cases(options):
            found.append(case)
            bad = case["eager/ours"][1] < OVER_EAGER or case["compiled/ours"][1] < OVER_COMPILED
            if bad:
                missed.append(
                    f"{case['norm']} in {case['dtype']}, {case['rows']} rows: "
                    f"{case['eager/ours'][1]:.2f} times the eager chain (limit {OVER_EAGER:g}), "
                    f"{case['compiled/ours'][1]:.2f} times the compiled one "
                    f"(limit {OVER_COMPILED:g})"
                )
            if not options.json:
                times = case["us"]
                spread = "  ".join(
                    f"{middle:6.2f} [{low:.2f}, {high:.2f}]".ljust(20)
                    for low, middle, high in (
                        case["eager/ours"], case["compiled/ours"], case["share of copy"]
                    )
                )  # fmt: skip
                print(
                    f"{case['norm']:<14} {case['dtype']:<9} {case['rows']:>4} "
                    f"{times['eager']:8.1f} "
                    f"{times['compiled']:8.1f} {times['ours']:8.1f}  {spread}"
                    + ("  BELOW the limit" if bad else ""),
                    flush=True,
                )
    if options.json:
        report = {"torch": torch.__version__, "threads": options.threads, "cases": found}
        report |= {"turns": options.turns, "missed": missed}
        print(json.dumps(report, indent=2))
    else:
        print(
            f"limits: eager/ours {OVER_EAGER}, compiled/ours {OVER_COMPILED}; "
            + (f"missed in {len(missed)} cases" if missed else "held in every case")
        )
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
