"""The default of ``pass_config.fuse_allreduce_rms``, and what follows from it, in vLLM's config.

The two functions belong into the two hooks that vLLM's config calls on the platform, in this
order: ``apply_config_platform_defaults``, then the presets of the optimization level (they fill
only what is None), then ``check_and_update_config``, then the compile ranges are set. Written for
vLLM 0.29.0. All of it works on the config object; vLLM itself is not imported but for its logger.
"""

from __future__ import annotations

import math
import multiprocessing
import weakref
from typing import Any, Literal

from normport.layers.car_rmsnorm.contract import (
    CONTRACT,
    LAST_ROW,
    Decision,
    Table,
    cell_for,
    digest,
    route,
)
from normport.layers.car_rmsnorm.logs import logger
from normport.layers.car_rmsnorm.reading import read_vllm

Requested = Literal["auto", "on", "off"]

CACHE_KEY_ENTRY = "normport_car_rmsnorm"
"""Entry of ``additional_config``, which vLLM hashes into the key of its compile cache."""

_requested: dict[int, tuple[Requested, Decision]] = {}
"""What was asked for and decided, by the id of the pass config, between the hooks of a config."""


_settled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The pass configs that were settled in this process, by id. Configs derived from one share it."""


def apply_default(vllm_config: Any, table: Table = CONTRACT) -> None:
    """Settle an unspecified flag: on exactly when the contract has a cell and vLLM compiles.

    An explicit False or True is kept.
    """
    pass_config = vllm_config.compilation_config.pass_config
    flag = pass_config.fuse_allreduce_rms
    decision = state(vllm_config, table)
    requested: Requested = "auto" if flag is None else "on" if flag else "off"
    _requested[id(pass_config)] = requested, decision
    if flag is None:
        pass_config.fuse_allreduce_rms = decision.fused


def settle(vllm_config: Any, table: Table = CONTRACT) -> None:
    """Merge the endpoints, once the platform has had its say, and tell the effective state.

    With the flag off nothing is changed.
    """
    compilation = vllm_config.compilation_config
    pass_config = compilation.pass_config
    requested, first = _requested.pop(id(pass_config), (None, None))
    decision = state(vllm_config, table)
    if first is not None and not first.fused:
        # What settled it, whatever the platform changed afterwards.
        decision = first
    if requested == "auto" and pass_config.fuse_allreduce_rms and not decision.fused:
        # The platform turned compilation off after the default was set.
        pass_config.fuse_allreduce_rms = False
    if pass_config.fuse_allreduce_rms:
        _skip_flashinfer_limit(vllm_config)
        if isinstance(vllm_config.additional_config, dict):
            # A copy: the dict may be the user's, and go into a config that is off as well.
            entry = {CACHE_KEY_ENTRY: digest(table)}
            vllm_config.additional_config = {**vllm_config.additional_config, **entry}
        if decision.fused:
            compilation.compile_ranges_endpoints = merged_endpoints(vllm_config, table)
    # Workers, and models within a model, get configs that are derived from a settled one. The
    # line is for the front end's.
    derived = _settled.get(id(pass_config)) is pass_config
    _settled[id(pass_config)] = pass_config
    if requested is not None and not derived and multiprocessing.parent_process() is None:
        logger().info_once(describe(vllm_config, requested, decision))


def state(vllm_config: Any, table: Table = CONTRACT) -> Decision:
    """Whether CAR-RMSNorm can be used at all for a vLLM config, whatever its flag says."""
    wrong = _not_compiled(vllm_config)
    return wrong or route(read_vllm(vllm_config, table), table=table)


def merged_endpoints(vllm_config: Any, table: Table = CONTRACT) -> list[int]:
    """The user's endpoints, the cell's, and the end of the domain where batches go beyond it.

    Without the last one the whole range up to the largest batch would be one graph, which
    contains rows outside the domain and would turn native.
    """
    ends = set(vllm_config.compilation_config.compile_ranges_endpoints or ())
    cell = cell_for(read_vllm(vllm_config, table), table)
    if cell is not None:
        ends |= set(cell.endpoints)
        largest = vllm_config.scheduler_config.max_num_batched_tokens
        if largest is not None and largest > LAST_ROW:
            ends.add(LAST_ROW)
    return sorted(ends)


def describe(vllm_config: Any, requested: Requested, decision: Decision) -> str:
    """The start-up line: effective state, who asked for it, and the reason."""
    compilation = vllm_config.compilation_config
    flag = compilation.pass_config.fuse_allreduce_rms
    how = {"auto": "by default", "on": "as requested", "off": "as requested"}[requested]
    if not flag and requested == "off":
        return "CAR-RMSNorm: off, as requested by pass_config.fuse_allreduce_rms=False."
    if flag and not decision.fused:
        return f"CAR-RMSNorm: requested, but it does nothing. {decision.reason}"
    if not flag and (requested == "on" or decision.fused):
        return "CAR-RMSNorm: off. The platform turned pass_config.fuse_allreduce_rms off."
    if not flag:
        return f"CAR-RMSNorm: off, by default. {decision.reason}"
    largest = vllm_config.scheduler_config.max_num_batched_tokens
    # vLLM drops the others: nothing lies below row 1, or beyond the largest batch.
    ends = ", ".join(
        str(end)
        for end in compilation.compile_ranges_endpoints or ()
        if end > 1 and (largest is None or end < largest)
    )
    return f"CAR-RMSNorm: on, {how}. {decision.reason} Compile range endpoints: {ends}."


def _not_compiled(vllm_config: Any) -> Decision | None:
    compilation = vllm_config.compilation_config
    model_config = vllm_config.model_config
    if model_config is not None and model_config.enforce_eager:
        return _off("eager", "vLLM runs eagerly")
    if not vllm_config.optimization_level > 0:
        return _off("optimization-level", "optimization level 0 compiles nothing")
    if compilation.mode is not None and compilation.mode.name != "VLLM_COMPILE":
        return _off("mode", f"compilation mode {compilation.mode.name} runs no fusion passes")
    if compilation.backend not in ("", "inductor"):
        return _off("backend", f"compile backend {compilation.backend} runs no fusion passes")
    import vllm.envs as envs

    if envs.VLLM_BATCH_INVARIANT:
        # The choice depends on the number of rows, which a batch-invariant result may not.
        return _off("batch-invariant", "batch-invariant results were asked for")
    return None


def _off(code: str, why: str) -> Decision:
    return Decision(False, code, f"Native: {why}.")


def _skip_flashinfer_limit(vllm_config: Any) -> None:
    """Give vLLM the limit that it would look for in CUDA-only code.

    vLLM ends a compile range where FlashInfer's fused all-reduce would end. Without an explicit
    limit it imports the FlashInfer pass to find one, which fails off CUDA. One that no batch
    reaches adds no endpoint; FlashInfer's pass is the only other reader.
    """
    pass_config = vllm_config.compilation_config.pass_config
    model_config = vllm_config.model_config
    if pass_config.fi_allreduce_fusion_max_size_mb is not None or model_config is None:
        return
    rows = max(vllm_config.scheduler_config.max_num_batched_tokens or 0, LAST_ROW) + 1
    size = rows * model_config.get_hidden_size() * model_config.dtype.itemsize
    pass_config.fi_allreduce_fusion_max_size_mb = float(math.ceil(size / 2**20))
