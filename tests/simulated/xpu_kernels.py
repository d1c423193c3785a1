"""The four norm kernels of vllm-xpu-kernels as CPU ops: its schemas, its numbers, its limits.

They compute in float32 and round once. As far as the kernels are known they throw where those
throw (another rank, a weight of another dtype, an output that is not contiguous, no elements), take
a weight as dense whatever its size, and the fused ones walk the input by ``stride(-2)`` and the
residual as dense rows. So a guard that is missing shows in the numbers or as an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

import torch
from torch import Tensor

SCHEMAS = {
    "rms_norm": "(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()"
    ),
    "gemma_rms_norm": "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()",
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
}
MODULES = (
    "vllm_xpu_kernels",
    "vllm_xpu_kernels._C",
    "vllm_xpu_kernels._moe_C",
    "vllm_xpu_kernels._xpu_C",
    "vllm_xpu_kernels.flash_attn_interface",
    "vllm_xpu_kernels.rotary",
)

calls: list[str] = []
"""Names of the kernels that ran, in order."""

libraries: list[torch.library.Library] = []


def _check(input: Tensor, weight: Tensor | None) -> None:
    if input.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(f"not implemented for {input.dtype}")
    if weight is not None and weight.dtype != input.dtype:
        raise RuntimeError(f"expected scalar type {input.dtype} but found {weight.dtype}")
    if input.numel() == 0:
        raise RuntimeError("an empty grid was submitted")


def _normalized(rows: Tensor, weight: Tensor | None, epsilon: float, offset: float) -> Tensor:
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    if weight is None:
        return wide
    return wide * (weight.as_strided((rows.shape[-1],), (1,)).float() + offset)


def _norm(
    result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float, offset: float
) -> None:
    _check(input, weight)
    if input.dim() not in (2, 3, 4):
        raise RuntimeError(f"unsupported rank {input.dim()}")
    if not result.is_contiguous():
        raise RuntimeError("result must be contiguous")
    if input.stride(-1) != 1:
        input = input.contiguous()
        if input.stride(-1) != 1:
            raise RuntimeError("the last stride of the input must be 1")
    result.copy_(_normalized(input, weight, epsilon, offset))


def _fused(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, offset: float
) -> None:
    _check(input, weight)
    hidden = input.shape[-1]
    tokens = input.numel() // hidden
    rows = input.as_strided((tokens, hidden), (input.stride(-2), 1))
    sums = residual.as_strided((tokens, hidden), (hidden, 1))
    sums.copy_(rows + sums)
    rows.copy_(_normalized(sums, weight, epsilon, offset))


def rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    calls.append("rms_norm")
    _norm(result, input, weight, epsilon, 0.0)


def fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    calls.append("fused_add_rms_norm")
    _fused(input, residual, weight, epsilon, 0.0)


def gemma_rms_norm(result: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
    calls.append("gemma_rms_norm")
    _norm(result, input, weight, epsilon, 1.0)


def fused_add_gemma_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> None:
    calls.append("fused_add_gemma_rms_norm")
    _fused(input, residual, weight, epsilon, 1.0)


RUN = {
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
    "gemma_rms_norm": gemma_rms_norm,
    "fused_add_gemma_rms_norm": fused_add_gemma_rms_norm,
}


def _no_device(*arguments: object, **keywords: object) -> None:
    raise RuntimeError("there is no XPU here")


def register() -> None:
    """Register what is not there; where vLLM's CPU build has an op, its CPU kernel is replaced."""
    fragment = torch.library.Library("_C", "FRAGMENT")
    libraries.append(fragment)
    for name, schema in SCHEMAS.items():
        known = hasattr(torch.ops._C, name)
        if not known:
            fragment.define(name + schema)
        fragment.impl(name, RUN[name], "CPU", allow_override=known)


def name_only(names: Iterable[str]) -> None:
    """Define ops that have to exist and are never called."""
    fragment = torch.library.Library("_C", "FRAGMENT")
    libraries.append(fragment)
    for name in names:
        if not hasattr(torch.ops._C, name):
            fragment.define(f"{name}() -> ()")


def stub_package() -> None:
    """Empty modules where vLLM imports the kernel package."""
    for name in MODULES:
        sys.modules[name] = ModuleType(name)
    sys.modules["vllm_xpu_kernels"].__path__ = []
    attention = sys.modules["vllm_xpu_kernels.flash_attn_interface"]
    vars(attention)["flash_attn_varlen_func"] = _no_device
    vars(sys.modules["vllm_xpu_kernels.rotary"])["apply_rotary_emb"] = _no_device
