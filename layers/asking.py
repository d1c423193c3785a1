"""What one call of a norm would run, asked of vLLM's layer, its IR, the guards and the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from normport.layers import gemma_reasons, plugin, xpu

GUARD, LAYER, IR, NATIVE = (
    "kernel by guard",
    "kernel by layer",
    "kernel by IR",
    "native",
)
"""Our guard let a kernel run; vLLM's own layer calls one, unguarded; one of vLLM's own IR
providers does; or the native function runs, which in compile mode Inductor fuses."""

HIDDEN = 6656
"""MuseGlimmer's hidden size, as an example."""

OTHERS_CLASS = ("normport", "another out-of-tree class is registered, and left in place")

OURS = ("xpu_fp16_row", "xpu_weightless_qk")


@dataclass(frozen=True)
class Norm:
    """A kind of norm. ``rows`` times the tokens are the rows of its input."""

    name: str
    gemma: bool = False
    weight: str = "same"
    residual: bool = False
    hidden: int = HIDDEN
    rows: int = 1


Skipped = tuple[tuple[str, str], ...]
Told = tuple[str, str, Skipped]


def ask(norm: Norm, layer: Any, args: tuple[Tensor, ...], compiled: bool, config: Any) -> Told:
    """(path, what computes, what was passed over) for a layer that was built under ``config``."""
    method = layer._forward_method.__func__
    if not method.__module__.startswith(("vllm.", "normport.")):
        # A class that others registered: what it does is theirs to know.
        path = NATIVE if method.__name__ == "forward_native" else LAYER
        return path, f"{method.__module__}.{method.__qualname__}", (OTHERS_CLASS,)
    native = method.__name__ in ("forward_native", "forward_cpu") or not plugin.supported_platform()
    if norm.gemma and not native:
        told = _ask_gemma(norm, layer, args, compiled)
        if told is not None:
            return told
    if method.__name__ == "forward_oot" and method.__module__.startswith("normport."):
        return _ask_musa(norm, layer, args, compiled)
    by_pass: Skipped = ()
    if norm.gemma and native and compiled and plugin.supported_platform() == "xpu":
        against = _why_not_pass(norm, layer, args, config)
        if against is None:
            return GUARD, "vllm.xpu_gemma_rms_norm", ()
        by_pass = (("pass", against),)
    path, runs, skipped = _ask_ir(norm, layer, args, config)
    return path, runs, (*_unused_method(norm, layer, native and compiled), *skipped, *by_pass)


def _unused_method(norm: Norm, layer: Any, by_mode: bool) -> Skipped:
    """The method that would lead to a kernel, were it there or not left out by compile mode."""
    platform = plugin.supported_platform()
    # On XPU a plain RMSNorm's leads to the same IR op as its native one.
    if platform != "musa" and not (platform == "xpu" and norm.gemma):
        return ()
    name = f"forward_{platform}"
    method = getattr(layer, name, None)
    if method is None or method.__qualname__.startswith("CustomOp."):
        return ((name, "the layer has none: see what the plug-in did"),)
    return ((name, "compile mode makes the native path the one used"),) if by_mode else ()


def _ask_gemma(norm: Norm, layer: Any, args: tuple[Tensor, ...], traced: bool) -> Told | None:
    method = layer._forward_method.__func__
    if plugin.supported_platform() != "xpu" or method.__name__ != "forward_xpu":
        return None
    if method.__qualname__.startswith("CustomOp."):
        return None
    import vllm._xpu_ops as xpu_ops
    from vllm import envs

    if not hasattr(xpu_ops, "gemma_rms_norm_supported"):
        return LAYER, "vLLM's own GemmaRMSNorm.forward_xpu", ()
    weight = layer.weight.data
    op = "_C.fused_add_gemma_rms_norm" if norm.residual else "_C.gemma_rms_norm"
    if envs.VLLM_BATCH_INVARIANT:
        return NATIVE, "native", ((op, "batch-invariant mode"),)
    if traced:
        # In traced code the sum is a new tensor, and the op looks at the rest when it runs.
        guard: Callable[..., bool] = (
            xpu_ops.fused_add_gemma_rms_norm_traceable
            if norm.residual
            else xpu_ops.gemma_rms_norm_supported
        )
        if guard(*args, weight):
            return GUARD, "vllm.xpu_gemma_rms_norm", ()
        return NATIVE, "native", ((op, "the graph's arguments are not the kernel's"),)
    if norm.residual:
        reason = gemma_reasons.fused_gemma_refused(args[0], args[1], weight)
    else:
        reason = gemma_reasons.gemma_refused(args[0], weight)
    return (GUARD, op, ()) if reason is None else (NATIVE, "native", ((op, reason),))


def _why_not_pass(norm: Norm, layer: Any, args: tuple[Tensor, ...], config: Any) -> str | None:
    """Why the pass does not put Gemma's kernel into this graph, or None."""
    from vllm import envs
    from vllm.platforms import current_platform

    from normport.layers.in_tree.xpu_gemma_pass import XpuGemmaRMSNormPass

    passes = config.compilation_config.inductor_compile_config
    found = passes.get(current_platform.pass_key)
    # A patched vLLM's pass manager has the pass of its own accord.
    if not isinstance(found, XpuGemmaRMSNormPass) and find_spec(xpu.PASS) is None:
        return "it is not among this configuration's passes"
    if not hasattr(torch.ops.vllm, "xpu_gemma_rms_norm"):
        return "vllm.xpu_gemma_rms_norm, which it puts there, is not registered"
    if envs.VLLM_BATCH_INVARIANT:
        return "batch-invariant mode"
    if type(args[0].shape[0]) is not int:
        return "it is for the graph of one row"
    if norm.residual:
        return "with a residual the kernel normalizes the rounded sum"
    takes = XpuGemmaRMSNormPass.kernel_takes(args[0], layer.weight.data)
    return None if takes else "the graph's arguments are not the kernel's"


def _ask_musa(norm: Norm, layer: Any, args: tuple[Tensor, ...], compiled: bool) -> Told:
    from normport.kernels.rms_norm import rms_norm
    from normport.layers.in_tree import xpu_norm_providers as guards

    native = ("guard", "a residual has no guarded path") if norm.residual else None
    weight = layer.weight.data if getattr(layer, "pass_weight", True) else None
    refused = guards.weightless_qk_refused if weight is None else guards.fp16_row_refused
    if native is None and compiled:
        native = ("guard", "the code is traced, and the choice would freeze at the first size")
    if native is None and (reason := refused(args[0], weight)) is not None:
        native = ("guard", reason)
    if native is not None:
        return NATIVE, "native", (native,)
    skipped: list[tuple[str, str]] = []
    for provider in rms_norm.candidates("musa"):
        against = provider.why_unsupported()
        if against is None:
            return GUARD, f"provider {provider.name}", tuple(skipped)
        skipped.append((provider.name, against))
    return NATIVE, "native", tuple(skipped)


def _ask_ir(norm: Norm, layer: Any, args: tuple[Tensor, ...], config: Any) -> Told:
    """What vLLM's IR dispatches to, for what ``forward_native`` hands it."""
    from vllm import ir

    op = ir.ops.fused_add_rms_norm if norm.residual else ir.ops.rms_norm
    if norm.gemma:
        weight = layer.weight.data.float() + 1.0
    else:
        weight = layer.weight.data if layer.pass_weight else None
    chosen = op.dispatch(*args, weight, 1e-6).provider
    skipped = []
    for provider in op.get_priority():
        if provider == chosen:
            break
        if provider == "xpu_fp16_row":
            reason = xpu.providers().fp16_row_refused(args[0], weight)
        elif provider == "xpu_weightless_qk":
            reason = xpu.providers().weightless_qk_refused(args[0], weight)
        else:
            reason = "weight of another dtype" if weight is not None else "arguments"
        skipped.append((provider, str(reason)))
    for provider, impl in op.impls.items():
        if provider in (*OURS, "vllm_c") and provider not in op.get_priority():
            skipped.append((provider, _why_not_in_order(provider, impl.supported, config)))
    path = GUARD if chosen in OURS else NATIVE if chosen == "native" else IR
    return path, chosen, tuple(skipped)


def _why_not_in_order(provider: str, supported: bool, config: Any) -> str:
    if not supported:
        return "not supported on this platform"
    if provider not in OURS:
        return "not in the order of providers"
    return xpu.providers().why_not_placed(config) or "the plug-in is off"
