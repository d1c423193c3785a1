"""How long one generated token takes: the decode measurement of the MuseGlimmer reference.

One request at a time with a prompt of so many random tokens, greedily, until so many tokens are
out; two such requests go first and are not counted. A measured request takes the time from its
first token to its last, over one token less than it has, so the prompt is not in it. Seeds draw
the prompts, one measurement each. A V1 and a V2 model runner are never averaged with each other:
a result is of one runner, and says which.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from normport.tools.errors import UserError

INPUT, OUTPUT, WARM_UPS, SEEDS = 32768, 512, 2, (42, 43, 44)
"""The reference's lengths in tokens, its warm-ups and its seeds."""

MOST_TOKENS, MOST_WARM_UPS, HIGHEST_SEED = 1 << 24, 1000, (1 << 32) - 1
"""Above what any model has or anybody means: a slip of the keyboard is told before it is run."""

Arrivals = Iterator[tuple[float, int]]
"""When tokens came, in seconds, and how many were there by then."""

Ask = Callable[[Sequence[int], int, int], Arrivals]
"""Sends a prompt's token ids; then how many tokens to generate, and the seed."""


@dataclass(frozen=True)
class Job:
    """What to measure: lengths in tokens, and the ids of which prompts are drawn, from 0."""

    input_len: int = INPUT
    output_len: int = OUTPUT
    warm_ups: int = WARM_UPS
    seeds: tuple[int, ...] = SEEDS
    vocabulary: int = 1000


@dataclass(frozen=True)
class Measured:
    """One request. ms_per_token: of its decode. first_token_ms: from the request to it."""

    seed: int
    ms_per_token: float
    first_token_ms: float
    tokens: int


@dataclass(frozen=True)
class Latency:
    """What was measured, where. runner: ``v1``, ``v2``, or None where nobody says."""

    model: str
    where: str
    runner: str | None
    job: Job
    warm_up_ms: tuple[float, ...]
    measured: tuple[Measured, ...]

    @property
    def mean_ms(self) -> float:
        return mean(one.ms_per_token for one in self.measured)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.model,
            "where": self.where,
            "runner": self.runner,
            "input_tokens": self.job.input_len,
            "output_tokens": self.job.output_len,
            "warm_ups_ms_per_token": list(self.warm_up_ms),
            "measured": [asdict(one) for one in self.measured],
            "mean_ms_per_token": self.mean_ms,
        }


def check(job: Job) -> None:
    """Raises UserError for numbers that leave nothing to measure, or that nobody means."""
    if not 1 <= job.input_len <= MOST_TOKENS:
        raise UserError(f"--input-len {job.input_len}: give 1 to {MOST_TOKENS} tokens.")
    if not 2 <= job.output_len <= MOST_TOKENS:
        raise UserError(
            f"--output-len {job.output_len}: give 2 to {MOST_TOKENS} tokens, since decoding is "
            "measured between the first and the last."
        )
    if not 0 <= job.warm_ups <= MOST_WARM_UPS:
        raise UserError(f"--warmups {job.warm_ups}: give 0 to {MOST_WARM_UPS} requests.")
    for seed in job.seeds:
        if not 0 <= seed <= HIGHEST_SEED:
            raise UserError(f"--seed {seed}: give 0 to {HIGHEST_SEED}.")
    if not job.seeds:
        raise UserError("Nothing is measured without a seed: give one with --seed.")
    if job.vocabulary < 1:
        raise UserError(f"--vocabulary {job.vocabulary}: prompts need at least one token id.")


def measure(
    ask: Ask,
    job: Job,
    *,
    model: str,
    where: str,
    runner: str | None,
    progress: Callable[[str], None],
) -> Latency:
    """Carry out ``job``.

    Raises UserError as ``check`` does, and when an answer is shorter than was asked for or comes
    in one piece.
    """
    check(job)
    warm = []
    for number in range(job.warm_ups):
        progress(f"warm-up {number + 1} of {job.warm_ups}")
        warm.append(_request(ask, job, job.seeds[0] + 1000 + number).ms_per_token)
    measured = []
    for seed in job.seeds:
        progress(f"seed {seed}")
        measured.append(_request(ask, job, seed))
    return Latency(model, where, runner, job, tuple(warm), tuple(measured))


def _request(ask: Ask, job: Job, seed: int) -> Measured:
    draw = random.Random(seed)
    # The lowest ids are the special ones in most vocabularies.
    lowest = min(10, job.vocabulary - 1)
    prompt = [draw.randrange(lowest, job.vocabulary) for _ in range(job.input_len)]
    begin = time.perf_counter()
    arrivals = list(ask(prompt, job.output_len, seed))
    if not arrivals or arrivals[-1][1] != job.output_len:
        got = arrivals[-1][1] if arrivals else 0
        raise UserError(
            f"{got} tokens came where {job.output_len} were asked for: check the model's length "
            "limit, and that the server takes ignore_eos."
        )
    (first, early), (last, total) = arrivals[0], arrivals[-1]
    if total == early:
        raise UserError(
            "All tokens came at once, so none can be timed: let the server stream its tokens."
        )
    return Measured(seed, (last - first) * 1e3 / (total - early), (first - begin) * 1e3, total)
