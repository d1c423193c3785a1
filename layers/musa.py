"""What the plug-in does on MUSA: classes of vLLM's own norms, found by vLLM's own registry.

vLLM builds the class registered under a layer's class name in place of the layer, and calls its
``forward_oot`` where the layer is enabled. A class that was registered before ours is left in
place, and one that is registered after ours takes its place, as vllm-musa's may.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import envs
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

from normport.kernels.rms_norm import rms_norm
from normport.layers.in_tree.xpu_norm_providers import fp16_row_refused, weightless_qk_refused

INSTALLED = "installed"

Normed = Tensor | tuple[Tensor, Tensor]


class MusaRMSNorm(RMSNorm):  # type: ignore[misc]
    """``RMSNorm`` with the device's kernel for one float16 row and for one token's heads."""

    def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Normed:
        return self.forward_musa(x, residual)

    def forward_musa(self, x: Tensor, residual: Tensor | None = None) -> Normed:
        """x: ``[..., hidden]``. Whatever the guards refuse runs as it would without us."""
        if residual is None:
            weight = self.weight.data if self.pass_weight else None
            if row_or_heads(x, weight, self.variance_size_override):
                return rms_norm(x, weight, self.variance_epsilon)
        return self.forward_native(x, residual)  # type: ignore[no-any-return]


class MusaGemmaRMSNorm(GemmaRMSNorm):  # type: ignore[misc]
    """``GemmaRMSNorm`` with the device's kernel for one float16 row."""

    def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Normed:
        return self.forward_musa(x, residual)

    def forward_musa(self, x: Tensor, residual: Tensor | None = None) -> Normed:
        """x: ``[..., hidden]``. Whatever the guard refuses runs as it would without us."""
        if residual is None and fp16_row_refused(x, self.weight.data) is None:
            return rms_norm(
                x, self.weight.data, self.variance_epsilon, None, offset=True, wide=True
            )
        return self.forward_native(x, residual)  # type: ignore[no-any-return]


def row_or_heads(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    """Whether one of the two guards of the XPU providers takes ``x``."""
    refused = weightless_qk_refused if weight is None else fp16_row_refused
    return refused(x, weight, variance_size) is None


OURS: dict[str, type] = {"RMSNorm": MusaRMSNorm, "GemmaRMSNorm": MusaGemmaRMSNorm}
"""By the class name of the layer that each one stands for."""


def install() -> dict[str, str]:
    """Register each class whose place is free and return what happened to it, by layer."""
    if envs.VLLM_BATCH_INVARIANT:
        return dict.fromkeys(OURS, "batch-invariant mode")
    _give_way()
    return {name: _register(name, ours) for name, ours in OURS.items()}


def registered() -> dict[str, str]:
    """What vLLM builds in the place of each layer now: ``installed`` or whose class it is."""
    found = {name: op_registry_oot.get(name) for name in OURS}
    return {name: _whose(name, registered) for name, registered in found.items()}


def _register(name: str, ours: type) -> str:
    if name in op_registry_oot:
        return _whose(name, op_registry_oot[name])
    base: Any = ours.__mro__[1]
    kept = base.name
    base.register_oot(ours)
    # register_oot renames the op after the class; only "+RMSNorm" would enable it then.
    ours.name = kept  # type: ignore[attr-defined]
    return INSTALLED


def _whose(name: str, registered: type | None) -> str:
    if registered is OURS[name]:
        return INSTALLED
    if registered is None:
        return "no class is registered"
    return f"{registered.__module__}.{registered.__qualname__} is registered and left in place"


def _give_way() -> None:
    """Let a later registration under the same name replace ours, where vLLM would fail."""
    register = CustomOp.register_oot.__func__
    if hasattr(register, "gives_way"):
        return

    def register_oot(cls: type, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
        wanted = cls.__name__ if name is None else name
        if wanted in OURS and op_registry_oot.get(wanted) is OURS[wanted]:
            del op_registry_oot[wanted]
        return register(cls, _decorated_op_cls, name)

    register_oot.gives_way = True  # type: ignore[attr-defined]
    CustomOp.register_oot = classmethod(register_oot)
