"""Records to ask, and what a run of the command gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    error: str


Command = Callable[..., Result]

RECORDS = [
    (
        f"Ann has {n} pears and buys {n + 1} more. How many has she?",
        f"{n} + {n + 1}\n#### {2 * n + 1}",
    )
    for n in range(1, 13)
]
"""Question and answer, made for these tests."""
