"""Answers out of generated text, exactly as two known evaluations take them.

Two evaluations, three verdicts. Their patterns and normalization are restated here as they are,
with what looks odd in them, because only then are the figures theirs:

- lm-evaluation-harness, task ``gsm8k`` version 3.0, filters ``strict-match`` and
  ``flexible-extract``, metric ``exact_match`` over strings;
- vLLM's own evaluation, ``tests/evals/gsm8k``: the last run of digits, without sign or decimals.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["correct", "wrong", "invalid"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

HARNESS_INVALID = "[invalid]"
"""What the harness's regex filter returns where its pattern is not found."""

VLLM_INVALID = -9999999
"""What vLLM's evaluation returns where there is no number."""

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(re.compile(pattern) for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"))
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Scored:
    """One scorer's reading of one output: what it took as the answer, and the verdict."""

    answer: str
    verdict: Verdict


def strict_match(text: str) -> str:
    """The number after the first ``#### ``, or ``[invalid]``."""
    found = _STRICT.search(text)
    return found[1].strip() if found else HARNESS_INVALID


def flexible_extract(text: str) -> str:
    """The last thing that looks like a number, or ``[invalid]``."""
    found = list(_FLEXIBLE.finditer(text))
    return found[-1][0].strip() if found else HARNESS_INVALID


def normalized(text: str) -> str:
    """``text`` as the harness compares it: no commas, no dollars, no last period, lower case."""
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def vllm_answer(text: str) -> int:
    """The last run of digits, commas removed before, or ``VLLM_INVALID``.

    A sign is not part of it, and of a decimal only what follows the point is. Digits that are no
    Python integer, as ``007``, are invalid there too.
    """
    runs = _DIGITS.findall(text.replace(",", ""))
    if not runs:
        return VLLM_INVALID
    try:
        return int(ast.literal_eval(runs[-1]))
    except SyntaxError:
        return VLLM_INVALID


def score(output: str, reference: str) -> dict[str, Scored]:
    """The three verdicts on ``output``.

    reference: the record's whole answer, which ends in ``#### NUMBER``.
    """
    return {name: scorer(output, reference) for name, scorer in SCORERS.items()}


def _harness(extract: Callable[[str], str]) -> Callable[[str, str], Scored]:
    def scorer(output: str, reference: str) -> Scored:
        answer = extract(output)
        equal = normalized(answer) == normalized(reference)
        invalid = answer == HARNESS_INVALID
        return Scored(answer, "correct" if equal else "invalid" if invalid else "wrong")

    return scorer


def _vllm(output: str, reference: str) -> Scored:
    answer = vllm_answer(output)
    if answer == VLLM_INVALID:
        return Scored("", "invalid")
    return Scored(str(answer), "correct" if answer == vllm_answer(reference) else "wrong")


SCORERS: dict[str, Callable[[str, str], Scored]] = {
    "strict-match": _harness(strict_match),
    "flexible-extract": _harness(flexible_extract),
    "vllm": _vllm,
}
"""Name of the scorer, in the order in which results are shown."""
