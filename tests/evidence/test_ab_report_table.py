"""A printed report is reproduced, checked against its rounding, and claims nothing it cannot."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from evidence_sources import Command

from normport.tools.ab_report.model import METRICS
from normport.tools.ab_report.render import markdown
from normport.tools.ab_report.rounding import check, decimals
from normport.tools.ab_report.table import read_table

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "car_rmsnorm_report.json"
TABLE = json.loads(REFERENCE.read_text())
STANDALONE = "standalone_qwen3.6_27b"


@pytest.fixture(scope="module")
def reproduced() -> str:
    return markdown(read_table(REFERENCE))


def rows(text: str, heading: str) -> list[list[str]]:
    """The body of the Markdown table under ``heading``, by cells."""
    section = text.split(f"\n## {heading}", 1)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.key)
def test_every_cell_of_the_reference(reproduced: str, metric: Any) -> None:
    found = rows(reproduced, f"{metric.title} ({metric.unit}, {metric.better} is better)")
    assert len(found) == len(TABLE["cells"]) == 32
    for shown, cell in zip(found, TABLE["cells"], strict=True):
        figures = cell[metric.key]
        assert shown == [
            f"{cell['model']} TP{cell['tensor_parallel_size']} "
            f"{cell['input_len']}/{cell['output_len']} BS {cell['batch_size']}",
            "unknown",
            f"{figures['off']:.3f}",
            f"{figures['on']:.3f}",
            f"{figures['delta_percent']:+.3f}%",
        ]


def test_every_row_of_the_standalone_case(reproduced: str) -> None:
    found = rows(reproduced, "qwen3.6_27b: vLLM OFF and ON beside sglang_musa")
    assert len(found) == len(TABLE[STANDALONE]["rows"]) == 10
    for shown, row in zip(found, TABLE[STANDALONE]["rows"], strict=True):
        name, other, off, on, off_gain, on_gain, better = row
        assert shown == [
            name,
            better,
            f"{other:.2f}",
            f"{off:.3f}",
            f"{on:.3f}",
            f"{off_gain:+.2f}%",
            f"{on_gain:+.2f}%",
        ]


def test_every_change_lies_within_the_rounding(reproduced: str) -> None:
    report = read_table(REFERENCE)
    changes = [change for cell in report.cells for change in cell.changes.values()]
    assert len(changes) == 128
    assert all(change.rounding and change.rounding.consistent for change in changes)
    naive = [
        round((change.on - change.off) / change.off * 100, 3) != change.change_percent
        for change in changes
    ]
    assert sum(naive) == 9
    assert [c.rounding and c.rounding.recomputed != c.change_percent for c in changes] == naive
    gains = report.standalone[0].gains
    assert all(g.off_rounding and g.off_rounding.consistent for g in gains)
    assert all(g.on_rounding and g.on_rounding.consistent for g in gains)
    assert "148 printed changes were checked" in reproduced
    assert "0 lie outside. 9 ON/OFF changes come out differently" in reproduced


def test_what_the_reference_may_not_claim(reproduced: str) -> None:
    assert (
        "0 rewrites were observed: the difference compares configurations and is not attributed "
        "to the fused op."
    ) in reproduced
    assert "pooled n10 cells: 7, sample count unavailable cells: 25" in reproduced
    assert "n is unknown per cell and none is read as pooled" in reproduced
    assert "For 32 of 32 cells n is unknown, so no claim can be made" in reproduced
    assert "| 10 |" not in reproduced


def test_the_command(normport: Command, folder: Path) -> None:
    ran = normport("ab-report", "--from-table", REFERENCE, "--out", "out")
    assert ran.status == 0
    assert ran.out.startswith(
        "32 cells compared: 0 of 128 changes are shown by the interval; no claim for 32 cells."
    )
    written = json.loads((folder / "out" / "report.json").read_text())
    assert written["rounding"] == {"checked": 148, "outside": 0, "recomputed_otherwise": 9}
    assert {cell["n"] for cell in written["cells"]} == {"unknown"}
    assert written["rewrites"] == 0
    assert (folder / "out" / "report.md").read_text() == markdown(read_table(REFERENCE))


Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def changed(folder: Path) -> Callable[[Change], Path]:
    def write(change: Change) -> Path:
        table = copy.deepcopy(TABLE)
        change(table)
        path = folder / "table.json"
        path.write_text(json.dumps(table))
        return path

    return write


@pytest.mark.parametrize(
    ("printed", "consistent"),
    # 107.659 -> 107.677, each give or take 0.0005, allows 0.01579 to 0.01765.
    [(0.014, False), (0.015, False), (0.016, True), (0.017, True), (0.018, True), (0.019, False)],
)
def test_a_printed_change_that_cannot_be(
    changed: Callable[[Change], Path], printed: float, consistent: bool
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["cells"][0]["output_throughput_tok_s"]["delta_percent"] = printed

    text = markdown(read_table(changed(edit)))
    shown = rows(text, "Output throughput (tok/s, higher is better)")[0][4]
    flag = "" if consistent else " (outside rounding: +0.0158 to +0.0176)"
    assert shown == f"{printed:+.3f}%{flag}"
    assert f"{0 if consistent else 1} lie outside" in text


def test_a_gain_of_the_wrong_sign_is_flagged(changed: Callable[[Change], Path]) -> None:
    def edit(table: dict[str, Any]) -> None:
        table[STANDALONE]["rows"][2][4] *= -1  # TTFT: lower is better, and it is lower

    text = markdown(read_table(changed(edit)))
    shown = rows(text, "qwen3.6_27b: vLLM OFF and ON beside sglang_musa")[2]
    assert re.fullmatch(r"-18\.86% \(outside rounding: \+18\.\d+ to \+18\.\d+\)", shown[5])


def test_a_cell_with_its_own_n(changed: Callable[[Change], Path]) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["cells"][3]["n"] = 10

    report = read_table(changed(edit))
    assert [cell.n for cell in report.cells].count("10") == 1
    assert report.cells[3].n == "10"
    assert "For 31 of 32 cells n is unknown" in markdown(report)


def test_a_table_without_rewrites(changed: Callable[[Change], Path]) -> None:
    report = read_table(changed(lambda table: table.pop("observed_fused_rewrites")))
    assert report.rewrites is None
    assert "is unknown, because no rewrite file was given" in report.honesty


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.pop("cells"), "has no list of `cells`"),
        (lambda t: t["cells"].append(3), "has a cell that is no object"),
        (lambda t: t["cells"][0]["ttft_ms"].pop("on"), "has no number for ttft_ms's on"),
        (lambda t: t["cells"][0].update(ttft_ms=3), "has a cell whose ttft_ms is no object"),
        (lambda t: t["cells"][0]["ttft_ms"].update(off=0), "that no change can be told from"),
        (lambda t: t["cells"].clear(), "has no cell in its `cells`"),
        (lambda t: t["cells"][0]["ttft_ms"].update(off=1e200), "a number of too many digits"),
        (lambda t: t["cells"][0]["ttft_ms"].update(off=float("nan")), "has no number for ttft"),
        (lambda t: t["cells"][0].update(n=0), "has a cell with n = 0"),
        (lambda t: t.update(observed_fused_rewrites=-1), "has -1 for observed_fused_rewrites"),
        (lambda t: t["cells"][0].update(batch_size=1.5), "which is a whole number"),
        (lambda t: t["cells"].append({"model": "x"}), "has a cell without any metric"),
        (lambda t: t[STANDALONE].pop("rows"), "has no list of `rows`"),
        (lambda t: t[STANDALONE].pop("columns"), "has no seven `columns`"),
        (lambda t: t[STANDALONE]["rows"].append([1]), "has a row that is not metric"),
        (lambda t: t[STANDALONE].update(settings=1), "has `settings` that are no object"),
    ],
)
def test_no_table(
    changed: Callable[[Change], Path], normport: Command, edit: Change, said: str
) -> None:
    ran = normport("ab-report", "--from-table", changed(edit), "--out", "out")
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error
    assert ran.error.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("figures", "places"), [(["1.250", "3"], 3), (["21.35", "4.1"], 2), (["7"], 0), ([], 0)]
)
def test_decimals_of_a_column(figures: list[str], places: int) -> None:
    assert decimals(map(Decimal, figures)) == places


def test_rounding_is_exact_at_its_ends() -> None:
    def of(printed: str) -> bool:
        return check(
            Decimal("10"),
            Decimal("11"),
            Decimal(printed),
            base_decimals=0,
            value_decimals=0,
            change_decimals=0,
        ).consistent

    # 10.5 / 10.5 to 11.5 / 9.5: no change at all to 21.05 %.
    assert [of(printed) for printed in ("-1", "0", "10", "21", "22")] == [
        False,
        True,
        True,
        True,
        False,
    ]
