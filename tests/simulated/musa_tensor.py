"""Tensors whose device type is "musa", on a torch that knows no such device.

A ``MusaTensor`` shows the shape, strides and dtype of a CPU tensor that it holds, and every
operator runs on what it holds. Mixing it with a CPU tensor fails, as on a device. ``ran`` has the
operators in order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

ran: list[str] = []
"""Names of the operators that ran on the simulated device."""

ACROSS = (
    torch.ops.aten.copy_.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten._copy_from.default,
)
"""What may have tensors of both devices."""

kept: list[torch.library.Library] = []


class Backend(_DummyBackendModule):  # type: ignore[misc]
    """What torch asks a backend's module."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        del seed

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class MusaTensor(torch.Tensor):
    """A CPU tensor under the device "musa:0"."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> MusaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="musa:0",
            requires_grad=False,
        )
        made.held = held.detach()
        return made

    def __repr__(self) -> str:
        return f"MusaTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(op, args, kwargs or {})


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ran.append(str(op))
    wanted = kwargs.get("device")
    leaves = wanted is not None and torch.device(wanted).type != "musa"
    if wanted is not None and not leaves:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if not leaves and op not in ACROSS:
        _refuse_mixed(op, args, kwargs)
    plain_args, plain_kwargs = tree_map(_held, (args, kwargs))
    result = op(*plain_args, **plain_kwargs)
    if leaves:
        return result
    if op is torch.ops.aten.copy_.default:
        return args[0]
    # An operator that returns an argument must return the caller's own tensor.
    mine = {id(_held(arg)): arg for arg in (*args, *kwargs.values())}
    return tree_map(
        lambda out: mine.get(id(out), MusaTensor(out)) if isinstance(out, torch.Tensor) else out,
        result,
    )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, MusaTensor) else value


def _refuse_mixed(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    others = [t for t in tensors if not isinstance(t, MusaTensor) and t.dim()]
    if others and len(others) < len(tensors):
        raise RuntimeError(f"{op}: tensors on musa:0 and on {others[0].device}")


def install() -> None:
    """Make ``device="musa"`` known to torch in this process."""
    if kept:
        return
    _setup_privateuseone_for_python_backend("musa", backend_module=Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    kept.append(library)
