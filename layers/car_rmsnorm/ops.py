"""The ops that the fusion pass puts into a graph: ``torch.ops.normport_car``.

Functional: they mutate nothing and no result shares memory with an argument or another result.
``x``, residual and every result are [rows, hidden], contiguous, of one dtype; the weight is
[hidden] in that dtype or float32. ``group`` is the unique name of the tensor-parallel group,
``provider`` the name of who carries the op out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normport.layers.car_rmsnorm.contract import RouteConfig, Table, route
from normport.layers.car_rmsnorm.providers import (
    PROVIDERS,
    NativeRowsError,
    Norm,
    Provider,
    ProviderDeclinedError,
    VllmMusa,
    WrongGroupError,
)

NAMESPACE = "normport_car"


def all_reduce_rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float, group: str, provider: str
) -> tuple[Tensor, Tensor]:
    """Normed and reduced."""
    _check(x, weight, group)
    return _provider(provider).norm(x, Norm(weight, eps, offset), _tp_group(group))


def all_reduce_add_rms_norm_raw(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float,
    round_sum: bool,
    group: str,
    provider: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normed, new residual (the rounded sum) and the reduced tensor."""
    _check(x, weight, group, residual)
    norm = Norm(weight, eps, offset, round_sum)
    normed, total, reduced = _provider(provider).add_norm(x, residual, norm, _tp_group(group))
    return normed, total, reduced


def all_reduce_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float,
    round_sum: bool,
    group: str,
    provider: str,
) -> tuple[Tensor, Tensor]:
    """Normed and new residual (the rounded sum)."""
    _check(x, weight, group, residual)
    norm = Norm(weight, eps, offset, round_sum)
    chosen = _provider(provider)
    step = chosen.add_norm_no_raw if isinstance(chosen, VllmMusa) else chosen.add_norm
    normed, total, *_ = step(x, residual, norm, _tp_group(group))
    return normed, total


def _fake_two(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _fake_three(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)


_routes: dict[str, tuple[RouteConfig, Table]] = {}


def ask_about(group: str, config: RouteConfig, table: Table) -> None:
    """From now on the ops over a group ask ``route`` about the rows that they get.

    Without this, where ops are called by hand, any number of rows will do.
    """
    _routes[group] = config, table


def _check(x: Tensor, weight: Tensor, group: str, residual: Tensor | None = None) -> None:
    """What a provider may rely on.

    Raises NativeRowsError for rows that are not to be fused, ProviderDeclinedError for anything
    else.
    """
    if group in _routes:
        config, table = _routes[group]
        decision = route(config, x.shape[0], table=table)
        if not decision.fused:
            raise NativeRowsError(f"A graph fuses rows that it may not. {decision.reason}")
    others = [x] if residual is None else [x, residual]
    if any(not tensor.is_contiguous() for tensor in (*others, weight)):
        raise ProviderDeclinedError("A tensor that is not contiguous cannot be reduced and normed.")
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ProviderDeclinedError(
            f"The residual is {tuple(residual.shape)} in {residual.dtype}, the activations are "
            f"{tuple(x.shape)} in {x.dtype}."
        )
    if weight.shape != x.shape[-1:] or weight.dtype not in (x.dtype, torch.float32):
        raise ProviderDeclinedError(
            f"The weight is {tuple(weight.shape)} in {weight.dtype}; {tuple(x.shape[-1:])} in "
            f"{x.dtype} or torch.float32 can be used."
        )


def _provider(name: str) -> Provider:
    if name not in PROVIDERS:
        raise ProviderDeclinedError(f"There is no provider {name}; known: {', '.join(PROVIDERS)}.")
    return PROVIDERS[name]


def _tp_group(name: str) -> Any:
    """The tensor-parallel group, which the graph must have meant; never another one."""
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    if group.unique_name != name:
        raise WrongGroupError(
            f"The graph reduces over group {name}, the tensor-parallel group is "
            f"{group.unique_name}."
        )
    return group


# torch types neither the class nor its methods.
_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
for _function, _fake in (
    (all_reduce_rms_norm, _fake_two),
    (all_reduce_add_rms_norm, _fake_two),
    (all_reduce_add_rms_norm_raw, _fake_three),
):
    _library.define(_function.__name__ + torch.library.infer_schema(_function, mutates_args=()))
    _library.impl(_function.__name__, _function, "CompositeExplicitAutograd")
    _library._register_fake(_function.__name__, _fake)
