"""The CPU's engine with the layers, the IR and the compile mode of XPU."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import xpu_kernels

get_memory_info = torch.accelerator.get_memory_info
xpu_kernels.stub_package()

from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.platforms.interface import PlatformEnum  # noqa: E402
from vllm.platforms.xpu import XPUPlatform  # noqa: E402

torch.accelerator.get_memory_info = get_memory_info
# What the engine asks and tells every device; there is none.
torch.accelerator.max_memory_allocated = lambda *device: 0
torch.accelerator.reset_peak_memory_stats = lambda *device: None
torch.accelerator.empty_cache = lambda: None
torch.accelerator.empty_host_cache = lambda: None

NAMED_BY_PASSES = (
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "fused_qk_norm_rope",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "per_token_group_fp8_quant",
)
"""What vLLM's fusion passes for XPU look up when they are imported; nothing calls them here."""


class SimulatedXpuEngine(CpuPlatform):
    """Everything but the norms is the CPU's."""

    _enum = PlatformEnum.XPU
    get_default_ir_op_priority = vars(XPUPlatform)["get_default_ir_op_priority"]

    @classmethod
    def import_kernels(cls) -> None:
        CpuPlatform.import_kernels()
        if not xpu_kernels.libraries:
            xpu_kernels.register()
            xpu_kernels.name_only(NAMED_BY_PASSES)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """The CPU's, which would turn vLLM's compile mode into another."""
        compilation = vllm_config.compilation_config
        mode, wrap = compilation.mode, compilation.ir_enable_torch_wrap
        super().check_and_update_config(vllm_config)
        from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

        TopKTopPSampler.forward_xpu = TopKTopPSampler.forward_native
        compilation.mode, compilation.ir_enable_torch_wrap = mode, wrap
        # Without a list of sizes no shape would be compiled for.
        compilation.compile_sizes = compilation.compile_sizes or []
        # A patched XPUPlatform ends so; its own function is not run, since it is the device's.
        if "place_norm_providers(vllm_config)" in inspect.getsource(
            XPUPlatform.check_and_update_config
        ):
            from vllm.kernels.xpu_norm_providers import place_norm_providers

            place_norm_providers(vllm_config)
