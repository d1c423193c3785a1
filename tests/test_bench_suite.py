"""What the bench makes of its figures: verdicts, tables and the exit status. Nothing is timed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
EVEN = [10.0 + 0.1 * number for number in range(21)]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    for module in ("page", "suite", "engine"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (lambda _: 1.0, "held"),
        (lambda _: 0.98, "missed"),
        (lambda number: 0.98 if number % 2 else 1.03, "held"),
        (lambda number: 0.98 if number < 12 else 1.03, "not decided"),
        (lambda number: 0.98 if number < 19 else 1.03, "missed"),
    ],
)
def test_a_limit_is_missed_only_where_the_run_shows_it(
    monkeypatch: pytest.MonkeyPatch, ratio: Any, verdict: str
) -> None:
    engine = load("engine", monkeypatch)
    chained = [speed * ratio(number) for number, speed in enumerate(EVEN)]
    speeds = {"unported": EVEN, "ported": EVEN, "chained": chained}
    rows = engine.judged("eager", speeds, (0.95, 1.0))
    assert [row["verdict"] for row in rows] == ["", "held", verdict]


def test_the_interval_is_that_of_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("engine", monkeypatch)
    # The usual table: of 21 sorted values the 6th and the 16th, of 9 the 2nd and the 8th.
    assert engine.interval(list(range(1, 22))) == (6, 16)
    assert engine.interval(list(range(1, 10))) == (2, 8)
    assert engine.interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def found(missed: list[str]) -> dict[str, Any]:
    one = {side: [1.0, 2.0, 3.0] for side in ("upstream", "ours", "unguarded")}
    case = {"ns_per_call": one, "guard_ns": [4.0, 5.0, 6.0], "ratio": [0.7, 0.812, 0.9]}
    return {
        "upstream": "vllm==0.30.0",
        "rows": 1,
        "hidden": 6656,
        "dtype": "bfloat16",
        "repeats": 1001,
        "calls": 20,
        "limit": 1.1,
        "cases": {"norm": case},
        "missed": missed,
        "machine": "2 processors",
        "date": "2026-01-01",
    }


@pytest.mark.parametrize("missed", [[], ["norm: too slow"]])
def test_the_page_has_every_part_and_names_what_was_missed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missed: list[str],
) -> None:
    suite = load("suite", monkeypatch)
    monkeypatch.setattr(suite, "OUT", tmp_path)
    (tmp_path / "guard.json").write_text(json.dumps(found(missed)))
    target = tmp_path / "page.md"
    status = suite.main(["guard", "--saved", "--page", str(target)])
    assert status == (1 if missed else 0)
    out = capsys.readouterr().out
    text = target.read_text()
    for part in (out, text):
        assert "| norm | 2 [1, 3] | 2 [1, 3] | 2 [1, 3] | 5 [4, 6] | 0.812 [0.700, 0.900] |" in part
        assert ("Missed: norm: too slow." in part) == bool(missed)
        assert ("Every limit was kept." in part) != bool(missed)
    assert ("MISSED: guard: norm: too slow" in out) == bool(missed)
    assert text.count("Not run yet.") == len(suite.PARTS) - 1
    for _, command, _ in suite.PARTS.values():
        assert f"\n    {command}\n" in text
        assert (BENCH.parent / next(w for w in command.split() if w.endswith(".py"))).is_file()


def test_a_scan_is_told_by_what_another_tool_takes_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scan = load("scan", monkeypatch)
    assert scan.at_reference([6.0, 5.0], [3.0, 2.2]) == [pytest.approx(4.4), 5.0]


def test_a_part_that_fails_is_named_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = load("suite", monkeypatch)
    (tmp_path / "bench").mkdir()
    monkeypatch.setattr(suite, "HERE", tmp_path / "bench")
    monkeypatch.setattr(suite, "OUT", tmp_path / "out")
    answer = {**found([]), "machine": "", "date": ""}
    (tmp_path / "bench" / "guard.py").write_text(f"import json; print(json.dumps({answer!r}))")
    (tmp_path / "bench" / "norms.py").write_text("raise SystemExit(3)")
    (tmp_path / "bench" / "scan.py").write_text("print('no JSON')")
    assert suite.main(["guard", "norms", "scan"]) == 2
    printed = capsys.readouterr()
    assert "| norm |" in printed.out
    assert "FAILED: norms exited 3" in printed.err
    assert "FAILED: scan printed no JSON" in printed.err
