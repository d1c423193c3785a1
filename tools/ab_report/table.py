"""A report that was printed before, from its table: nothing is aggregated again."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from normport.tools.ab_report.honesty import Rewrites, line
from normport.tools.ab_report.model import (
    METRICS,
    Better,
    Cell,
    Change,
    Gain,
    Key,
    Report,
    Rounding,
    Standalone,
)
from normport.tools.ab_report.rounding import check, decimals
from normport.tools.errors import UserError

STANDALONE = "standalone_"
"""The table's keys that begin so hold a comparison with another server."""


_DIGITS = 40
"""More than any figure of a report has."""


class _Bad(Exception):
    """The table lacks something; the message says what, to complete a sentence."""


def read_table(path: Path) -> Report:
    """The report in a table file; UserError where it is none.

    The file is a JSON object with ``cells``, each with model, lengths, TP, precision, batch size
    and for each metric ``off``, ``on`` and ``delta_percent``. Sample counts are taken only from a
    cell's own ``n``; where it has none, n is unknown.
    """
    try:
        table = json.loads(path.read_bytes(), parse_float=Decimal, parse_int=Decimal)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); name a table file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); name a table file.") from error
    try:
        return _report(table, path.name)
    except _Bad as error:
        raise UserError(f"{path} {error}; see docs/evidence.md for the form of a table.") from error


def _report(table: Any, name: str) -> Report:
    if not isinstance(table, dict) or not isinstance(table.get("cells"), list):
        raise _Bad("has no list of `cells`")
    if not table["cells"]:
        raise _Bad("has no cell in its `cells`")
    places = {
        metric.key: (
            decimals(f for cell in table["cells"] for f in _figures(cell, metric.key)[:2]),
            decimals(f for cell in table["cells"] for f in _figures(cell, metric.key)[2:]),
        )
        for metric in METRICS
    }
    rewrites = table.get("observed_fused_rewrites")
    found = (
        [] if rewrites is None else [Rewrites(None, _integer(rewrites, "observed_fused_rewrites"))]
    )
    honesty, count = line(found)
    cells = tuple(_cell(cell, places) for cell in table["cells"])
    notes = [str(table["note"])] if table.get("note") else []
    return Report(
        title=str(table.get("source") or name),
        source=name,
        honesty=honesty,
        rewrites=count,
        cells=cells,
        standalone=tuple(
            _standalone(key.removeprefix(STANDALONE), value)
            for key, value in table.items()
            if key.startswith(STANDALONE)
        ),
        coverage=_coverage(table.get("sample_coverage"), cells),
        notes=tuple(notes),
    )


def _figures(cell: Any, metric: str) -> tuple[Decimal, ...]:
    """OFF, ON and the printed change; empty where the cell lacks the metric."""
    if not isinstance(cell, dict):
        raise _Bad("has a cell that is no object")
    figures = cell.get(metric)
    if figures is None:
        return ()
    if not isinstance(figures, dict):
        raise _Bad(f"has a cell whose {metric} is no object")
    return tuple(
        _decimal(figures.get(name), f"{metric}'s {name}") for name in ("off", "on", "delta_percent")
    )


def _cell(cell: dict[str, Any], places: dict[str, tuple[int, int]]) -> Cell:
    changes = {}
    for metric in METRICS:
        if not (figures := _figures(cell, metric.key)):
            continue
        off, on, change = figures
        of_figures, of_change = places[metric.key]
        changes[metric.key] = Change(
            float(off),
            float(on),
            float(change),
            rounding=_checked(off, on, change, (of_figures, of_figures, of_change)),
            decimals=of_figures,
        )
    if not changes:
        raise _Bad("has a cell without any metric")
    n = None if cell.get("n") is None else _integer(cell["n"], "a cell's n")
    if n == 0:
        raise _Bad("has a cell with n = 0, which was not measured")
    key = Key(
        str(cell.get("model", "?")),
        _maybe(cell.get("input_len"), "input_len"),
        _maybe(cell.get("output_len"), "output_len"),
        _maybe(cell.get("tensor_parallel_size"), "tensor_parallel_size"),
        None if cell.get("precision") is None else str(cell["precision"]),
        _maybe(cell.get("batch_size"), "batch_size"),
    )
    return Cell(key, None if n is None else (n, n), changes)


def _checked(
    base: Decimal,
    value: Decimal,
    change: Decimal,
    places: tuple[int, int, int],
    better: Better = "higher",
) -> Rounding:
    try:
        return check(
            base,
            value,
            change,
            base_decimals=places[0],
            value_decimals=places[1],
            change_decimals=places[2],
            better=better,
        )
    except ValueError as error:
        raise _Bad(f"has figures that no change can be told from ({error})") from error


def _coverage(coverage: Any, cells: tuple[Cell, ...]) -> str | None:
    if not isinstance(coverage, dict):
        return None
    parts = [f"{str(key).replace('_', ' ')}: {value}" for key, value in coverage.items()]
    said = f"Sample counts as the source has them: {', '.join(parts)}."
    if any(cell.runs is None for cell in cells):
        said += (
            " It does not say which cells these are, so n is unknown per cell and none is read "
            "as pooled."
        )
    return said


def _standalone(title: str, value: Any) -> Standalone:
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list):
        raise _Bad(f"has no list of `rows` in {STANDALONE}{title}")
    columns = value.get("columns")
    if not isinstance(columns, list) or len(columns) != 7:
        raise _Bad(f"has no seven `columns` in {STANDALONE}{title}")
    rows = [_row(row) for row in value["rows"]]
    others, vllm, gains = (
        decimals(row[1] for row in rows),
        decimals(f for row in rows for f in row[2:4]),
        decimals(f for row in rows for f in row[4:6]),
    )
    places = (others, vllm, gains)
    settings = value.get("settings", {})
    if not isinstance(settings, dict):
        raise _Bad(f"has `settings` that are no object in {STANDALONE}{title}")
    return Standalone(
        title=title,
        other=str(columns[1]),
        settings=_plain(settings),
        runs=None,
        gains=tuple(_gain(row, places) for row in rows),
    )


_Row = tuple[str, Decimal, Decimal, Decimal, Decimal, Decimal, Better]


def _row(row: Any) -> _Row:
    if not isinstance(row, list) or len(row) != 7 or row[6] not in ("higher", "lower"):
        raise _Bad("has a row that is not metric, three figures, two gains and higher or lower")
    figures = tuple(_decimal(figure, str(row[0])) for figure in row[1:6])
    return (str(row[0]), *figures, row[6])


def _gain(row: _Row, places: tuple[int, int, int]) -> Gain:
    name, other, off, on, off_gain, on_gain, better = row
    return Gain(
        name,
        better,
        float(other),
        float(off),
        float(on),
        float(off_gain),
        float(on_gain),
        decimals=places,
        off_rounding=_checked(other, off, off_gain, places, better),
        on_rounding=_checked(other, on, on_gain, places, better),
    )


def _decimal(value: Any, what: str) -> Decimal:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _Bad(f"has no number for {what}")
    # Exact arithmetic on more digits than anybody prints would take for ever.
    if abs(value.adjusted()) > _DIGITS or len(value.as_tuple().digits) > _DIGITS:
        raise _Bad(f"has a number of too many digits for {what}")
    return value


def _integer(value: Any, what: str) -> int:
    number = _decimal(value, what)
    if number != int(number) or number < 0:
        raise _Bad(f"has {number} for {what}, which is a whole number")
    return int(number)


def _maybe(value: Any, what: str) -> int | None:
    return None if value is None else _integer(value, what)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if not isinstance(value, Decimal):
        return value
    number = _decimal(value, "a setting")
    whole: Callable[[Decimal], float | int] = int if number == int(number) else float
    return whole(number)
