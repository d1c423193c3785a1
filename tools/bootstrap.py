"""Bootstrap intervals of a change in percent, seeded so that a report is the same each time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 4000
SEED = 0
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """Percentile bootstrap interval at ``LEVEL``, in the unit of the statistic."""

    low: float
    high: float


def percent_change(before: float, after: float) -> float:
    """``after`` against ``before``, in percent; positive where it grew."""
    return (after - before) / before * 100


def paired_change(before: Sequence[float], after: Sequence[float]) -> tuple[float, Interval | None]:
    """Change of the mean, in percent, over pairs; the pairs are resampled.

    No interval for fewer than two pairs, which say nothing about the spread.
    """
    pairs = list(zip(before, after, strict=True))

    def change(chosen: Sequence[tuple[float, float]]) -> float:
        return percent_change(
            statistics.fmean(pair[0] for pair in chosen), statistics.fmean(p[1] for p in chosen)
        )

    return change(pairs), _interval(
        lambda draw: change(draw.choices(pairs, k=len(pairs))), len(pairs)
    )


def independent_change(
    before: Sequence[float], after: Sequence[float]
) -> tuple[float, Interval | None]:
    """Change of the mean, in percent, of two samples; each is resampled by itself.

    No interval where either has fewer than two values.
    """

    def change(off: Sequence[float], on: Sequence[float]) -> float:
        return percent_change(statistics.fmean(off), statistics.fmean(on))

    return change(before, after), _interval(
        lambda draw: change(draw.choices(before, k=len(before)), draw.choices(after, k=len(after))),
        min(len(before), len(after)),
    )


def _interval(resample: Callable[[random.Random], float], count: int) -> Interval | None:
    if count < 2:
        return None
    draw = random.Random(SEED)
    values = sorted(resample(draw) for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    return Interval(values[int(tail * RESAMPLES)], values[int((1 - tail) * RESAMPLES) - 1])
