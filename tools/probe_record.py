"""The JSON of ``normport probe``, read back: checked as a whole before it counts as evidence.

A simulation has neither a device's name nor times, and a real run has both, so that a record in
which only the word was changed is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError

SCHEMA = 1
DTYPES = ("float16", "bfloat16", "float32")
PLATFORMS = ("xpu", "musa")
MOST_ULPS = 1 << 32
"""No two values of a dtype of 32 bits or fewer are farther apart."""

_KEYS = {
    "schema",
    "kind",
    "platform",
    "simulated",
    "simulated_because",
    "device",
    "date",
    "torch",
    "vllm",
    "kernel_packages",
    "kernels",
}
_KERNEL_KEYS = {"cases", "aliases", "keeps_inputs", "ratio"}


class NotAProbe(ValueError):
    """The message is a clause: what is wrong with the record."""


@dataclass(frozen=True)
class Kernel:
    """What was seen of one kernel; the fields are those of ``layers.probe.Found``.

    not_called_because: why it was not run; all else is empty then.
    """

    cases: Mapping[str, Mapping[str, int | str]]
    aliases: bool | None
    keeps_inputs: bool | None
    ratio: Mapping[str, tuple[float, float, float]]
    not_called_because: str | None = None

    @property
    def worst(self) -> int | None:
        """The largest distance from native in ulp where the rows are dense; None: none ran."""
        told = [value for shape in DENSE for value in self.cases.get(shape, {}).values()]
        return max((value for value in told if isinstance(value, int)), default=None)


DENSE = ("1 x 6656", "7 x 6656", "83 x 769")
"""The shapes of the probe that every model has; the others are there to be odd."""


@dataclass(frozen=True)
class Probe:
    """One run of the probe.

    device: its name, None where it was simulated. because: why it counts as simulated.
    date: of the run, UTC. kernel_packages: package -> version.
    """

    platform: str
    because: str | None
    device: str | None
    date: str
    torch: str
    vllm: str | None
    kernel_packages: Mapping[str, str]
    kernels: Mapping[str, Kernel]

    @property
    def simulated(self) -> bool:
        return self.device is None

    @property
    def standing(self) -> str:
        """What the run can be evidence of, for every place that shows it."""
        if self.simulated:
            return f"a SIMULATION, which says nothing of the hardware ({self.because})"
        return f"measured on {self.device}"

    @property
    def summary(self) -> str:
        """One line: where, when, and what came of it."""
        ran = [kernel for kernel in self.kernels.values() if kernel.not_called_because is None]
        worst = max((kernel.worst for kernel in ran if kernel.worst is not None), default=None)
        what = "stand-ins of kernels" if self.simulated else "kernels"
        found = f"{len(ran)} of {len(self.kernels)} {what} ran"
        if worst is not None:
            found += f", at most {worst} ulp from native on dense rows"
        return f"{self.platform}: {self.standing}, {self.date}: {found}"


def load_probe(path: Path) -> tuple[Probe, Mapping[str, Any]]:
    """The record in a file, and its JSON.

    UserError: there is none, or it is no record of a probe that this normport understands.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): name what `normport probe --out` "
            "wrote."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: name what `normport probe --out` wrote.") from error
    try:
        return read_probe(content), content
    except NotAProbe as error:
        raise UserError(
            f"{path} is no record of a probe ({error}): name what `normport probe --out` wrote."
        ) from error


def read_probe(content: Any) -> Probe:
    """The record as JSON gives it. NotAProbe: it is none, or it contradicts itself."""
    record = _object(content, "the whole")
    if record.get("kind") != "probe":
        raise NotAProbe("its kind is not probe")
    if record.get("schema") != SCHEMA or isinstance(record["schema"], bool):
        raise NotAProbe(f"its schema is {record.get('schema')!r}, not {SCHEMA}")
    _same_keys(record, _KEYS, "the record")
    if record["platform"] not in PLATFORMS:
        raise NotAProbe(f"no platform is called {record['platform']!r}")
    simulated = record["simulated"]
    if not isinstance(simulated, bool):
        raise NotAProbe("it does not say whether it was simulated")
    device, because = _text(record, "device"), _text(record, "simulated_because")
    if simulated != (device is None) or simulated != (because is not None):
        raise NotAProbe("what it says of its device and of a simulation does not go together")
    date = _text(record, "date") or ""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", date) is None:
        raise NotAProbe("its date is none")
    torch = _text(record, "torch")
    if not torch:
        raise NotAProbe("it does not name its torch")
    packages = _object(record["kernel_packages"], "kernel_packages")
    if not all(map(_is_text, packages.values())):
        raise NotAProbe("kernel_packages holds what is no version")
    kernels = {
        name: _kernel(name, found, simulated)
        for name, found in _object(record["kernels"], "kernels").items()
    }
    if not kernels:
        raise NotAProbe("it looked at no kernel")
    return Probe(
        record["platform"],
        because,
        device,
        date,
        torch,
        _text(record, "vllm"),
        packages,
        kernels,
    )


def _kernel(name: str, content: Any, simulated: bool) -> Kernel:
    found = _object(content, name)
    if "not_called_because" in found:
        _same_keys(found, {"not_called_because"}, name)
        reason = _text(found, "not_called_because")
        if not reason:
            raise NotAProbe(f"{name} was not called for no reason")
        return Kernel({}, None, None, {}, reason)
    _same_keys(found, _KERNEL_KEYS, name)
    cases = {
        shape: _by_dtype(dtypes, f"{name}, {shape}")
        for shape, dtypes in _object(found["cases"], name).items()
    }
    if not cases or not all(map(_is_outcome, (v for c in cases.values() for v in c.values()))):
        raise NotAProbe(f"{name} has cases that are none")
    for key in ("aliases", "keeps_inputs"):
        if not (found[key] is None or isinstance(found[key], bool)):
            raise NotAProbe(f"{name}: {key} is neither true, false nor null")
    ratios = _object(found["ratio"], f"{name}, ratio")
    if simulated and ratios:
        raise NotAProbe(f"{name} has times, which a simulation has not")
    if not simulated:
        _by_dtype(ratios, f"{name}, ratio")
    if not all(map(_is_spread, ratios.values())):
        raise NotAProbe(f"{name} has times that are none")
    return Kernel(
        cases,
        found["aliases"],
        found["keeps_inputs"],
        {dtype: (low, middle, high) for dtype, (low, middle, high) in ratios.items()},
    )


def _by_dtype(content: Any, what: str) -> Mapping[str, Any]:
    """An object with one value for every dtype of the probe."""
    found = _object(content, what)
    _same_keys(found, set(DTYPES), what)
    return found


def _is_outcome(value: object) -> bool:
    """A distance in ulp, or what happened instead."""
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value <= MOST_ULPS
    return _is_text(value)


def _is_spread(value: object) -> bool:
    """Quartile, median, quartile of native's time over the kernel's."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(type(one) in (int, float) and math.isfinite(one) and one > 0 for one in value)
        and value == sorted(value)
    )


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise NotAProbe(f"{what} is no object")
    if not all(map(_is_text, value)):
        raise NotAProbe(f"{what} has a name that is no text")
    return value


def _is_text(value: object) -> bool:
    """What can be shown on a terminal and on a page: one line that is not blank."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _same_keys(found: Mapping[str, Any], wanted: set[str], what: str) -> None:
    if unlike := sorted(set(found) ^ wanted):
        there = "has" if unlike[0] in found else "lacks"
        raise NotAProbe(f"{what} {there} {unlike[0]}")


def _text(found: Mapping[str, Any], key: str) -> str | None:
    value = found[key]
    if value is not None and not _is_text(value):
        raise NotAProbe(f"{key} is no text")
    return value  # type: ignore[no-any-return]
