"""Who carries out a fused all-reduce and norm: vllm-musa's kernels, or the two steps composed.

A provider that cannot do what is asked raises ``ProviderDeclinedError``; none of them ever does
something else instead.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

MUSA_SCHEMAS = {
    "musa_fused_allreduce_rms_norm": (
        "(Tensor input, Tensor weight, float eps, SymInt comm_id) -> (Tensor, Tensor)"
    ),
    "musa_fused_allreduce_residual_rms_norm": (
        "(Tensor input, Tensor residual, Tensor weight, float eps, SymInt comm_id)"
        " -> (Tensor, Tensor, Tensor)"
    ),
    "musa_fused_allreduce_residual_rms_norm_no_raw": (
        "(Tensor input, Tensor residual, Tensor weight, float eps, SymInt comm_id)"
        " -> (Tensor, Tensor)"
    ),
}
"""vllm-musa's ops in ``torch.ops.vllm``, as its module ``fused_allreduce_rmsnorm_ops`` has them."""


class CarRmsNormError(RuntimeError):
    """A fused all-reduce and norm could not be carried out as asked."""


class ProviderDeclinedError(CarRmsNormError):
    """The provider cannot do this call."""


class WrongGroupError(CarRmsNormError):
    """The group named in the graph is not this process's tensor-parallel group."""


class NativeRowsError(CarRmsNormError):
    """The contract calls this number of rows native; a graph that fuses it was split wrongly."""


@dataclass(frozen=True)
class Norm:
    """What is normalized after the reduction.

    weight: [hidden], the activations' dtype or float32. offset: added to the weight in float32
    (Gemma's 1.0). round_sum: round the sum with the residual before it is normalized, as an add
    of its own does; a fused add normalizes the unrounded sum.
    """

    weight: Tensor
    eps: float
    offset: float = 0.0
    round_sum: bool = False

    @property
    def effective_weight(self) -> Tensor:
        """The weight with the offset in it; float32 if there is one."""
        return self.weight.float() + self.offset if self.offset else self.weight


class Provider(Protocol):
    """Carries out the ops on a ``vllm.distributed.parallel_state.GroupCoordinator``."""

    name: str

    def declines(self, *, residual: bool, round_sum: bool) -> str | None:
        """Why it cannot do such sites; None if it can."""

    def unusable(self, group: Any) -> str | None:
        """Why it cannot work on this group; None if it can."""

    def max_rows(self, group: Any, hidden_size: int, itemsize: int) -> int | None:
        """How many rows it takes at most; None for any number."""

    def norm(self, x: Tensor, norm: Norm, group: Any) -> tuple[Tensor, Tensor]:
        """Normed and reduced."""

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm, group: Any) -> tuple[Tensor, ...]:
        """Normed, new residual, and reduced."""


class Composed:
    """The group's own all-reduce, then vLLM's norm: bit-equal to the graph without the pass."""

    name = "composed"

    def declines(self, *, residual: bool, round_sum: bool) -> str | None:
        return None

    def unusable(self, group: Any) -> str | None:
        return None

    def max_rows(self, group: Any, hidden_size: int, itemsize: int) -> int | None:
        return None

    def norm(self, x: Tensor, norm: Norm, group: Any) -> tuple[Tensor, Tensor]:
        from vllm import ir

        reduced = _reduce(x, group)
        return ir.ops.rms_norm(reduced, norm.effective_weight, norm.eps), reduced

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm, group: Any) -> tuple[Tensor, ...]:
        from vllm import ir

        reduced = _reduce(x, group)
        weight = norm.effective_weight
        if norm.round_sum:
            total = reduced + residual
            return ir.ops.rms_norm(total, weight, norm.eps), total, reduced
        return (*ir.ops.fused_add_rms_norm(reduced, residual, weight, norm.eps), reduced)


class VllmMusa:
    """vllm-musa's kernels, on the communicator that its custom all-reduce holds."""

    name = "vllm-musa"

    def declines(self, *, residual: bool, round_sum: bool) -> str | None:
        if round_sum:
            return "vllm-musa's kernel is not known to round the sum before it normalizes"
        return None

    def unusable(self, group: Any) -> str | None:
        if _jit_comm(group) is None:
            return "vllm-musa's custom all-reduce has no JIT communicator for this group"
        return None

    def max_rows(self, group: Any, hidden_size: int, itemsize: int) -> int | None:
        size = getattr(_jit_comm(group), "max_size", None)
        return None if size is None else int(size) // (hidden_size * itemsize)

    def norm(self, x: Tensor, norm: Norm, group: Any) -> tuple[Tensor, Tensor]:
        comm_id = self._comm_id(group)
        call = torch.ops.vllm.musa_fused_allreduce_rms_norm
        normed, reduced = _declining(call, x, norm.effective_weight, norm.eps, comm_id)
        return normed, reduced

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm, group: Any) -> tuple[Tensor, ...]:
        return self._add_norm("", x, residual, norm, group)

    def add_norm_no_raw(
        self, x: Tensor, residual: Tensor, norm: Norm, group: Any
    ) -> tuple[Tensor, ...]:
        """The same without the reduced tensor, which the kernel then does not write."""
        return self._add_norm("_no_raw", x, residual, norm, group)

    def _add_norm(
        self, ending: str, x: Tensor, residual: Tensor, norm: Norm, group: Any
    ) -> tuple[Tensor, ...]:
        why = self.declines(residual=True, round_sum=norm.round_sum)
        if why is not None:
            raise ProviderDeclinedError(f"{self.name} declines: {why}.")
        comm_id = self._comm_id(group)
        call = getattr(torch.ops.vllm, f"musa_fused_allreduce_residual_rms_norm{ending}")
        return _declining(call, x, residual, norm.effective_weight, norm.eps, comm_id)

    def _comm_id(self, group: Any) -> int:
        comm = _jit_comm(group)
        if comm is None:
            raise ProviderDeclinedError(f"{self.name} declines: {self.unusable(group)}.")
        return int(comm._comm_id)


@dataclass(frozen=True)
class Available:
    """The provider of this process, or why a present one cannot be used."""

    provider: Provider | None
    problem: str | None = None

    @property
    def name(self) -> str | None:
        """For comparing ranks."""
        return None if self.provider is None else self.provider.name


def available() -> Available:
    """vllm-musa's kernels where they are registered as expected, composed where there are none.

    Kernels with another schema, or that cannot be loaded, are no reason to compose the steps
    instead: nothing is fused then.
    """
    try:
        _load_musa()
    except (ImportError, OSError) as error:
        return Available(None, f"vllm-musa's ops cannot be loaded ({error})")
    found = {name: _schema(name) for name in MUSA_SCHEMAS}
    if not any(found.values()):
        return Available(COMPOSED)
    for name, expected in MUSA_SCHEMAS.items():
        if found[name] != expected:
            seen = found[name] or "missing"
            return Available(None, f"vllm-musa's {name} is {seen}, expected {expected}")
    return Available(VLLM_MUSA)


COMPOSED: Provider = Composed()
VLLM_MUSA: Provider = VllmMusa()
PROVIDERS: dict[str, Provider] = {provider.name: provider for provider in (COMPOSED, VLLM_MUSA)}


def _load_musa() -> None:
    """Importing the module registers the ops; vllm-musa does it only for its own pass.

    Raises ImportError, or OSError from a library that it loads.
    """
    if "vllm_musa" not in sys.modules and importlib.util.find_spec("vllm_musa") is None:
        return
    if importlib.util.find_spec("vllm_musa.fused_allreduce_rmsnorm_ops") is not None:
        importlib.import_module("vllm_musa.fused_allreduce_rmsnorm_ops")


def _schema(name: str) -> str | None:
    op = getattr(torch.ops.vllm, name, None)
    if op is None:
        return None
    # What vLLM's way to register an op makes; one with named overloads only is another op.
    if "default" not in op.overloads():
        return f"there as {', '.join(op.overloads())} only"
    return str(op.default._schema).removeprefix(f"vllm::{name}")


def _jit_comm(group: Any) -> Any:
    custom = getattr(getattr(group, "device_communicator", None), "ca_comm", None)
    if custom is None or getattr(custom, "disabled", False):
        return None
    comm = getattr(custom, "_jit_comm", None)
    return comm if getattr(comm, "_comm_id", None) is not None else None


def _reduce(x: Tensor, group: Any) -> Tensor:
    # An op that mutates nothing may not hand its argument to a communicator that reduces in place.
    reduced: Tensor = group._all_reduce_out_place(x.clone() if _in_place(x, group) else x)
    return reduced


def _in_place(x: Tensor, group: Any) -> bool:
    """Whether the group reduces in place, as vLLM's CPU communicator and the base class do."""
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )

    communicator = type(group.device_communicator)
    inherited = getattr(communicator, "all_reduce", None) is DeviceCommunicatorBase.all_reduce
    return inherited or x.device.type == "cpu"


def _declining(call: Any, *arguments: Any) -> tuple[Tensor, ...]:
    try:
        return tuple(call(*arguments))
    except RuntimeError as error:
        # This is how vllm-musa's ops say that their communicator took no such tensor.
        raise ProviderDeclinedError(f"vllm-musa declines: {error}") from error
