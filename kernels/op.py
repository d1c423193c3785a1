"""An op is its native function; providers are added to it; guards are predicates; policy is data.

In the manner of ``vllm/ir/op.py``, with one difference: a guard does not answer yes or no but gives
the reason against it (None where there is none), so that ``normport doctor`` can say why a provider
was not chosen. There are two kinds of guard:

- ``supported()`` is about the machine and the installed packages. It is asked once, when the op
  is first called (not when this is imported), and again after ``refresh()``.
- ``supports_args(...)`` is about one call, and has the parameters of the native function. It is
  asked before every call, so it looks at metadata only.

Which provider goes first is ``PRIORITY``, and nothing else. The native function takes every
valid call, and is the one that says what is wrong with an invalid one.

The ops are for inference: what a provider returns carries no gradient.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from normport.kernels.reasons import Reason

P = ParamSpec("P")
R = TypeVar("R")

NATIVE = "native"
PROVIDERS = "normport.kernels.providers"
"""Importing this package registers every provider of ours."""

PRIORITY: dict[str, tuple[str, ...]] = {
    "xpu": ("xpu", "ipex", "triton"),
    "musa": ("musa", "triton"),
    "cuda": ("triton",),
    "cpu": ("vllm_cpu", "cpu"),
}
"""Providers by ``device.type``, best first; then, and on every other device, native."""

OPS: dict[str, Op[..., Any]] = {}
"""Every op by its name."""


@dataclass(frozen=True)
class Provider(Generic[P, R]):
    """One implementation of an op. ``run`` and ``supports_args`` take the native's parameters."""

    name: str
    run: Callable[P, R]
    supported: Callable[[], str | None] | None = None
    supports_args: Callable[P, str | None] | None = None

    def why_unsupported(self) -> str | None:
        """The reason why this machine cannot run it at all, or None."""
        return None if self.supported is None else self.supported()

    def why_not(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """The reason why it cannot take this call, or None."""
        return None if self.supports_args is None else self.supports_args(*args, **kwargs)


@dataclass(frozen=True)
class Choice:
    """What a call would run: the provider's name, and why each one before it was passed over."""

    provider: str
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(eq=False)
class Op(Generic[P, R]):
    """An op: call it, or ask what a call would run with ``choose``.

    ``op(...)`` runs the first provider of the device that takes the call. In traced code and for
    fake tensors it is the native function, which Inductor fuses.
    """

    native: Callable[P, R]
    name: str = ""
    first: str = ""
    providers: dict[str, Provider[P, R]] = field(default_factory=dict)
    _tables: dict[torch.device, tuple[Provider[P, R], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or self.native.__name__
        self.first = next(iter(inspect.signature(self.native).parameters))
        self.__doc__ = self.native.__doc__
        self.providers[NATIVE] = Provider(NATIVE, self.native)
        if self.name in OPS:
            raise ValueError(f"the op {self.name} is already defined")
        OPS[self.name] = self

    def provider(
        self,
        name: str,
        *,
        supported: Callable[[], str | None] | None = None,
        supports_args: Callable[P, str | None] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register the decorated function as provider ``name``; it is returned unchanged.

        It computes what the native function computes, up to the rounding that the guards allow,
        and changes no argument. ValueError: the name is taken, or the parameters of the function
        or of ``supports_args`` are not those of the native function.
        """

        def register(run: Callable[P, R]) -> Callable[P, R]:
            if name in self.providers:
                raise ValueError(f"{self.name} already has a provider {name}")
            for role, function in (("provider", run), ("guard of provider", supports_args)):
                if function is not None and _parameters(function) != _parameters(self.native):
                    raise ValueError(
                        f"the {role} {name} of {self.name} takes {_parameters(function)}, the "
                        f"native function {_parameters(self.native)}"
                    )
            self.providers[name] = Provider(name, run, supported, supports_args)
            self.refresh()
            return run

        return register

    def refresh(self) -> None:
        """Forget what was found out about this machine; the next call asks again."""
        self._tables.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        x = args[0] if args else kwargs.get(self.first)
        if (
            torch.compiler.is_compiling()
            or isinstance(x, FakeTensor)
            or not isinstance(x, torch.Tensor)
        ):
            return self.native(*args, **kwargs)
        device = x.device
        table = self._tables.get(device)
        if table is None:
            table = self._table(device)
        for provider in table:
            guard = provider.supports_args
            if guard is None or guard(*args, **kwargs) is None:
                return provider.run(*args, **kwargs)
        return self.native(*args, **kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Choice:
        """What ``op(...)`` would run for these arguments, without running it."""
        x = args[0] if args else kwargs.get(self.first)
        assert isinstance(x, torch.Tensor)
        traced = torch.compiler.is_compiling() or isinstance(x, FakeTensor)
        skipped: list[tuple[str, str]] = []
        for provider in self.candidates(x.device.type):
            reason = provider.why_unsupported()
            if reason is None:
                reason = Reason.TRACED if traced else provider.why_not(*args, **kwargs)
            if reason is None:
                return Choice(provider.name, tuple(skipped))
            skipped.append((provider.name, reason))
        return Choice(NATIVE, tuple(skipped))

    def candidates(self, device_type: str) -> list[Provider[P, R]]:
        """The providers that this op has for a kind of device, best first, without native."""
        importlib.import_module(PROVIDERS)
        names = PRIORITY.get(device_type, ())
        return [self.providers[name] for name in names if name in self.providers]

    def _table(self, device: torch.device) -> tuple[Provider[P, R], ...]:
        found = tuple(p for p in self.candidates(device.type) if p.why_unsupported() is None)
        self._tables[device] = found
        return found


def op(native: Callable[P, R]) -> Op[P, R]:
    """Make the decorated native function an op of its name; its first parameter is a tensor."""
    return Op(native)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.default) for parameter in found]
