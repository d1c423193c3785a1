"""``normport route``: fused or native for a configuration, and why."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from normport.layers.car_rmsnorm.contract import RouteConfig, cell_for, route
from normport.layers.car_rmsnorm.reading import Model, read_model
from normport.layers.car_rmsnorm.tables import Intervals, intervals
from normport.tools.errors import UserError


class RouteFormat(StrEnum):
    """The values of ``--output-format`` of ``normport route``."""

    text = "text"
    json = "json"


def route_command(
    model_config: Path,
    *,
    tp: int,
    pp: int,
    dtype: str,
    rows: int | None,
    compile_range: str | None,
    output_format: RouteFormat,
) -> str:
    """What ``normport route`` prints.

    Raises UserError for a config that cannot be read and for options that contradict each other.
    """
    for option, size in (("--tp", tp), ("--pp", pp)):
        if size < 1:
            raise UserError(f"{option} {size} is no parallel size; give 1 or more.")
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype} is unknown; give {', '.join(DTYPES)}.")
    config = configuration(read_model(_read(model_config)), tp=tp, pp=pp, dtype=dtype)
    if rows is not None and compile_range is not None:
        raise UserError("--rows and --range are two questions; give one of them.")
    decision = route(config, rows, None if compile_range is None else _parse(compile_range))
    as_json = output_format is RouteFormat.json
    if rows is None and compile_range is None:
        found = intervals(cell_for(config))
        if as_json:
            return json.dumps(found) + "\n"
        return decision.reason + "\n" + _table(found)
    if as_json:
        answer = {"fused": decision.fused, "code": decision.code, "reason": decision.reason}
        return json.dumps(answer) + "\n"
    return f"{'fused' if decision.fused else 'native'} [{decision.code}] {decision.reason}\n"


def configuration(model: Model, *, tp: int, pp: int, dtype: str) -> RouteConfig:
    """The route configuration of a model under these options.

    dtype "auto" is the checkpoint's, and bfloat16 for one in float32 or one that does not say,
    as vLLM serves it.
    """
    if dtype == "auto":
        dtype = "bfloat16" if model.dtype in (None, "float32") else model.dtype
    return RouteConfig(
        family=model.family,
        size=model.size,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        hidden_size=model.hidden_size,
        dtype=_DTYPES.get(dtype, dtype),
        precision=model.precision,
    )


DTYPES = ("auto", "bfloat16", "float16", "half", "float32", "float")
"""What vLLM's ``--dtype`` takes."""

_DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's other names."""

_MODELOPT_FILE = "hf_quant_config.json"
"""Beside config.json, where vLLM looks for a quantization config that is not in it."""


def _read(path: Path) -> dict[str, Any]:
    """A model's config.json, with the quantization config that lies beside it."""
    if path.is_dir():
        path = path / "config.json"
    config = _read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{path} has no model_type; name a model's config.json.")
    beside = path.parent / _MODELOPT_FILE
    if config.get("quantization_config") is None and beside.exists():
        config["quantization_config"] = _read_json(beside)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); name a model's config.json."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON; name a model's config.json.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; name a model's config.json.")
    return content


def _parse(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(low), int(high)
    except ValueError:
        raise UserError(f"--range {text} is not A:B; give for example 17:63.") from None


def _table(found: Intervals) -> str:
    return "".join(f"{name:12} {_shown(value)}\n" for name, value in found.items())


def _shown(value: Any) -> str:
    parts = [f"[{v[0]},{v[1]}]" if isinstance(v, list) else str(v) for v in value]
    return " ".join(parts) or "-"
