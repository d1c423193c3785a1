"""The routing contract: the published matrix, every row and range, and every way to be native."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from normport.layers.car_rmsnorm import (
    CONTRACT,
    Cell,
    RouteConfig,
    cell_for,
    eligible,
    native,
    route,
)
from normport.layers.car_rmsnorm.contract import FIRST_ROW, LAST_ROW, digest

# The matrix as it was published, in its own words; the table has to come out the same.
PUBLISHED = """
| 27B     | TP2 | 5120 | BF16 | [16]    | [3,4,15,16,63] | [1,3] [4,4] [5,15] [17,63] [64,8192] | [16,16] |
| 27B     | TP2 | 5120 | FP8  | [4,16]  | [3,4,15,16,63] | [1,3] [5,15] [17,63] [64,8192] | [4,4] [16,16] |
| 35B-A3B | TP4 | 2048 | BF16 | [16,64] | [15,16,63,64]  | [1,15] | [16,16] [17,63] [64,64] [65,8192] |
| 35B-A3B | TP4 | 2048 | FP8  | [64]    | [15,16,63,64]  | [1,15] [16,16] [17,63] [65,8192] | [64,64] |
"""  # noqa: E501

NAMES = [f"{cell.size}-{cell.precision}" for cell in CONTRACT]
EVERY_CELL = pytest.mark.parametrize("cell", CONTRACT, ids=NAMES)
ROWS = range(FIRST_ROW, LAST_ROW + 1)


def config_of(cell: Cell) -> RouteConfig:
    return RouteConfig(
        family=cell.family,
        size=cell.size,
        tensor_parallel=cell.tensor_parallel,
        pipeline_parallel=1,
        hidden_size=cell.hidden_size,
        dtype="bfloat16",
        precision=cell.precision,
    )


def shown(parts: list[tuple[int, int]]) -> str:
    return " ".join(f"[{low},{high}]" for low, high in parts)


def test_the_published_matrix_is_derived_exactly() -> None:
    derived = [
        [
            cell.size,
            f"TP{cell.tensor_parallel}",
            str(cell.hidden_size),
            cell.precision,
            str(list(cell.native_rows)).replace(" ", ""),
            str(list(cell.endpoints)).replace(" ", ""),
            shown(eligible(cell)),
            shown(native(cell)),
        ]
        for cell in CONTRACT
    ]
    published = [
        [field.strip() for field in line.strip("|").split("|")]
        for line in PUBLISHED.strip().splitlines()
    ]
    assert derived == published


def test_without_a_cell_the_whole_domain_is_native() -> None:
    assert eligible(None) == []
    assert native(None) == [(1, 8192)]


@EVERY_CELL
def test_the_endpoints_cut_the_domain_without_overlap_or_gap(cell: Cell) -> None:
    parts = sorted(eligible(cell) + native(cell))
    assert parts[0][0] == FIRST_ROW
    assert parts[-1][1] == LAST_ROW
    assert all(before[1] + 1 == after[0] for before, after in pairwise(parts))
    assert [end for _, end in parts[:-1]] == sorted(cell.endpoints)


@EVERY_CELL
def test_every_row_is_decided_as_its_interval(cell: Cell) -> None:
    config = config_of(cell)
    fused = {row for low, high in eligible(cell) for row in range(low, high + 1)}
    for row in ROWS:
        decision = route(config, row)
        assert decision.fused == (row in fused), row
        assert decision.code == ("eligible" if row in fused else "native-row")


@EVERY_CELL
def test_a_range_is_fused_exactly_when_all_its_rows_are(cell: Cell) -> None:
    config = config_of(cell)
    # One number per row says how many native rows came before it, so that "all rows agree" is
    # judged from the decisions on single rows alone.
    before = [0]
    for row in ROWS:
        before.append(before[-1] + (not route(config, row).fused))
    ends = {FIRST_ROW, LAST_ROW, *cell.endpoints, *cell.native_rows}
    ends |= {end for part in cell.native_intervals for end in part}
    near = sorted({e + d for e in ends for d in range(-2, 3)})
    checked = 0
    for low in near:
        for high in near:
            decision = route(config, compile_range=(low, high))
            if low > high:
                assert decision.code == "range-reversed"
                continue
            if low < FIRST_ROW or high > LAST_ROW:
                assert not decision.fused
                assert decision.code == ("range-below" if low < FIRST_ROW else "range-above")
                continue
            all_fused = before[high] - before[low - 1] == 0
            assert decision.fused == all_fused, (low, high)
            assert decision.code == ("eligible" if all_fused else "native-range")
            checked += 1
    assert checked > 100


@EVERY_CELL
def test_a_row_within_a_range_is_decided_as_the_range(cell: Cell) -> None:
    config = config_of(cell)
    for low, high in cell.partition():
        for row in {low, high}:
            assert route(config, row, (low, high)) == route(config, compile_range=(low, high))
        outside = low - 1 if low > FIRST_ROW else high + 1
        assert route(config, outside, (low, high)).code == "row-outside-range"


def test_ranges_across_boundaries() -> None:
    dense = config_of(CONTRACT[0])
    assert route(dense, compile_range=(1, 15)).fused
    assert not route(dense, compile_range=(15, 17)).fused
    assert route(dense, compile_range=(17, 8192)).fused
    fp8 = config_of(CONTRACT[1])
    assert not route(fp8, compile_range=(1, 15)).fused


BASE = config_of(CONTRACT[0])

UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"family": None}, "family"),
    ({"family": "llama"}, "family"),
    ({"family": 5}, "family"),
    ({"size": None}, "size"),
    ({"size": "9B"}, "size"),
    ({"size": 27}, "size"),
    ({"tensor_parallel": None}, "tp-unknown"),
    ({"tensor_parallel": True}, "tp-unknown"),
    ({"tensor_parallel": "2"}, "tp-unknown"),
    ({"tensor_parallel": 2.0}, "tp-unknown"),
    ({"tensor_parallel": 1}, "tp1"),
    ({"tensor_parallel": 8}, "tp8"),
    ({"tensor_parallel": 4}, "tp"),
    ({"tensor_parallel": 0}, "tp"),
    ({"pipeline_parallel": None}, "pp-unknown"),
    ({"pipeline_parallel": True}, "pp-unknown"),
    ({"pipeline_parallel": 2}, "pp"),
    ({"pipeline_parallel": 0}, "pp"),
    ({"dtype": None}, "dtype"),
    ({"dtype": "float16"}, "dtype"),
    ({"dtype": "float32"}, "dtype"),
    ({"dtype": 16}, "dtype"),
    ({"precision": None}, "precision"),
    ({"precision": "awq"}, "precision"),
    ({"precision": False}, "precision"),
    ({"hidden_size": None}, "hidden-unknown"),
    ({"hidden_size": 5120.0}, "hidden-unknown"),
    ({"hidden_size": 4096}, "hidden"),
    ({"hidden_size": 2048}, "hidden"),
]


@pytest.mark.parametrize(("change", "code"), UNSUPPORTED, ids=str)
def test_what_is_not_in_the_table_is_native_with_its_own_reason(
    change: dict[str, Any], code: str
) -> None:
    config = replace(BASE, **change)
    for rows, compile_range in ((None, None), (3, None), (None, (1, 3))):
        decision = route(config, rows, compile_range)
        assert (decision.fused, decision.code) == (False, code)
        assert decision.reason.startswith("Native: ")
        assert decision.reason.endswith(".")
    assert cell_for(config) is None


class LikeNumpy:
    """Usable as an index, and equal to a number, but no int."""

    def __index__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return other == 1

    def __hash__(self) -> int:
        return hash(1)

    def __repr__(self) -> str:
        return "like numpy's 1"


class Chameleon(str):
    """Equal to every name."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class LikeAnInt(int):
    """An int that compares as it likes."""

    def __le__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return True


class Raising:
    """A range whose ends cannot be read."""

    end = 3

    @property
    def start(self) -> int:
        raise ValueError("no")

    def __repr__(self) -> str:
        return "Raising"


class RaisingConfig(RouteConfig):
    """A configuration whose family cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "family":
            raise ValueError("no")
        return super().__getattribute__(name)


FIELDS = [field for field in fields(RouteConfig) if field.init]


@pytest.mark.parametrize("name", ["family", "size", "dtype", "precision"])
def test_a_name_that_equals_everything_is_none(name: str) -> None:
    decision = route(replace(BASE, **{name: Chameleon("x")}), 1)
    assert (decision.fused, decision.code) == (False, name)


BAD_ROWS = [
    (0, "rows-below"),
    (-1, "rows-below"),
    (8193, "rows-above"),
    (True, "rows-type"),
    (1.0, "rows-type"),
    ("1", "rows-type"),
    ([1], "rows-type"),
    (LikeNumpy(), "rows-type"),
    (LikeAnInt(17), "rows-type"),
]
BAD_RANGES = [
    ((3, 1), "range-reversed"),
    ((0, 3), "range-below"),
    ((1, 8193), "range-above"),
    ((64, 8193), "range-above"),
    ((1, True), "range-type"),
    ((True, 3), "range-type"),
    ((1.0, 3), "range-type"),
    ((1,), "range-type"),
    ((1, 2, 3), "range-type"),
    ("13", "range-type"),
    (5, "range-type"),
    ({1, 3}, "range-type"),
    (bytearray(b"\x01\x03"), "range-type"),
    (range(1, 3), "range-type"),
    ((LikeNumpy(), 3), "range-type"),
    ([1, True], "range-type"),
    (SimpleNamespace(start=1, end=None), "range-type"),
    ((LikeAnInt(1), 3), "range-type"),
    (Raising(), "range-type"),
]


@pytest.mark.parametrize(("rows", "code"), BAD_ROWS, ids=str)
def test_bad_row_counts(rows: Any, code: str) -> None:
    assert route(BASE, 1).fused
    decision = route(BASE, rows)
    assert (decision.fused, decision.code) == (False, code)


@pytest.mark.parametrize(("compile_range", "code"), BAD_RANGES, ids=str)
def test_bad_ranges(compile_range: Any, code: str) -> None:
    assert route(BASE, compile_range=(1, 1)).fused
    decision = route(BASE, compile_range=compile_range)
    assert (decision.fused, decision.code) == (False, code)


def test_numbers_too_long_to_print_are_native_too() -> None:
    huge = 10**5000
    assert route(BASE, huge).code == "rows-above"
    assert route(BASE, -huge).code == "rows-below"
    assert route(BASE, huge, (1, 3)).code == "rows-above"
    assert route(BASE, compile_range=(1, huge)).code == "range-above"
    assert route(BASE, compile_range=(huge, 1)).code == "range-reversed"
    for name in ("tensor_parallel", "pipeline_parallel", "hidden_size"):
        assert not route(replace(BASE, **{name: huge})).fused


def test_a_bad_row_count_is_native_whatever_the_range() -> None:
    assert route(BASE, True, (1, 3)).code == "rows-type"
    assert route(BASE, 4, (1, 3)).code == "row-outside-range"
    assert route(BASE, 0, (1, 3)).code == "rows-below"


def test_the_answer_does_not_depend_on_what_was_asked_before() -> None:
    questions: list[tuple[Any, Any]] = [
        (rows, part)
        for rows in (None, 0, 1, 2, 16, 17, 8193, True)
        for part in (None, (0, 3), (1, 3), (1, 17), (17, 8193), (3, 1), (True, 3), ("1", 3))
    ]
    alone = [route(replace(BASE), rows, part) for rows, part in questions]
    for order in (1, -1):
        config = replace(BASE)
        told = {i: route(config, *questions[i]) for i in range(len(questions))[::order]}
        assert [told[i] for i in range(len(questions))] == alone


def test_vllms_range_object_is_a_range() -> None:
    assert route(BASE, compile_range=SimpleNamespace(start=1, end=3)).fused  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        "27B",
        object(),
        MagicMock(),
        MagicMock(**vars(BASE)),
        MagicMock(spec=RouteConfig, **vars(BASE)),
        RaisingConfig(**{field.name: getattr(BASE, field.name) for field in FIELDS}),
    ],
    ids=["None", "dict", "str", "object", "mock", "mock of the values", "of the class", "subclass"],
)
def test_something_else_than_a_configuration_is_native(config: Any) -> None:
    assert route(config).code == "config"


def test_every_cause_has_a_reason_of_its_own() -> None:
    reasons = {route(replace(BASE, **change)).reason for change, _ in UNSUPPORTED}
    reasons |= {route(BASE, rows).reason for rows, _ in BAD_ROWS}
    reasons |= {route(BASE, compile_range=part).reason for part, _ in BAD_RANGES}
    assert len(reasons) == len(UNSUPPORTED) + len(BAD_ROWS) + len(BAD_RANGES)


def test_the_cells_of_one_model_do_not_answer_for_another() -> None:
    for cell in CONTRACT:
        for other in CONTRACT:
            mixed = replace(config_of(cell), family=other.family)
            assert route(mixed).fused == (cell.family == other.family)


def test_a_table_can_be_injected_without_touching_the_contract() -> None:
    tiny = Cell("tiny", "tiny", 2, 64, "BF16", (2,), (1, 2))
    config = config_of(tiny)
    assert not route(config).fused
    assert route(config, table=(tiny,)).fused
    assert route(config, 2, table=(tiny,)).code == "native-row"
    assert not route(config).fused
    assert route(BASE, table=()).code == "family"


def test_the_digest_covers_every_field_of_every_cell() -> None:
    changed = [
        replace(CONTRACT[0], **{name: value})
        for name, value in {
            "family": "x",
            "size": "x",
            "tensor_parallel": 3,
            "hidden_size": 1,
            "precision": "FP8",
            "native_rows": (17,),
            "endpoints": (3,),
            "native_intervals": ((1, 2),),
        }.items()
    ]
    digests = {digest((cell, *CONTRACT[1:])) for cell in changed}
    assert len(digests | {digest()}) == len(changed) + 1
