"""What an XPU brings to vLLM's norm layers, imitated on the CPU.

``register_kernels`` gives PyTorch the norm operators of the XPU kernel package, with its schemas
(read from the 0.1.14.1 wheel) and a CPU implementation that counts its calls, and puts empty
modules where vLLM imports that package. ``dispatch_as_xpu`` makes the layers that are built
afterwards choose their ``forward_xpu``; the rest of vLLM stays on its CPU platform. What this shows
is dispatch and plumbing, not how the real kernels behave.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

CALLS: Counter[str] = Counter()
"""Calls of each kernel since the start, by operator name."""

ROUNDS_SUM = True
"""Whether the fused Gemma kernel rounds the sum before it normalizes it, as the real one does.

vLLM's native path does not, so without it both give the same bits.
"""

SCHEMAS = {
    "gemma_rms_norm": "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()",
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
    "rms_norm": "(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()"
    ),
}

KERNEL_MODULES = (
    "vllm_xpu_kernels",
    "vllm_xpu_kernels._C",
    "vllm_xpu_kernels._moe_C",
    "vllm_xpu_kernels._xpu_C",
    "vllm_xpu_kernels.flash_attn_interface",
    "vllm_xpu_kernels.rotary",
)

library: list[torch.library.Library] = []


def normalised(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def check(x: torch.Tensor, weight: torch.Tensor | None) -> None:
    """What the real kernels refuse, so that a caller that passes it is caught here too."""
    if weight is not None and weight.dtype != x.dtype:
        raise RuntimeError(f"kernel called with a {weight.dtype} weight for a {x.dtype} input")


def scaled(out: torch.Tensor, weight: torch.Tensor | None, offset: float) -> torch.Tensor:
    return out if weight is None else out * (weight.float() + offset)


def gemma_rms_norm(
    result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    CALLS["gemma_rms_norm"] += 1
    check(input, weight)
    if not result.is_contiguous():
        raise RuntimeError("kernel called with an output that is not contiguous")
    result.copy_(scaled(normalised(input, epsilon), weight, 1.0))


def fused_add_gemma_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    CALLS["fused_add_gemma_rms_norm"] += 1
    check(input, weight)
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(scaled(normalised(residual if ROUNDS_SUM else total, epsilon), weight, 1.0))


def rms_norm(
    result: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    CALLS["rms_norm"] += 1
    check(input, weight)
    result.copy_(scaled(normalised(input, epsilon), weight, 0.0))


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    CALLS["fused_add_rms_norm"] += 1
    check(input, weight)
    residual.copy_(input.float() + residual.float())
    input.copy_(scaled(normalised(residual, epsilon), weight, 0.0))


IMPLEMENTATIONS = {
    "gemma_rms_norm": gemma_rms_norm,
    "fused_add_gemma_rms_norm": fused_add_gemma_rms_norm,
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
}


def no_device(*arguments: object, **keywords: object) -> None:
    raise RuntimeError("there is no XPU here")


def register_kernels() -> list[str]:
    """Register the operators that nobody has yet, and return their names.

    vLLM's CPU build brings ``_C::rms_norm`` and ``_C::fused_add_rms_norm`` of its own; those stay.
    """
    fragment = torch.library.Library("_C", "FRAGMENT")
    library.append(fragment)
    registered = []
    for name, schema in SCHEMAS.items():
        if hasattr(torch.ops._C, name):
            continue
        fragment.define(name + schema)
        fragment.impl(name, IMPLEMENTATIONS[name], "CPU")
        registered.append(name)
    for name in KERNEL_MODULES:
        sys.modules[name] = ModuleType(name)
    sys.modules["vllm_xpu_kernels"].__path__ = []
    sys.modules["vllm_xpu_kernels.flash_attn_interface"].flash_attn_varlen_func = no_device  # type: ignore[attr-defined]
    sys.modules["vllm_xpu_kernels.rotary"].apply_rotary_emb = no_device  # type: ignore[attr-defined]
    return registered


@contextmanager
def dispatch_as_xpu() -> Iterator[None]:
    """Layers built inside choose ``forward_xpu`` where they are enabled."""
    # Importing the XPU platform replaces this function of torch by one that needs a device.
    get_memory_info = torch.accelerator.get_memory_info
    from vllm.platforms.xpu import XPUPlatform

    torch.accelerator.get_memory_info = get_memory_info

    from vllm.model_executor import custom_op

    cpu = custom_op.current_platform
    custom_op.current_platform = XPUPlatform()
    try:
        yield
    finally:
        custom_op.current_platform = cpu
