"""Results of ``vllm bench serve --save-result`` (vLLM 0.29): read, matched, pooled."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normport.tools.ab_report.configuration import SIDECAR, configuration, is_finite
from normport.tools.ab_report.model import Better, Cell, Change, Gain, Key, Percentiles, Standalone
from normport.tools.bootstrap import independent_change, percent_change
from normport.tools.errors import UserError
from normport.tools.plural import many

VALUES = {
    "output_throughput_tok_s": "output_throughput",
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    "e2e_ms": "mean_e2el_ms",
}
"""Metric of the report -> the field of a result file; the latencies are means over requests."""

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)_ms")

_STANDALONE: tuple[tuple[str, str, Better], ...] = (
    ("Input throughput (tok/s)", "input_throughput", "higher"),
    ("Output throughput (tok/s)", "output_throughput", "higher"),
    *(
        (f"{title} {name} ({unit})", f"{field}_{metric}_ms", "lower")
        for name, metric, unit in (("TTFT", "ttft", "ms"), ("TPOT", "tpot", "ms/token"))
        for title, field in (("Mean", "mean"), ("Median", "median"), ("P90", "p90"), ("P99", "p99"))
    ),
)


_CLOSE = 0.02
"""How far, of the smaller, the mean lengths of one load's repeats may lie from each other."""


@dataclass(frozen=True)
class Result:
    """One benchmark run.

    values: its numeric fields, as written, plus ``input_throughput``. reckoned: the lengths of its
    key that are only the mean of its requests' lengths.
    """

    path: Path
    key: Key
    values: dict[str, float]
    failed: int
    reckoned: frozenset[str] = frozenset()


def read_arm(folders: Sequence[Path]) -> list[Result]:
    """Every result below ``folders``; UserError where there is none or one cannot be used."""
    results = [result for folder in folders for result in _below(folder)]
    if not results:
        raise UserError(
            f"{', '.join(map(str, folders))}: no result of `vllm bench serve --save-result` there."
        )
    return results


def _below(folder: Path) -> Iterable[Result]:
    if not folder.exists():
        raise UserError(f"{folder} does not exist; name a folder of benchmark results.")
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
    for file in files:
        if file.name == SIDECAR:
            continue
        yield from _results(file, only=folder.is_file())


def _results(file: Path, *, only: bool) -> Iterable[Result]:
    """The results in one file; ``--append-result`` puts one on each line."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text; move it out of the folder.") from error
    try:
        values = [json.loads(text)]
    except RecursionError as error:
        raise UserError(f"{file} is not JSON ({error}); move it out of the folder.") from error
    except ValueError:
        try:
            # Not splitlines(), which also ends a line inside of a text.
            values = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is not JSON ({error}); move it out of the folder.") from error
    for value in values:
        if isinstance(value, dict) and {"model_id", "duration", "completed"} <= value.keys():
            yield _result(file, value)
        elif only:
            raise UserError(f"{file} is no result of `vllm bench serve --save-result`.")


def _result(file: Path, value: dict[str, Any]) -> Result:
    numbers = {
        name: float(entry)
        for name, entry in value.items()
        if isinstance(entry, int | float) and not isinstance(entry, bool) and is_finite(entry)
    }
    if not numbers.get("completed"):
        raise UserError(f"{file}: no request of that run completed; run it again.")
    if numbers.get("duration") and "total_input_tokens" in numbers:
        numbers["input_throughput"] = numbers["total_input_tokens"] / numbers["duration"]
    if numbers.keys() & set(VALUES.values()) == set():
        raise UserError(f"{file} has no figure to compare, such as mean_ttft_ms; run it again.")
    key, reckoned = configuration(file, value)
    return Result(file, key, numbers, int(numbers.get("failed", 0)), reckoned)


def settled(*arms: Sequence[Result]) -> tuple[list[Result], ...]:
    """The results with one length for all whose mean lengths are within ``_CLOSE`` of the smallest,
    where all else is equal: repeats of one load differ by that little, and loads by more."""
    found = [list(arm) for arm in arms]
    for name in ("input_len", "output_len"):
        loads: dict[Key, list[int]] = {}
        for result in (one for arm in found for one in arm if name in one.reckoned):
            length = getattr(result.key, name)
            if length is not None:
                loads.setdefault(_without_lengths(result.key), []).append(length)
        meant = {load: _gathered(lengths) for load, lengths in loads.items()}
        found = [
            [
                _with_length(one, name, close[getattr(one.key, name)])
                if name in one.reckoned and (close := meant.get(_without_lengths(one.key)))
                else one
                for one in arm
            ]
            for arm in found
        ]
    return tuple(found)


def _with_length(result: Result, name: str, length: int | None) -> Result:
    change: dict[str, Any] = {name: length}
    return replace(result, key=replace(result.key, **change))


def _without_lengths(key: Key) -> Key:
    return replace(key, input_len=None, output_len=None)


def _gathered(lengths: Sequence[int]) -> dict[int | None, int | None]:
    """Each length with the one that stands for it: of those close to each other the commonest."""
    groups: list[list[int]] = []
    for length in sorted(lengths):
        if not groups or length > groups[-1][0] * (1 + _CLOSE):
            groups.append([])
        groups[-1].append(length)
    return {None: None} | {length: statistics.mode(group) for group in groups for length in group}


def match(off: Sequence[Result], on: Sequence[Result]) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Cells with both arms, and what has only one."""
    offs, ons = map(_grouped, settled(off, on))
    cells = [_cell(key, offs[key], ons[key]) for key in offs if key in ons]
    alone = [
        f"{key.label}: {len(group[key])} {name} result{'s' * (len(group[key]) > 1)} without the "
        f"other arm ({_load(key)})"
        for name, group, other in (("OFF", offs, ons), ("ON", ons, offs))
        for key in group
        if key not in other
    ]
    return tuple(sorted(cells, key=lambda cell: cell.key.order)), tuple(sorted(alone))


def _load(key: Key) -> str:
    prompts = "unknown prompts" if key.num_prompts is None else many(key.num_prompts, "prompt")
    return f"{prompts} at request rate {key.request_rate}"


def _grouped(results: Sequence[Result]) -> dict[Key, list[Result]]:
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(result.key, []).append(result)
    return groups


def _cell(key: Key, off: Sequence[Result], on: Sequence[Result]) -> Cell:
    changes = {}
    for metric, field in VALUES.items():
        before, after = _values(off, field), _values(on, field)
        # A change from 0 is none, and a resampling could be of zeros alone.
        if before is None or after is None or min(before) <= 0:
            continue
        change, interval = independent_change(before, after)
        changes[metric] = Change(
            statistics.fmean(before), statistics.fmean(after), change, interval=interval
        )
    return Cell(
        key,
        (len(off), len(on)),
        changes,
        percentiles=_percentiles(off, on),
        failed_requests=sum(result.failed for result in (*off, *on)),
    )


def _values(results: Sequence[Result], field: str) -> list[float] | None:
    """One value a repeat; None where one of them was not measured."""
    values = [result.values.get(field) for result in results]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _percentiles(off: Sequence[Result], on: Sequence[Result]) -> Percentiles:
    """Means over the repeats of each percentile that all results have."""
    found: Percentiles = {}
    for arm, results in (("off", off), ("on", on)):
        for name in sorted(set.intersection(*(set(r.values) for r in (*off, *on)))):
            if known := _PERCENTILE.fullmatch(name):
                percentile, metric = known.groups()
                mean = statistics.fmean(result.values[name] for result in results)
                found.setdefault(metric, {}).setdefault(arm, {})[percentile] = mean
    return found


def beside(
    other: str, results: Sequence[Result], off: Sequence[Result], on: Sequence[Result]
) -> tuple[tuple[Standalone, ...], tuple[str, ...]]:
    """Both arms beside another server, where all three have the same configuration.

    The other server's results say neither TP nor precision nor the model in vLLM's terms, so
    they match by lengths, batch size, prompts and request rate.
    """
    cases, alone = [], []
    results, off, on = settled(results, off, on)
    offs, ons = _by_load(off), _by_load(on)
    for load, group in sorted(_by_load(results).items(), key=lambda each: each[0].order):
        vllm = (offs.get(load, []), ons.get(load, []))
        if not all(vllm):
            problem = "without both vLLM arms"
        elif len({result.key for arm in vllm for result in arm}) > 1:
            problem = "beside several vLLM cells of that load, so none is chosen"
        else:
            cases.append(_standalone(other, group, *vllm))
            continue
        plural = "s" * (len(group) > 1)
        alone.append(f"{other}: {len(group)} result{plural} of {group[0].key.label} {problem}")
    return tuple(cases), tuple(alone)


def _by_load(results: Sequence[Result]) -> dict[Key, list[Result]]:
    groups: dict[Key, list[Result]] = {}
    for result in results:
        load = replace(result.key, model="", tensor_parallel_size=None, precision=None)
        groups.setdefault(load, []).append(result)
    return groups


def _standalone(
    other: str, theirs: Sequence[Result], off: Sequence[Result], on: Sequence[Result]
) -> Standalone:
    gains = []
    for title, field, better in _STANDALONE:
        values = [_values(results, field) for results in (theirs, off, on)]
        if any(value is None or min(value) <= 0 for value in values):
            continue
        base, without, with_ = (statistics.fmean(value) for value in values if value)
        sign = 1 if better == "higher" else -1
        gains.append(
            Gain(
                title,
                better,
                base,
                without,
                with_,
                # Of equal figures the gain is 0, which would be printed as -0.
                sign * percent_change(base, without) + 0.0,
                sign * percent_change(base, with_) + 0.0,
            )
        )
    key = off[0].key
    return Standalone(
        title=f"{key.load}, {_load(key)}",
        other=other,
        settings={
            "input_len": key.input_len,
            "output_len": key.output_len,
            "num_prompts": key.num_prompts,
            "request_rate": key.request_rate,
            "max_concurrency": key.batch_size,
        },
        runs=(len(theirs), len(off), len(on)),
        gains=tuple(gains),
    )
