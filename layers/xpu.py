"""What the plug-in does on XPU: the text of the patches, put into the vLLM that runs."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from normport.kernels import schemas

INSTALLED = "installed"
IN_TREE = "in vLLM already, left as it is"
PROVIDERS = "vllm.kernels.xpu_norm_providers"
PASS = "vllm.compilation.passes.fusion.xpu_gemma_rms_norm"
"""Where the optional patch puts ``xpu_norm_providers.py`` and ``xpu_gemma_pass.py``."""


def install() -> dict[str, str]:
    """Install each part that vLLM lacks and return what happened to it, by part."""
    return {
        "GemmaRMSNorm.forward_xpu": _install_gemma(),
        "IR providers of rms_norm": _install_providers(),
        "Gemma in the one-row graph": _install_pass(),
    }


def providers() -> ModuleType:
    """The module with the guards and providers: vLLM's where the optional patch is applied."""
    if find_spec(PROVIDERS) is not None:
        from importlib import import_module

        return import_module(PROVIDERS)
    from normport.layers.in_tree import xpu_norm_providers

    return xpu_norm_providers


class ForwardXpu:
    """``forward_xpu`` for a class and those of its subclasses that compute the same.

    Which method a layer takes is asked once, when it is built. A subclass with a native norm of
    its own would lose it to the kernel, so it keeps what it had: CustomOp's default, its own norm.
    """

    def __init__(self, owner: type, forward: Any) -> None:
        self.native = owner.forward_native  # type: ignore[attr-defined]
        self.forward = forward
        self.default = owner.forward_xpu  # type: ignore[attr-defined]

    def __get__(self, layer: Any, owner: type) -> Any:
        same = owner.forward_native is self.native  # type: ignore[attr-defined]
        chosen = self.forward if same else self.default
        return chosen if layer is None else chosen.__get__(layer, owner)


def _install_gemma() -> str:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm

    existing = vars(GemmaRMSNorm).get("forward_xpu")
    if isinstance(existing, ForwardXpu):
        return INSTALLED
    if existing is not None:
        return IN_TREE
    import vllm._xpu_ops as xpu_ops

    from normport.layers.in_tree import layernorm
    from normport.layers.in_tree import xpu_ops as ours

    if not ours.HAS_GEMMA_RMS_NORM:
        return "the kernel package has no Gemma norms"
    for name in ("gemma_rms_norm", "fused_add_gemma_rms_norm"):
        if (refused := schemas.why_not_registered(name)) is not None:
            return f"_C.{name} is not called: {refused}"
    # forward_xpu looks them up there, as it does in a patched vLLM.
    for name, value in vars(ours).items():
        if getattr(value, "__module__", None) == ours.__name__ or name == "HAS_GEMMA_RMS_NORM":
            setattr(xpu_ops, name, value)
    ours.register_ops()
    GemmaRMSNorm.forward_xpu = ForwardXpu(GemmaRMSNorm, layernorm.GemmaRMSNorm.forward_xpu)
    return INSTALLED


def _install_providers() -> str:
    if find_spec(PROVIDERS) is not None:
        return IN_TREE
    found = providers()
    if found.KERNEL_REFUSED is not None:
        return str(found.KERNEL_REFUSED)
    _after_configuration("providers", found.place_norm_providers)
    return INSTALLED


def _install_pass() -> str:
    if find_spec(PASS) is not None:
        return IN_TREE
    import torch
    import vllm._xpu_ops  # noqa: F401 - registers the op where vLLM has it

    if not hasattr(torch.ops.vllm, "xpu_gemma_rms_norm"):
        return "vllm.xpu_gemma_rms_norm, which it puts there, is not registered"
    _after_configuration("pass", _add_pass)
    return INSTALLED


def _add_pass(config: Any) -> None:
    """Hand the pass to vLLM where its own hook for one is free."""
    from vllm.config import CompilationMode
    from vllm.platforms import current_platform

    from normport.layers.in_tree.xpu_gemma_pass import XpuGemmaRMSNormPass

    compilation = config.compilation_config
    if compilation.mode == CompilationMode.VLLM_COMPILE:
        compilation.inductor_compile_config.setdefault(
            current_platform.pass_key, XpuGemmaRMSNormPass()
        )


def _after_configuration(part: str, action: Any) -> None:
    """Have ``action(config)`` run after the platform's own check of every configuration.

    That is the last step in which a platform may change it, after the defaults that depend on
    which provider stands first.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    actions = vars(platform).get("normport_actions")
    if actions is None:
        actions = {}
        check = platform.check_and_update_config

        def check_and_update_config(cls: type, vllm_config: Any) -> None:
            check(vllm_config)
            for act in actions.values():
                act(vllm_config)

        platform.check_and_update_config = classmethod(check_and_update_config)
        platform.normport_actions = actions
    actions[part] = action
