"""The routing contract's table: one record per measured cell, and what a question is about.

Support was measured per model, tensor-parallel size, precision and number of active rows, so the
table has one record per measured cell and says which rows stay native; whatever it does not
mention is native.

Rows are tokens in the batch (the first dimension of the reduced tensor). Ranges and endpoints are
inclusive, as vLLM's compile ranges are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Literal

Precision = Literal["BF16", "FP8"]
"""Weights in BF16, or FP8 weights; the activations are BF16 in both."""

FIRST_ROW: Final = 1
LAST_ROW: Final = 8192
"""The domain of rows; outside it nothing was measured."""


@dataclass(frozen=True)
class Cell:
    """One supported combination, and the rows of it that stay native.

    endpoints: where vLLM's compile ranges end, so that a native row shares no graph with others.
    native_rows: rows that are native though their neighbors are not.
    native_intervals: further inclusive intervals that are native.
    """

    family: str
    size: str
    tensor_parallel: int
    hidden_size: int
    precision: Precision
    native_rows: tuple[int, ...]
    endpoints: tuple[int, ...]
    native_intervals: tuple[tuple[int, int], ...] = ()

    def is_eligible(self, row: int) -> bool:
        """Whether ``row`` lies in the domain and is not native."""
        return (
            FIRST_ROW <= row <= LAST_ROW
            and row not in self.native_rows
            and not any(low <= row <= high for low, high in self.native_intervals)
        )

    def native_row_in(self, low: int, high: int) -> int | None:
        """The smallest native row of an inclusive range within the domain."""
        found = [row for row in self.native_rows if low <= row <= high]
        found += [max(low, a) for a, b in self.native_intervals if a <= high and b >= low]
        return min(found, default=None)

    def partition(self) -> Iterator[tuple[int, int]]:
        """The compile ranges that the endpoints cut the domain into."""
        low = FIRST_ROW
        for end in (*sorted(self.endpoints), LAST_ROW):
            yield low, end
            low = end + 1


Table = tuple[Cell, ...]

DENSE: Final = "qwen3.5-dense"
MOE: Final = "qwen3.5-moe"
"""Qwen3.5 and Qwen3.6 share their architectures, and with them their families."""

CONTRACT: Final[Table] = (
    Cell(DENSE, "27B", 2, 5120, "BF16", (16,), (3, 4, 15, 16, 63)),
    Cell(DENSE, "27B", 2, 5120, "FP8", (4, 16), (3, 4, 15, 16, 63)),
    Cell(MOE, "35B-A3B", 4, 2048, "BF16", (16, 64), (15, 16, 63, 64), ((17, 63), (65, LAST_ROW))),
    Cell(MOE, "35B-A3B", 4, 2048, "FP8", (64,), (15, 16, 63, 64)),
)


@dataclass(frozen=True)
class RouteConfig:
    """What the decision depends on; anything unknown is None and makes it native.

    hidden_size: elements of a row. dtype: the activations', as torch names it ("bfloat16").
    precision: "BF16", "FP8", or the name of a scheme that the table does not know.
    """

    family: str | None = None
    size: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    hidden_size: int | None = None
    dtype: str | None = None
    precision: str | None = None
    _memo: dict[Any, Decision] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )


@dataclass(frozen=True)
class Decision:
    """Fused or native; ``code`` is stable and names the cause, ``reason`` is a sentence."""

    fused: bool
    code: str
    reason: str


def digest(table: Table = CONTRACT) -> str:
    """A hash of every field of the table, for cache keys and for comparing ranks."""
    return hashlib.sha256(repr([astuple(cell) for cell in table]).encode()).hexdigest()[:16]
