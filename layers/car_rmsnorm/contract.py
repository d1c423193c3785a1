"""The one predicate of CAR-RMSNorm, over the table of ``cells``.

Platform defaults, fusion pass, op, cache key and command line all ask ``route``.
"""

from __future__ import annotations

import reprlib
from typing import Any

from normport.layers.car_rmsnorm.cells import (
    CONTRACT,
    DENSE,
    FIRST_ROW,
    LAST_ROW,
    MOE,
    Cell,
    Decision,
    Precision,
    RouteConfig,
    Table,
    digest,
)

__all__ = [
    "CONTRACT",
    "DENSE",
    "FIRST_ROW",
    "LAST_ROW",
    "MOE",
    "Cell",
    "Decision",
    "Precision",
    "RouteConfig",
    "Table",
    "cell_for",
    "digest",
    "eligible",
    "native",
    "route",
]


def route(
    config: RouteConfig,
    rows: int | None = None,
    compile_range: tuple[int, int] | None = None,
    table: Table = CONTRACT,
) -> Decision:
    """Fused or native for a configuration, a number of rows, or a compile range.

    Without rows and range it says whether the table has a cell for the configuration. A range
    (inclusive) is fused when every row in it is eligible. Never raises: what is unknown, missing
    or of another type is native, each with a code of its own. ``table`` is for tests; no
    user-facing switch sets it.
    """
    # Asked again and again with the same few values. A bool would find an int's entry, and
    # something that is no configuration could bring answers of its own: both are decided anew.
    if type(config) is RouteConfig and table is CONTRACT:
        if compile_range is None:
            if rows is None or type(rows) is int:
                return config._memo.get(rows) or _remember(config, rows, rows, None)
        elif type(compile_range) is tuple and len(compile_range) == 2:
            low, high = compile_range
            # A row within a range of the domain is decided as the range.
            if (type(low) is int and type(high) is int) and (
                rows is None or (type(rows) is int and 1 <= low <= rows <= high <= 8192)
            ):
                found = config._memo.get(compile_range)
                return found or _remember(config, compile_range, None, compile_range)
    return _decide(config, rows, compile_range, table)


def _remember(config: RouteConfig, key: Any, rows: Any, compile_range: Any) -> Decision:
    found = _decide(config, rows, compile_range, CONTRACT)
    if len(config._memo) < _MEMO_LIMIT:
        config._memo[key] = found
    return found


_MEMO_LIMIT = 2 * LAST_ROW


def cell_for(config: RouteConfig, table: Table = CONTRACT) -> Cell | None:
    """The record of the table for a configuration, or None where everything is native."""
    found = _find_cell(config, table)
    return found if isinstance(found, Cell) else None


def eligible(cell: Cell | None) -> list[tuple[int, int]]:
    """The compile ranges of a cell in which every row is fused."""
    return [] if cell is None else [part for part in cell.partition() if _all_eligible(cell, part)]


def native(cell: Cell | None) -> list[tuple[int, int]]:
    """The compile ranges of a cell that stay native; without a cell that is the whole domain."""
    if cell is None:
        return [(FIRST_ROW, LAST_ROW)]
    return [part for part in cell.partition() if not _all_eligible(cell, part)]


def _all_eligible(cell: Cell, part: tuple[int, int]) -> bool:
    return cell.native_row_in(*part) is None


def _decide(config: Any, rows: Any, compile_range: Any, table: Table) -> Decision:
    found = _find_cell(config, table)
    if isinstance(found, Decision):
        return found
    if rows is not None:
        wrong = _check_row(rows)
        if wrong is not None:
            return wrong
    if compile_range is not None:
        return _decide_range(found, rows, compile_range)
    if rows is not None:
        if found.is_eligible(rows):
            return Decision(True, "eligible", f"Row count {rows} is eligible for {_name(found)}.")
        return _native("native-row", f"row count {rows} is native for {_name(found)}")
    return Decision(True, "cell", f"The contract supports {_name(found)}; its native rows aside.")


def _decide_range(cell: Cell, rows: int | None, compile_range: Any) -> Decision:
    ends = _ends(compile_range)
    if ends is None:
        return _native(
            "range-type", f"{_shown(compile_range)} is not a compile range of two integers"
        )
    low, high = ends
    shown = f"{_shown(low)}:{_shown(high)}"
    if low > high:
        return _native("range-reversed", f"range {shown} ends before it begins")
    if low < FIRST_ROW:
        return _native("range-below", f"range {shown} begins below {FIRST_ROW} row")
    if high > LAST_ROW:
        return _native("range-above", f"range {shown} reaches beyond {LAST_ROW} rows")
    if rows is not None and not low <= rows <= high:
        return _native("row-outside-range", f"row count {_shown(rows)} lies outside range {shown}")
    crossed = cell.native_row_in(low, high)
    if crossed is not None:
        return _native(
            "native-range", f"range {shown} contains native row {crossed} of {_name(cell)}"
        )
    return Decision(True, "eligible", f"Every row of {shown} is eligible for {_name(cell)}.")


def _ends(compile_range: Any) -> tuple[int, int] | None:
    """Both ends of a pair, or of an object such as vLLM's Range; None for anything else."""
    if type(compile_range) not in (tuple, list):
        try:
            compile_range = (compile_range.start, compile_range.end)
        except Exception:  # A property of somebody's object may raise anything.
            return None
    if len(compile_range) != 2 or not all(_is_int(end) for end in compile_range):
        return None
    return compile_range[0], compile_range[1]


def _check_row(rows: Any) -> Decision | None:
    if not _is_int(rows):
        return _native("rows-type", f"row count {_shown(rows)} is not an integer")
    if rows < FIRST_ROW:
        return _native("rows-below", f"row count {_shown(rows)} is below {FIRST_ROW}")
    if rows > LAST_ROW:
        return _native("rows-above", f"row count {_shown(rows)} is above {LAST_ROW}")
    return None


def _find_cell(config: Any, table: Table) -> Cell | Decision:
    """The cell, or why there is none: the first property that rules every cell out."""
    # By type here too: a class of its own may answer, or raise, as it likes.
    if type(config) is not RouteConfig:
        return _native("config", f"{type(config).__name__} is not a route configuration")
    for name in ("tensor_parallel", "pipeline_parallel", "hidden_size"):
        value = getattr(config, name)
        if value is None or not _is_int(value):
            what = "is not known" if value is None else f"{_shown(value)} is not an integer"
            return _native(_CODES[name] + "-unknown", f"the {_WORDS[name]} {what}")
    for name in ("family", "size", "dtype", "precision"):
        value = getattr(config, name)
        if value is not None and type(value) is not str:
            return _native(_CODES[name], f"the {name} {_shown(value)} is not a name")
    tp = config.tensor_parallel
    if tp == 1:
        return _native("tp1", "with tensor parallel size 1 there is nothing to reduce")
    if tp == 8:
        return _native("tp8", "tensor parallel size 8 is outside the contract")
    if config.pipeline_parallel != 1:
        return _native("pp", f"pipeline parallel size {_shown(config.pipeline_parallel)} is not 1")
    cells = [cell for cell in table if cell.family == config.family]
    if not cells:
        unknown = "the model is of no family that the contract knows"
        known = f"model family {config.family} has no cell"
        return _native("family", unknown if config.family is None else known)
    cells = [cell for cell in cells if cell.size == config.size]
    if not cells:
        hidden = f"hidden size {_shown(config.hidden_size)}"
        size = hidden if config.size is None else f"size {config.size}"
        return _native("size", f"{config.family} of {size} has no cell")
    if config.dtype != "bfloat16":
        known = f"activations in {config.dtype} are not in bfloat16"
        return _native(
            "dtype", "the activations' dtype is not known" if config.dtype is None else known
        )
    if config.hidden_size not in {cell.hidden_size for cell in cells}:
        hidden = _shown(config.hidden_size)
        return _native("hidden", f"hidden size {hidden} is not that of {config.size}")
    cells = [cell for cell in cells if cell.tensor_parallel == tp]
    if not cells:
        return _native("tp", f"{config.size} has no cell for tensor parallel size {_shown(tp)}")
    cells = [
        cell
        for cell in cells
        if (cell.precision, cell.hidden_size) == (config.precision, config.hidden_size)
    ]
    if not cells:
        known = f"weights in {config.precision} have no cell"
        unknown = "the weights' precision is not known"
        return _native("precision", unknown if config.precision is None else known)
    return cells[0]


_CODES = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "hidden_size": "hidden",
    "family": "family",
    "size": "size",
    "dtype": "dtype",
    "precision": "precision",
}


_WORDS = {
    "tensor_parallel": "tensor parallel size",
    "pipeline_parallel": "pipeline parallel size",
    "hidden_size": "hidden size",
}


def _is_int(value: Any) -> bool:
    # By type: a bool is no number of rows, and a class of its own may compare as it likes.
    return type(value) is int


def _shown(value: Any) -> str:
    """A value for a reason: short, and never an error."""
    try:
        return reprlib.repr(value)
    except ValueError:
        # Python prints no integer of more than some thousand digits.
        return f"a value of type {type(value).__name__}"


def _name(cell: Cell) -> str:
    return f"{cell.family} {cell.size}, TP{cell.tensor_parallel}, {cell.precision}"


def _native(code: str, why: str) -> Decision:
    return Decision(False, code, f"Native: {why}.")
