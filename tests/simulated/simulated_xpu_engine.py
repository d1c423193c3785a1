"""The CPU's engine with the layers, the IR and the compile mode of XPU."""

from __future__ import annotations

from typing import Any

import torch
import xpu_kernels

get_memory_info = torch.accelerator.get_memory_info
xpu_kernels.stub_package()

from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.platforms.interface import PlatformEnum  # noqa: E402
from vllm.platforms.xpu import XPUPlatform  # noqa: E402

torch.accelerator.get_memory_info = get_memory_info


class SimulatedXpuEngine(CpuPlatform):
    """Everything but the norms is the CPU's."""

    _enum = PlatformEnum.XPU
    get_default_ir_op_priority = vars(XPUPlatform)["get_default_ir_op_priority"]

    @classmethod
    def import_kernels(cls) -> None:
        CpuPlatform.import_kernels()
        if not xpu_kernels.libraries:
            xpu_kernels.register()

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """The CPU's, which would turn vLLM's compile mode into another."""
        compilation = vllm_config.compilation_config
        mode, wrap = compilation.mode, compilation.ir_enable_torch_wrap
        super().check_and_update_config(vllm_config)
        compilation.mode, compilation.ir_enable_torch_wrap = mode, wrap
        # Without a list of sizes no shape would be compiled for.
        compilation.compile_sizes = compilation.compile_sizes or []
