"""An out-of-tree platform whose device is "musa", as vllm-musa's is."""

from __future__ import annotations

from typing import Any

import musa_tensor
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

musa_tensor.install()


class SimulatedMusa(CpuPlatform):
    """Configurations are left as they are: there is no engine for these tensors."""

    _enum = PlatformEnum.OOT
    device_name = "musa"
    device_type = "musa"
    dispatch_key = "PrivateUse1"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        compilation = vllm_config.compilation_config
        compilation.compile_sizes = compilation.compile_sizes or []
