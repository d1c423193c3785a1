"""What vLLM calls by name: it resolves a platform's answer and calls it like a class."""

from __future__ import annotations

import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

from normport.layers.car_rmsnorm.agreement import check_agreement, statement
from normport.layers.car_rmsnorm.contract import RouteConfig
from normport.layers.car_rmsnorm.counts import Report
from normport.layers.car_rmsnorm.defaults import state
from normport.layers.car_rmsnorm.fusion import CarRmsNormPass
from normport.layers.car_rmsnorm.ops import ask_about
from normport.layers.car_rmsnorm.providers import available
from normport.layers.car_rmsnorm.reading import read_vllm

_BEFORE = ("NoOpEliminationPass", "SequenceParallelismPass", "AsyncTPPass", "AddRMSNormFusionPass")
"""Passes that vLLM runs before the place of its own all-reduce fusion."""


def make_pass_manager() -> Any:
    """The platform's own post-grad pass manager, with our pass where the CUDA one would be."""
    return _pass_manager_class(_stock("stock_pass_manager_cls"))()


@cache
def _pass_manager_class(stock: Any) -> Any:
    from vllm.config import set_current_vllm_config

    class CarPassManager(stock):  # type: ignore[misc]
        """Adds the pass without letting the stock manager see the flag.

        With it the stock manager would construct a pass that is not imported off CUDA.
        """

        def configure(self, config: Any) -> None:
            pass_config = config.compilation_config.pass_config
            if not pass_config.fuse_allreduce_rms:
                super().configure(config)
                return
            super().configure(_with_flag_off(config))
            # The manager hashes its pass config into the cache key: the real one.
            self.pass_config = pass_config
            with set_current_vllm_config(config, check_compile=False):
                ours = CarRmsNormPass(config, _table())
            names = [type(pass_).__name__ for pass_ in self.passes]
            place = max((i + 1 for i, name in enumerate(names) if name in _BEFORE), default=0)
            self.passes.insert(place, ours)

    return CarPassManager


def make_communicator(*, cpu_group: Any, unique_name: str = "", **others: Any) -> Any:
    """The platform's own communicator; the ranks of a TP group compare decisions around it.

    Before it what they decided alone, after it what their communicators allow.
    """
    from vllm.config import get_current_vllm_config_or_none

    vllm_config = get_current_vllm_config_or_none()
    asks: RouteConfig | None = None
    if unique_name.startswith("tp:") and vllm_config is not None:
        import torch.distributed as dist

        flag = bool(vllm_config.compilation_config.pass_config.fuse_allreduce_rms)
        decision = state(vllm_config, _table())
        ours = available().name if flag and decision.fused else None
        check_agreement(statement(vllm_config, ours, _table()), cpu_group, unique_name)
        if ours is not None:
            asks = read_vllm(vllm_config, _table())
            # Graphs from the compile cache come without a pass.
            ask_about(unique_name, asks, _table())
        Report(
            state="on" if flag and decision.fused else "off",
            fuse_allreduce_rms=flag,
            code=decision.code,
            reason=decision.reason,
            rank=dist.get_rank(),
            tensor_parallel=vllm_config.parallel_config.tensor_parallel_size,
            group=unique_name,
            provider=ours,
        ).save()
    make = _stock("stock_device_communicator_cls")
    made = make(cpu_group=cpu_group, unique_name=unique_name, **others)
    if asks is not None:
        check_agreement(_usability(asks, made), cpu_group, unique_name)
    return made


def _usability(config: RouteConfig, communicator: Any) -> dict[str, Any]:
    """What the pass will find of its provider, which depends on the communicator.

    A rank that goes without would wait for the others in another collective than theirs.
    """
    provider = available().provider
    assert provider is not None
    assert config.hidden_size is not None
    group = SimpleNamespace(device_communicator=communicator)
    why = provider.unusable(group)
    # The contract's activations are in bfloat16.
    rows = None if why is not None else provider.max_rows(group, config.hidden_size, 2)
    return {"provider's problem": why, "provider's rows": rows}


def _with_flag_off(config: Any) -> Any:
    """A shallow copy of the config; what the stock passes note in it is shared."""
    shown = copy.copy(config)
    shown.compilation_config = copy.copy(config.compilation_config)
    shown.compilation_config.pass_config = copy.copy(config.compilation_config.pass_config)
    shown.compilation_config.pass_config.fuse_allreduce_rms = False
    return shown


def _stock(name: str) -> Any:
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    return resolve_obj_by_qualname(getattr(current_platform, name)())


def _table() -> Any:
    from vllm.platforms import current_platform

    return current_platform.car_rmsnorm_table
