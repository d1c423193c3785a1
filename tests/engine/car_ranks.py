"""Real ranks over gloo: the ops, the groups, a rank that dies, ranks that disagree.

    python car_ranks.py OUT.json

Everything is imported once and the ranks are forked; each scenario writes what its ranks saw. The
tests draw the conclusions.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from car_graphs import HIDDEN, Graph
from torch import fx
from vllm import ir
from vllm.compilation.passes.inductor_pass import pass_context
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.utils import Range
from vllm.distributed import (
    get_pp_group,
    get_tp_group,
    get_world_group,
    init_distributed_environment,
    initialize_model_parallel,
)

from normport.layers.car_rmsnorm import ops, providers, sites
from normport.layers.car_rmsnorm.agreement import UnevenRanksError, check_agreement
from normport.layers.car_rmsnorm.contract import Cell
from normport.layers.car_rmsnorm.fusion import CarRmsNormPass

TIMEOUT_S = 300
Seen = dict[str, Any]


def drawn(rank: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rows + rank)
    return torch.randn(rows, HIDDEN, generator=generator).to(dtype)


def common(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unfused(x: torch.Tensor, residual: Any, weight: torch.Tensor, eps: float, rounded: bool) -> Any:
    """The graph without the pass: the group's all-reduce, then the norm."""
    reduced = get_tp_group()._all_reduce_out_place(x.clone())
    if residual is None:
        return ir.ops.rms_norm(reduced, weight, eps), reduced
    if rounded:
        total = reduced + residual
        return ir.ops.rms_norm(total, weight, eps), total, reduced
    return (*ir.ops.fused_add_rms_norm(reduced, residual, weight, eps), reduced)


def compare_ops() -> Seen:
    """Each op against the unfused sequence, bit for bit, and its arguments afterwards."""
    name, rank = get_tp_group().unique_name, get_tp_group().rank_in_group
    car = torch.ops.normport_car
    equal, unchanged, compared, separate = [], [], 0, []
    for dtype in (torch.bfloat16, torch.float16):
        for rows in (1, 2, 15, 33):
            x, residual = drawn(rank, rows, dtype), common(rows, rows, HIDDEN).to(dtype)
            for wide in (False, True):
                for offset in (0.0, 1.0):
                    weight = common(7, HIDDEN).to(torch.float32 if wide else dtype)
                    used = weight.float() + 1.0 if offset else weight
                    kept = [t.clone() for t in (x, residual, weight)]
                    last = (offset, name, "composed")
                    eps = 1e-5 if wide else 1e-6
                    pairs = [
                        (
                            car.all_reduce_rms_norm(x, weight, eps, *last),
                            unfused(x, None, used, eps, False),
                        )
                    ]
                    for rounded in (False, True):
                        more = (offset, rounded, name, "composed")
                        expected = unfused(x, residual, used, eps, rounded)
                        raw = car.all_reduce_add_rms_norm_raw(x, residual, weight, eps, *more)
                        short = car.all_reduce_add_rms_norm(x, residual, weight, eps, *more)
                        pairs += [(raw, expected), (short, expected[:2])]
                    for got, want in pairs:
                        equal.append(
                            len(got) == len(want)
                            and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
                        )
                        places = {t.data_ptr() for t in (*got, x, residual, weight)}
                        separate.append(len(places) == len(got) + 3)
                        compared += len(got)
                    now = (x, residual, weight)
                    unchanged += [torch.equal(a, b) for a, b in zip(kept, now, strict=True)]
    return {
        "equal": all(equal),
        "unchanged": all(unchanged),
        "separate": all(separate),
        "compared": compared,
    }


def layers(count: int = 3) -> fx.Graph:
    """A residual stream as the model has it: the first norm without a residual."""
    g = Graph()
    residual = g.reduce(g.rows("x"), get_tp_group().unique_name)
    hidden = g.norm(residual, g.gemma(g.weight("w0")))
    for layer in range(count):
        reduced = g.reduce(hidden, get_tp_group().unique_name)
        both = g.fused_add(reduced, residual, g.gemma(g.weight(f"w{layer + 1}")))
        hidden, residual = g.item(both, 0), g.item(both, 1)
    return g.done(hidden, residual)


def compare_graphs() -> Seen:
    """One graph before and after the pass, run on real tensors by all ranks."""
    tp = get_tp_group()
    cell = Cell("qwen3.5-dense", "tiny", tp.world_size, HIDDEN, "BF16", (16,), (15, 16))
    pass_ = CarRmsNormPass(tiny_config(tp.world_size), (cell,))
    before, after = layers(), layers()
    with pass_context(Range(17, 64)):
        pass_(after)
    weights = [common(20 + i, HIDDEN).to(torch.bfloat16) for i in range(4)]
    # Drawn anew for each: the CPU's communicator reduces its argument in place.
    run = [
        fx.Interpreter(fx.GraphModule({}, graph)).run(
            drawn(tp.rank_in_group, 20, torch.bfloat16), *weights
        )
        for graph in (before, after)
    ]
    left = list(sites.all_reduces(after, tp.unique_name, None))
    return {
        "graph_equal": all(torch.equal(a, b) for a, b in zip(*run, strict=True)),
        "replaced": pass_.report.replaced,
        "left": len(left),
    }


def tiny_config(tp: int) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            splitting_ops=[],
            use_inductor_graph_partition=False,
            pass_config=SimpleNamespace(fuse_allreduce_rms=True),
            mode=None,
            backend="inductor",
        ),
        optimization_level=2,
        device_config=None,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=1),
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            enforce_eager=False,
            quantization=None,
            hf_config={"model_type": "qwen3_5_text", "hidden_size": HIDDEN},
        ),
    )


def check_ops() -> Seen:
    return {**compare_ops(), **compare_graphs()}


def check_stages() -> Seen:
    """Two pipeline stages, each with a tensor-parallel group of its own."""
    tp, pp, world = get_tp_group(), get_pp_group(), get_world_group()
    seen = compare_ops()
    x = torch.ones(2, HIDDEN, dtype=torch.bfloat16) * (1 + world.rank_in_group)
    weight = torch.ones(HIDDEN, dtype=torch.bfloat16)
    _, reduced = torch.ops.normport_car.all_reduce_rms_norm(
        x, weight, 1e-6, 0.0, tp.unique_name, "composed"
    )
    wanted = float(sum(1 + rank for rank in tp.ranks))
    seen["only_tp"] = bool((reduced == wanted).all())
    seen["sizes"] = [tp.world_size, pp.world_size, world.world_size]
    try:
        ops.all_reduce_rms_norm(x, weight, 1e-6, 0.0, world.unique_name, "composed")
    except providers.WrongGroupError as error:
        seen["world"] = str(error)
    return seen


def check_death() -> Seen:
    """Rank 1 leaves without a word; the others are in the middle of an op."""
    tp = get_tp_group()
    x, weight = drawn(0, 4, torch.bfloat16), torch.ones(HIDDEN, dtype=torch.bfloat16)
    call = torch.ops.normport_car.all_reduce_rms_norm
    call(x, weight, 1e-6, 0.0, tp.unique_name, "composed")
    if tp.rank_in_group == 1:
        os._exit(3)
    try:
        call(x, weight, 1e-6, 0.0, tp.unique_name, "composed")
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": None}


def check_uneven() -> Seen:
    """Rank 1 has another provider; then all have the same."""
    tp = get_tp_group()
    mine = {"fuse_allreduce_rms": True, "provider": "composed"}
    check_agreement(mine, tp.cpu_group, tp.unique_name)
    if tp.rank_in_group == 1:
        mine["provider"] = "vllm-musa"
    try:
        check_agreement(mine, tp.cpu_group, tp.unique_name)
    except UnevenRanksError as error:
        return {"error": str(error)}
    return {"error": None}


SCENARIOS: dict[str, tuple[int, int, Callable[[], Seen]]] = {
    "two": (2, 1, check_ops),
    "four": (4, 1, check_ops),
    "stages": (2, 2, check_stages),
    "death": (2, 1, check_death),
    "uneven": (2, 1, check_uneven),
}


def rank_main(scenario: str, rank: int, folder: str) -> None:
    tp, pp, check = SCENARIOS[scenario]
    out = Path(folder) / f"{rank}.json"
    try:
        with set_current_vllm_config(VllmConfig()):
            init_distributed_environment(
                tp * pp, rank, f"file://{folder}/rendezvous", rank, backend="gloo"
            )
            initialize_model_parallel(tp, pp)
            with torch.no_grad():
                seen = check()
    except BaseException:
        seen = {"failed": traceback.format_exc()}
    out.write_text(json.dumps(seen))
    # The peers may be gone, and their goodbyes are not the subject.
    os._exit(0)


def run(scenario: str) -> list[Seen]:
    """What each rank saw; a rank that did not end is named so."""
    tp, pp, _ = SCENARIOS[scenario]
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            fork.Process(target=rank_main, args=(scenario, rank, folder)) for rank in range(tp * pp)
        ]
        for process in ranks:
            process.start()
        seen: list[Seen] = []
        for rank, process in enumerate(ranks):
            process.join(TIMEOUT_S)
            if process.is_alive():
                process.kill()
                seen.append({"hung": True})
                continue
            out = Path(folder) / f"{rank}.json"
            seen.append(json.loads(out.read_text()) if out.exists() else {"exit": process.exitcode})
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[2:] or list(SCENARIOS)
    Path(sys.argv[1]).write_text(json.dumps({name: run(name) for name in wanted}, indent=1))
