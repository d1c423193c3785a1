"""Ranks that decide differently are told apart at start-up, before a collective can hang."""

from __future__ import annotations

from typing import Any

from normport.layers.car_rmsnorm.contract import CONTRACT, Table, digest
from normport.layers.car_rmsnorm.defaults import state

Statement = dict[str, Any]


class UnevenRanksError(RuntimeError):
    """The ranks of a tensor-parallel group would not run the same graphs."""


def statement(vllm_config: Any, provider: str | None, table: Table = CONTRACT) -> Statement:
    """What a rank has decided, in comparable terms."""
    from importlib.metadata import version

    compilation = vllm_config.compilation_config
    return {
        "fuse_allreduce_rms": bool(compilation.pass_config.fuse_allreduce_rms),
        "decision": state(vllm_config, table).code,
        "endpoints": list(compilation.compile_ranges_endpoints or ()),
        "table": digest(table),
        "provider": provider,
        "normport": version("normport"),
    }


def check_agreement(mine: Statement, group: Any, name: str) -> None:
    """Exchange the statements over a process group of the CPU; every rank of it must call this.

    Raises UnevenRanksError on every rank when one of them stated something else.
    """
    import torch.distributed as dist

    stated: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(stated, mine, group=group)
    uneven = difference(stated)
    if uneven is not None:
        raise UnevenRanksError(f"CAR-RMSNorm: the ranks of group {name} disagree: {uneven}.")


def difference(stated: list[Statement]) -> str | None:
    """The first rank that differs from rank 0, and in what; None when all are the same."""
    for rank, other in enumerate(stated):
        for key in sorted({*stated[0], *other}):
            if stated[0].get(key) != other.get(key):
                return (
                    f"{key} is {stated[0].get(key)!r} on rank 0 and "
                    f"{other.get(key)!r} on rank {rank}; give all ranks the same installation "
                    "and options"
                )
    return None
