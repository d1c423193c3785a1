"""vLLM's own norm layers, taken from a source tree without importing vLLM.

Only torch is needed. ``vllm/ir/`` and ``vllm/model_executor/layers/layernorm.py`` are executed as
they stand in the tree; everything else they import from vLLM is a stand-in that does nothing, or
stops with a sentence when the norm turns out to depend on it. An installed vLLM is never seen:
the stand-ins are found first. One process can load one tree (its ops enter torch's registry).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import nn

LAYERNORM = "vllm.model_executor.layers.layernorm"


class MissingPartError(RuntimeError):
    """The norm of this tree needs a part of vLLM that is not executed here."""


@dataclass(frozen=True)
class Norms:
    """The two layers that a replacement may name."""

    rms_norm: type[nn.Module]
    gemma_rms_norm: type[nn.Module]


def load_norms(root: Path) -> Norms:
    """Load ``RMSNorm`` and ``GemmaRMSNorm`` from the tree at ``root`` (the folder above ``vllm/``).

    Raises whatever the tree's files raise, ``MissingPartError`` or ``ImportError`` included. Their
    ``forward`` is ``forward_native``, and the ops below it dispatch to their native definition.
    """
    sys.meta_path.insert(0, _TreeFinder(root))
    if importlib.util.find_spec("regex") is None:
        sys.modules["regex"] = re
    module = importlib.import_module(LAYERNORM)
    return Norms(module.RMSNorm, module.GemmaRMSNorm)


def _is_real(fullname: str) -> bool:
    return fullname in (LAYERNORM, "vllm.ir") or fullname.startswith("vllm.ir.")


class _TreeFinder(importlib.abc.MetaPathFinder):
    """Answers for every ``vllm`` module: executed from the tree, or a stand-in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "vllm" and not fullname.startswith("vllm."):
            return None
        if _is_real(fullname):
            return self._real(fullname)
        return importlib.machinery.ModuleSpec(fullname, _StandInLoader(), is_package=True)

    def _real(self, fullname: str) -> importlib.machinery.ModuleSpec:
        base = self.root.joinpath(*fullname.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                # Without this loader a .pyc would be written beside the user's sources.
                loader = _SourceLoader(fullname, str(file))
                spec = importlib.util.spec_from_file_location(fullname, file, loader=loader)
                assert spec is not None
                return spec
        raise ModuleNotFoundError(f"the tree has no {base.relative_to(self.root)}(.py)")


class _SourceLoader(importlib.machinery.SourceFileLoader):
    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        return None


class _StandInLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_KNOWN.get(module.__name__, {}))


class _StandIn(ModuleType):
    """A vLLM module that is not executed: its names exist and stop the run when they matter."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        fullname = f"{self.__name__}.{name}"
        if _is_real(fullname) or fullname in _KNOWN:
            return importlib.import_module(fullname)
        return _Unavailable(fullname)


class _Unavailable:
    """A name from a stand-in. Importing it is fine; calling or testing it is not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Unavailable:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unavailable(f"{self._name}.{name}")

    def _stop(self, *args: object, **kwargs: object) -> NoReturn:
        raise MissingPartError(f"it depends on {self._name}, which is not executed here")

    __call__ = __iter__ = __getitem__ = __len__ = _stop

    def __bool__(self) -> bool:
        self._stop()


class _CustomOp(nn.Module):
    """vLLM's ``CustomOp`` without its configuration: always the native path."""

    def __init__(self, *, enforce_enable: bool = False, compile_native: bool = False) -> None:
        super().__init__()

    @staticmethod
    def register(name: str, **options: object) -> Callable[[type], type]:
        def decorate(cls: type) -> type:
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return decorate

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)  # type: ignore[operator]


class _Logger(logging.Logger):
    """Takes vLLM's extra methods; drops everything but errors."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.ERROR)

    def once(self, message: str, *args: object, **options: object) -> None:
        self.debug(message, *args)

    debug_once = info_once = warning_once = once


class _Platform:
    """No accelerator: every ``is_...()`` question is answered with no."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *args: False
        return _Unavailable(f"vllm.platforms.current_platform.{name}")


def _set_weight_attrs(weight: torch.Tensor, attrs: dict[str, Any] | None) -> None:
    for name, value in (attrs or {}).items():
        setattr(weight, name, value)


def _ignore(*args: object, **kwargs: object) -> None:
    """Stands for a registration that only other devices use."""


_KNOWN: dict[str, dict[str, Any]] = {
    "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
    "vllm.logger": {"init_logger": _Logger},
    "vllm.logging_utils": {"lazy": lambda function: function, "tensors_str_no_data": str},
    "vllm.model_executor.custom_op": {"CustomOp": _CustomOp, "PluggableLayer": _CustomOp},
    "vllm.model_executor.utils": {"set_weight_attrs": _set_weight_attrs},
    "vllm.platforms": {"current_platform": _Platform()},
    "vllm.utils": {"direct_register_custom_op": _ignore},
    "vllm.utils.torch_utils": {"direct_register_custom_op": _ignore},
}
