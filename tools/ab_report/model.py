"""What an ON/OFF report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from normport.tools.bootstrap import Interval

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Metric:
    """One measured quantity. key: its name in the JSON report and in table files."""

    key: str
    title: str
    unit: str
    better: Better

    def improved(self, change: float) -> bool:
        """Whether a change of this sign is for the better; False for none."""
        return change > 0 if self.better == "higher" else change < 0


METRICS = (
    Metric("output_throughput_tok_s", "Output throughput", "tok/s", "higher"),
    Metric("ttft_ms", "TTFT", "ms", "lower"),
    Metric("tpot_ms", "TPOT", "ms", "lower"),
    Metric("e2e_ms", "E2E", "ms", "lower"),
)


@dataclass(frozen=True)
class Key:
    """What makes two results comparable; None where it is not known.

    Lengths in tokens; batch_size is the largest number of requests at a time. request_rate in
    requests a second, ``inf`` as text.
    """

    model: str
    input_len: int | None
    output_len: int | None
    tensor_parallel_size: int | None
    precision: str | None
    batch_size: int | None
    num_prompts: int | None = None
    request_rate: float | str | None = None

    @property
    def label(self) -> str:
        """On one line, for tables and plots."""
        parallel = "TP?" if self.tensor_parallel_size is None else f"TP{self.tensor_parallel_size}"
        precision = self.precision or "precision ?"
        named = self.precision is not None and precision.lower() in self.model.lower()
        model = self.model if named else f"{self.model} {precision}"
        return f"{model} {parallel} {self.load}"

    @property
    def load(self) -> str:
        """Lengths and batch size."""
        lengths = f"{_known(self.input_len)}/{_known(self.output_len)}"
        return f"{lengths} BS {_known(self.batch_size)}"

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts models by name and the rest by size, unknown first."""
        rest = (
            self.input_len,
            self.output_len,
            self.tensor_parallel_size,
            self.batch_size,
            self.num_prompts,
        )
        numbers = tuple(-1 if number is None else number for number in rest)
        return (self.model, self.precision or "", *numbers, str(self.request_rate))


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)


@dataclass(frozen=True)
class Rounding:
    """Whether a printed change is possible, given how its inputs were rounded.

    low, high: the changes, in percent, that the rounding of the inputs allows. consistent: the
    printed change, give or take its own rounding, is among them. recomputed: what the rounded
    inputs give, with as many decimals as the printed change.
    """

    low: float
    high: float
    consistent: bool
    recomputed: float


@dataclass(frozen=True)
class Change:
    """One metric of one cell. change_percent: of ON against OFF; positive where ON is larger.

    interval: None where there is no spread to tell it from. decimals: as printed in the source,
    None for measurements of our own, which are not rounded.
    """

    off: float
    on: float
    change_percent: float
    interval: Interval | None = None
    rounding: Rounding | None = None
    decimals: int | None = None

    @property
    def shown(self) -> bool:
        """Whether the interval excludes no change at all."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)


Percentiles = dict[str, dict[str, dict[str, float]]]
"""Latency metric -> arm -> percentile (``50``) -> milliseconds."""


@dataclass(frozen=True)
class Cell:
    """One configuration, measured ON and OFF.

    runs: repeats (OFF, ON); None where the source does not say, which is not the same as one.
    changes: by metric key; a metric that was not measured is not in it.
    """

    key: Key
    runs: tuple[int, int] | None
    changes: dict[str, Change]
    percentiles: Percentiles = field(default_factory=dict)
    failed_requests: int = 0

    @property
    def n(self) -> str:
        if self.runs is None:
            return "unknown"
        off, on = self.runs
        return str(off) if off == on else f"{off} OFF, {on} ON"

    @property
    def claim(self) -> str:
        """What the number of repeats lets one say."""
        if self.runs is None:
            return "no claim: n unknown"
        if min(self.runs) < 2:
            return "no claim: n = 1"
        if not any(change.interval for change in self.changes.values()):
            return "no claim: the repeats are not given"
        return "interval"


@dataclass(frozen=True)
class Gain:
    """One row of the comparison with another server; gains positive where vLLM is better."""

    metric: str
    better: Better
    other: float
    off: float
    on: float
    off_gain_percent: float
    on_gain_percent: float
    decimals: tuple[int, int, int] | None = None
    off_rounding: Rounding | None = None
    on_rounding: Rounding | None = None


@dataclass(frozen=True)
class Standalone:
    """Both arms beside another server, in one configuration. runs: repeats (other, OFF, ON)."""

    title: str
    other: str
    settings: dict[str, Any]
    runs: tuple[int, int, int] | None
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class Report:
    """Everything the three forms of the report show.

    honesty: what the difference may be attributed to. coverage: what the source says about its
    sample counts. unmatched: results of one arm alone. notes: whatever else a reader must know.
    """

    title: str
    source: str
    honesty: str
    rewrites: int | None
    cells: tuple[Cell, ...]
    standalone: tuple[Standalone, ...] = ()
    coverage: str | None = None
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def roundings(self) -> list[Rounding]:
        """Of every printed change, ON/OFF and gains alike."""
        found = [change.rounding for cell in self.cells for change in cell.changes.values()]
        for case in self.standalone:
            for gain in case.gains:
                found += [gain.off_rounding, gain.on_rounding]
        return [each for each in found if each is not None]
