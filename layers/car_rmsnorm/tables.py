"""The contract as people read it: the documentation's table and the intervals of one cell."""

from __future__ import annotations

from typing import TypedDict

from normport.layers.car_rmsnorm.contract import (
    CONTRACT,
    DENSE,
    FIRST_ROW,
    LAST_ROW,
    Cell,
    Table,
    eligible,
    native,
)


class Intervals(TypedDict):
    """What ``normport route --output-format json`` prints without rows or range; all inclusive."""

    eligible: list[list[int]]
    native: list[list[int]]
    native_rows: list[int]
    endpoints: list[int]


def intervals(cell: Cell | None) -> Intervals:
    """The intervals and endpoints of a cell; without one, all is native and there are none."""
    return Intervals(
        eligible=[list(part) for part in eligible(cell)],
        native=[list(part) for part in native(cell)],
        native_rows=list(cell.native_rows) if cell else [],
        endpoints=list(cell.endpoints) if cell else [],
    )


def markdown(table: Table = CONTRACT) -> str:
    """The table of the documentation, one line per cell."""
    lines = [
        "| Model | TP | Hidden | Precision | Native rows | Compile endpoints | Eligible | Native |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in table:
        found = intervals(cell)
        lines.append(
            f"| {_MODELS.get(cell.family, cell.family)}{cell.size} | {cell.tensor_parallel} "
            f"| {cell.hidden_size} | {_PRECISIONS[cell.precision]} | {found['native_rows']} "
            f"| {found['endpoints']} | {_parts(found['eligible'])} | {_parts(found['native'])} |"
        )
    lines.append(
        f"| everything else | | | | [] | [] | | {_parts([[FIRST_ROW, LAST_ROW]])} |",
    )
    return "\n".join(lines) + "\n"


_MODELS = {DENSE: "Qwen3.5/3.6-", "qwen3.5-moe": "Qwen3.5/3.6-"}
_PRECISIONS = {"BF16": "BF16", "FP8": "FP8 weights, BF16 activations"}


def _parts(parts: list[list[int]]) -> str:
    return " ".join(f"[{low},{high}]" for low, high in parts)
