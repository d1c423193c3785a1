"""What each kind of norm would run in this process, and why: asked of vLLM itself.

Layers are built under real configurations, eager and compiled, and the answer is read from the
method that vLLM chose for them, from the providers that its IR would dispatch to, and from the
guards. Nothing is run on a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from normport.layers import plugin
from normport.layers.asking import Norm, ask

HEADS, HEAD_DIM, MORE_ROWS = 52, 128, 64
"""The example sizes: MuseGlimmer's heads, and a small prefill."""

NORMS = (
    Norm("RMSNorm"),
    Norm("RMSNorm, float32 weight", weight="float32"),
    Norm("RMSNorm, weightless, of heads", weight="none", hidden=HEAD_DIM, rows=HEADS),
    Norm("RMSNorm, weightless, wide", weight="none"),
    Norm("RMSNorm with residual", residual=True),
    Norm("GemmaRMSNorm", gemma=True),
    Norm("GemmaRMSNorm with residual", gemma=True, residual=True),
)


@dataclass(frozen=True)
class Answer:
    """What one norm runs in one situation.

    situation: ``eager, 1 token``, ``eager, 64 tokens``, ``compiled, one-row graph`` or
        ``compiled, other ranges``.
    path: one of the four of ``asking``. runs: the method, provider or op that computes.
    skipped: what came before it in the order, each with the reason against it.
    """

    norm: str
    situation: str
    path: str
    runs: str
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Mode:
    """One configuration of vLLM, as it is after the platform's checks."""

    name: str
    custom_ops: list[str]
    priority: dict[str, list[str]]
    compile_sizes: list[int]
    native_by_compile: bool
    answers: list[Answer]


def diagnose(dtype: torch.dtype, custom_ops: Sequence[str] = ()) -> list[Mode]:
    """The answers for every norm of ``dtype``, eager and compiled with ``compile_sizes=[1]``.

    custom_ops: as vLLM's setting, e.g. ``["none", "+gemma_rms_norm"]``; empty for vLLM's default.
    """
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config

    modes = []
    for name, number in (("eager", 0), ("compiled", 3)):
        sizes: list[int] = [1] if name == "compiled" else []
        config = VllmConfig(
            compilation_config=CompilationConfig(
                mode=number, custom_ops=list(custom_ops), compile_sizes=sizes
            )
        )
        priority = config.kernel_config.ir_op_priority
        with set_current_vllm_config(config), priority.set_priority(), torch.no_grad():
            compilation = config.compilation_config
            modes.append(
                Mode(
                    name,
                    list(compilation.custom_ops),
                    {
                        "rms_norm": list(priority.rms_norm),
                        "fused_add_rms_norm": list(priority.fused_add_rms_norm),
                    },
                    list(compilation.compile_sizes or []),
                    name == "compiled" and "none" in compilation.custom_ops,
                    list(_answers(dtype, name == "compiled", config)),
                )
            )
    return modes


def why_simulated() -> str | None:
    """Why the XPU or MUSA that vLLM found is none, or None where there is nothing against it."""
    platform = plugin.supported_platform()
    if platform is None:
        return None
    if os.environ.get("NORMPORT_SIMULATE"):
        return "NORMPORT_SIMULATE is set"
    if platform == "xpu" and not torch.xpu.is_available():
        return "torch knows no XPU here"
    if platform == "musa":
        there = find_spec("torch_musa") and torch.get_device_module("musa").is_available()
        return None if there else "torch_musa knows no device here"
    return None


def simulated() -> bool:
    """Whether the platform says XPU or MUSA and there is no such device here."""
    return why_simulated() is not None


def _answers(dtype: torch.dtype, compiled: bool, config: Any) -> Iterator[Answer]:
    for norm in NORMS:
        layer = _build(norm, dtype)
        if not compiled:
            for tokens in (1, MORE_ROWS):
                args = _arguments(norm, dtype, tokens)
                situation = f"eager, {tokens} token{'s' if tokens > 1 else ''}"
                yield Answer(norm.name, situation, *ask(norm, layer, args, False, config))
        else:
            one = _arguments(norm, dtype, 1)
            yield Answer(norm.name, "compiled, one-row graph", *ask(norm, layer, one, True, config))
            many = tuple(map(_symbolic, _arguments(norm, dtype, MORE_ROWS)))
            yield Answer(norm.name, "compiled, other ranges", *ask(norm, layer, many, True, config))


def _build(norm: Norm, dtype: torch.dtype) -> Any:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    if norm.gemma:
        return GemmaRMSNorm(norm.hidden).to(dtype)
    wanted = torch.float32 if norm.weight == "float32" else dtype
    return RMSNorm(norm.hidden, has_weight=norm.weight != "none", dtype=wanted)


def _arguments(norm: Norm, dtype: torch.dtype, tokens: int) -> tuple[Tensor, ...]:
    shape = (norm.rows * tokens, norm.hidden)
    return tuple(torch.zeros(shape, dtype=dtype) for _ in range(1 + norm.residual))


def _symbolic(tensor: Tensor) -> Tensor:
    """The same with a number of rows that is not known, as a graph for a range has it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC]
    )
    return mode.from_tensor(tensor, symbolic_context=rows)
