"""Platforms that are not here, as vLLM's own platform plug-in: put this folder on PYTHONPATH.

``NORMPORT_SIMULATE`` chooses one for the whole process:

    xpu         vLLM's XPUPlatform, with the kernels' stand-ins; for layers and configurations
    xpu-engine  the CPU's engine, whose layers, IR and compile mode act as on XPU
    musa        an out-of-tree platform with tensors whose device type is "musa"

What it shows is dispatch. It says nothing of the hardware's numbers or speed.
"""

from __future__ import annotations

import os

PLATFORMS = {
    "xpu": "simulated_xpu.SimulatedXpu",
    "xpu-engine": "simulated_xpu_engine.SimulatedXpuEngine",
    "musa": "simulated_musa.SimulatedMusa",
}


def platform() -> str | None:
    chosen = os.environ.get("NORMPORT_SIMULATE")
    return PLATFORMS[chosen] if chosen else None
