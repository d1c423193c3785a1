"""Records as ``normport probe`` writes them: one of a device, one of a simulation."""

from __future__ import annotations

from typing import Any

DTYPES = ("float16", "bfloat16", "float32")


def measured(device: str = "Data Center GPU", **changes: Any) -> dict[str, Any]:
    """What a device showed of one kernel that ran and one that did not."""
    return {
        "schema": 1,
        "kind": "probe",
        "platform": "xpu",
        "simulated": False,
        "simulated_because": None,
        "device": device,
        "date": "2026-11-30",
        "torch": "2.13.0",
        "vllm": "0.29.0",
        "kernel_packages": {"vllm-xpu-kernels": "0.1.14.1"},
        "kernels": {
            "gemma_rms_norm": {
                "cases": {
                    "1 x 6656": {"float16": 1, "bfloat16": 1, "float32": 3},
                    "0 x 128": dict.fromkeys(DTYPES, "raised: empty"),
                },
                "aliases": None,
                "keeps_inputs": True,
                "ratio": {dtype: [1.5, 1.75, 2.0] for dtype in DTYPES},
            },
            "rms_norm": {"not_called_because": "it is registered with another schema"},
        },
    } | changes


def simulation(because: str = "torch knows no XPU here", **changes: Any) -> dict[str, Any]:
    """The same of stand-ins, which have no name and no times."""
    record = measured()
    record["kernels"]["gemma_rms_norm"]["ratio"] = {}
    return record | {"simulated": True, "simulated_because": because, "device": None} | changes
