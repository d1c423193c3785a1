"""The routing contract of CAR-RMSNorm: the table, and the one predicate that everybody asks.

Support was measured per model, tensor-parallel size, precision and number of active rows, so the
table has one record per measured cell and says which rows stay native; whatever it does not
mention is native. Platform defaults, fusion pass, op, cache key and command line all ask ``route``.

Rows are tokens in the batch (the first dimension of the reduced tensor). Ranges and endpoints are
inclusive, as vLLM's compile ranges are.
"""

from __future__ import annotations

import hashlib
import reprlib
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


def digest(table: Table = CONTRACT) -> str:
    """A hash of every field of the table, for cache keys and for comparing ranks."""
    return hashlib.sha256(repr([astuple(cell) for cell in table]).encode()).hexdigest()[:16]


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
    if hasattr(compile_range, "start") and hasattr(compile_range, "end"):
        compile_range = (compile_range.start, compile_range.end)
    if not isinstance(compile_range, tuple | list):
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
    if not isinstance(config, RouteConfig):
        return _native("config", f"{type(config).__name__} is not a route configuration")
    for name in ("tensor_parallel", "pipeline_parallel", "hidden_size"):
        value = getattr(config, name)
        if value is None or not _is_int(value):
            what = "is not known" if value is None else f"{_shown(value)} is not an integer"
            return _native(_CODES[name] + "-unknown", f"the {_WORDS[name]} {what}")
    for name in ("family", "size", "dtype", "precision"):
        value = getattr(config, name)
        if value is not None and not isinstance(value, str):
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
    return isinstance(value, int) and not isinstance(value, bool)


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
