"""vLLM's CPU platform with what the MUSA one has: real compilation, all-reduces as ops, the mixin.

The CPU platform turns vLLM's own compile mode into one without a pass manager, and its communicator
reduces in place; both are undone here by inheritance. ``NORMPORT_CAR_TEST`` is a JSON list of cells
for tiny models.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import torch
from vllm.platforms.cpu import CpuPlatform

from normport.layers.car_rmsnorm.contract import CONTRACT, Cell
from normport.layers.car_rmsnorm.platform import CarRmsNormMixin


def cells() -> tuple[Cell, ...]:
    given = json.loads(os.environ["NORMPORT_CAR_TEST"])
    if not isinstance(given, list):
        return CONTRACT
    return tuple(
        Cell(
            **{
                **fields,
                "native_rows": tuple(fields["native_rows"]),
                "endpoints": tuple(fields["endpoints"]),
            }
        )
        for fields in given
    )


def define_missing() -> None:
    """Names of CUDA ops that one of vLLM's passes compares with, where the CPU build has none."""
    import importlib.util

    spec = importlib.util.find_spec("vllm.compilation.passes.utility.fix_functionalization")
    assert spec is not None
    assert spec.origin is not None
    for name in sorted(set(re.findall(r"torch\.ops\._C\.(\w+)", Path(spec.origin).read_text()))):
        if not hasattr(torch.ops._C, name):
            library.define(f"{name}(Tensor x) -> Tensor")


library = torch.library.Library("_C", "FRAGMENT")


class CompilingCpuPlatform(CpuPlatform):
    @classmethod
    def import_kernels(cls) -> None:
        super().import_kernels()
        define_missing()

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from vllm.config import CompilationMode

        compilation = vllm_config.compilation_config
        mode = compilation.mode
        super().check_and_update_config(vllm_config)
        # The ranks then need not import vLLM again.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if mode == CompilationMode.VLLM_COMPILE:
            compilation.mode = mode
            compilation.compile_sizes = compilation.compile_sizes or []
            compilation.ir_enable_torch_wrap = True

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        return True

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "normport_car_test_communicator.FreshCommunicator"


class CarTestPlatform(CarRmsNormMixin, CompilingCpuPlatform):
    car_rmsnorm_table = cells()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        name = multiprocessing.current_process().name
        if os.environ.get("NORMPORT_CAR_UNEVEN") and name.endswith("-1"):
            # One rank with another installation, as far as the others can see.
            cls.car_rmsnorm_table = (*cls.car_rmsnorm_table, *CONTRACT)
        return super().get_device_communicator_cls()
