"""An XPU made of CPU ops: the kernels' schemas, their numbers and their limits.

The stand-ins compute in float32 and round once. Like the kernels of vllm-xpu-kernels they throw
for another rank, for a weight of another dtype, for an output that is not contiguous and for a
last stride that ``contiguous()`` does not make 1, they have no guard for empty tensors, they take
the weight as dense whatever its size, and the fused one walks its input by ``stride(-2)`` and its
residual as dense rows. So a guard that is missing shows in the numbers or as an error.

``load()`` gives the modules of ``normport.layers.in_tree`` on top of a small stub of vLLM, so that
no vLLM is needed; ``simulated()`` puts that stub where ``import vllm`` finds it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from normport.kernels import reference
from normport.layers import in_tree

SCHEMAS = {
    "gemma_rms_norm": "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()",
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
}

calls: list[str] = []
"""Names of the kernels that ran, in order."""

_libraries: list[torch.library.Library] = []


def _row_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    dense = weight.as_strided((rows.shape[-1],), (1,))
    return wide * (1.0 + dense.float())


def _check(input: Tensor, weight: Tensor) -> None:
    if input.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(f"not implemented for {input.dtype}")
    if weight.dtype != input.dtype:
        raise RuntimeError(f"expected scalar type {input.dtype} but found {weight.dtype}")
    if input.numel() == 0:
        raise RuntimeError("an empty grid was submitted")


def _gemma_rms_norm(result: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
    calls.append("gemma_rms_norm")
    _check(input, weight)
    if input.dim() not in (2, 3, 4):
        raise RuntimeError(f"unsupported rank {input.dim()}")
    if not result.is_contiguous():
        raise RuntimeError("result must be contiguous")
    if input.stride(-1) != 1:
        input = input.contiguous()
        if input.stride(-1) != 1:
            raise RuntimeError("the last stride of the input must be 1")
    result.copy_(_row_norm(input, weight, epsilon))


def _fused_add_gemma_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> None:
    calls.append("fused_add_gemma_rms_norm")
    _check(input, weight)
    hidden = input.shape[-1]
    tokens = input.numel() // hidden
    rows = input.as_strided((tokens, hidden), (input.stride(-2), 1))
    sums = residual.as_strided((tokens, hidden), (hidden, 1))
    sums.copy_(rows + sums)
    rows.copy_(_row_norm(sums, weight, epsilon))


@functools.cache
def load() -> SimpleNamespace:
    """The stub (``modules``, ``envs``) and our modules on it (``xpu_ops``, ``layernorm``)."""
    kernels = torch.library.Library("_C", "FRAGMENT")
    _libraries.append(kernels)
    for name, run in (
        ("gemma_rms_norm", _gemma_rms_norm),
        ("fused_add_gemma_rms_norm", _fused_add_gemma_rms_norm),
    ):
        kernels.define(name + SCHEMAS[name])
        kernels.impl(name, run, "CPU")

    def op(native: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(impls={"native": SimpleNamespace(impl_fn=native)})

    modules = {
        name: ModuleType(name)
        for name in ("vllm", "vllm.envs", "vllm.ir", "vllm.utils", "vllm.utils.torch_utils")
    }
    vars(modules["vllm"]).update(
        __path__=[], envs=modules["vllm.envs"], ir=modules["vllm.ir"], utils=modules["vllm.utils"]
    )
    vars(modules["vllm.utils"])["__path__"] = []
    vars(modules["vllm.envs"])["VLLM_BATCH_INVARIANT"] = False
    vars(modules["vllm.ir"])["ops"] = SimpleNamespace(
        rms_norm=op(reference.rms_norm), fused_add_rms_norm=op(reference.fused_add_rms_norm)
    )
    vars(modules["vllm.utils.torch_utils"])["direct_register_custom_op"] = _register
    with _importable(modules):
        xpu_ops, layernorm = _import("xpu_ops"), _import("layernorm")
    xpu_ops.register_ops()
    # Dynamo looks functions up in the module that they name, so both names are needed.
    modules.update({module.__name__: module for module in (xpu_ops, layernorm)})
    modules["vllm._xpu_ops"] = xpu_ops
    vars(modules["vllm"])["_xpu_ops"] = xpu_ops
    return SimpleNamespace(
        modules=modules, xpu_ops=xpu_ops, layernorm=layernorm, envs=modules["vllm.envs"]
    )


@contextmanager
def simulated() -> Iterator[SimpleNamespace]:
    """Within it ``import vllm`` gives the stub; ``calls`` starts empty."""
    loaded = load()
    calls.clear()
    with _importable(loaded.modules):
        yield loaded


@contextmanager
def _importable(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Puts modules in place of others; whatever else is imported meanwhile stays imported."""
    covered = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in covered.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def norm(hidden: int, dtype: torch.dtype, epsilon: float = 1e-6) -> Any:
    """A Gemma norm with random weights, vLLM's members and our ``forward_xpu``."""

    class GemmaRMSNorm(torch.nn.Module):
        forward_xpu = load().layernorm.GemmaRMSNorm.forward_xpu

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(hidden).mul(0.1).to(dtype))
            self.variance_epsilon = epsilon

        def forward_native(self, x: Tensor, residual: Tensor | None = None) -> Any:
            if residual is None:
                return reference.gemma_rms_norm(x, self.weight, self.variance_epsilon)
            return reference.fused_add_gemma_rms_norm(
                x, residual, self.weight, self.variance_epsilon
            )

    return GemmaRMSNorm()


def _register(
    op_name: str,
    op_func: Callable[..., None],
    mutates_args: list[str],
    fake_impl: Callable[..., None],
) -> None:
    library = torch.library.Library("vllm", "FRAGMENT")
    _libraries.append(library)
    library.define(op_name + torch.library.infer_schema(op_func, mutates_args=mutates_args))
    library.impl(op_name, op_func, "CPU")
    library._register_fake(op_name, fake_impl)


def _import(name: str) -> ModuleType:
    """A module of ``in_tree`` under a private name, bound to the vLLM that is importable now."""
    path = Path(in_tree.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"in_tree_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
