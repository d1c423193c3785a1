"""``normport probe``: what the norm kernels of an XPU or MUSA machine compute, as evidence."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.terminal import write_text


def probe_command(*, as_json: bool, out: Path | None) -> int:
    """Run the probe, print it, write it to ``out`` as JSON too, and return 0.

    UserError: there is no vLLM, XPU or MUSA here, or ``out`` cannot be written.
    """
    if find_spec("vllm") is None:
        raise UserError(
            "The probe needs vLLM and its XPU or MUSA platform: run it where vLLM runs."
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        report = _probe()
    except ImportError as error:
        raise UserError(
            f"vLLM is here but lacks what the probe asks of it ({error}): repair it, or install "
            "one from 0.29 on."
        ) from error
    text = json.dumps(report, indent=2) + "\n"
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    write_text(text if as_json else _text(report))
    return 0


def _probe() -> dict[str, Any]:
    import torch

    from normport.layers import diagnosis, plugin

    platform = plugin.supported_platform()
    if platform is None:
        raise UserError("There is no XPU and no MUSA here for the probe to look at.")
    from normport.kernels import schemas
    from normport.layers import probe

    simulated = diagnosis.simulated()
    device = "cpu" if simulated and platform == "xpu" else platform
    against = {}
    if platform == "xpu":
        against = {name: schemas.why_not_registered(name) for name in schemas.XPU_SCHEMAS}
    found: dict[str, Any] = {}
    with torch.no_grad():
        for subject in probe.subjects(platform):
            refused = against.get(subject.name.partition(",")[0])
            if refused is None:
                found[subject.name] = asdict(probe.look_at(subject, device, timed=not simulated))
            else:
                found[subject.name] = {"not_called_because": refused}
    return {
        "schema": 1,
        "platform": platform,
        "simulated": simulated,
        "torch": torch.__version__,
        "device": None if simulated else torch.get_device_module(platform).get_device_name(),
        "schemas": against,
        "kernels": found,
    }


def _text(report: dict[str, Any]) -> str:
    what = "a SIMULATION, which says nothing of the hardware" if report["simulated"] else "measured"
    lines = [f"{report['platform']}: {what}; torch {report['torch']}"]
    for name, found in report["kernels"].items():
        lines.append(name)
        if "not_called_because" in found:
            lines.append(f"  not called: {found['not_called_because']}")
            continue
        for shape, dtypes in found["cases"].items():
            told = ", ".join(
                f"{dtype} {value if isinstance(value, str) else f'{value} ulp'}"
                for dtype, value in dtypes.items()
            )
            lines.append(f"  {shape:<18}{told}")
        if found["aliases"] is not None:
            lines.append(f"  works in place    {'yes' if found['aliases'] else 'NO'}")
        for dtype, (low, middle, high) in found["ratio"].items():
            lines.append(f"  native / kernel   {dtype} {middle:.2f} [{low:.2f}, {high:.2f}]")
    return "\n".join(lines) + "\n"
