"""vLLM's XPUPlatform on a machine without one."""

from __future__ import annotations

import torch
import xpu_kernels

# Importing the XPU platform replaces this function of torch by one that needs a device.
get_memory_info = torch.accelerator.get_memory_info
xpu_kernels.stub_package()
xpu_kernels.register()

from vllm.platforms.xpu import XPUPlatform  # noqa: E402

torch.accelerator.get_memory_info = get_memory_info


class SimulatedXpu(XPUPlatform):
    # vLLM registers its wrapped ops for this key; the tensors here are the CPU's.
    dispatch_key = "CPU"
