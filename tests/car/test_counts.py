"""The report's file, and what is said about a pass that did nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from normport.layers.car_rmsnorm import counts
from normport.layers.car_rmsnorm.counts import RangeCount, Report


def report() -> Report:
    return Report("on", True, "cell", "Why.", 3, 4, "tp:0", "composed")


def test_a_report_is_written_when_asked_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = report()
    one.ranges[17, 64] = RangeCount(17, 64, True, "eligible", "All.", 2, 5, 4)
    one.ranges[17, 64].skipped["dtype: other"] += 1
    one.save()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(counts.REPORT_VARIABLE, str(tmp_path / "new"))
    one.save()
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "car-rmsnorm-rank3.json"
    found = counts.read(path)
    assert (found["matched"], found["replaced"], found["compiled"]) == (5, 4, True)
    assert found["ranges"][0]["skipped"] == {"dtype: other": 1}


def test_a_folder_that_cannot_be_written_does_not_stop_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    log = SimpleNamespace(warning_once=lambda text, *a: said.append(text % a))
    monkeypatch.setattr(counts, "logger", lambda: log)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(counts.REPORT_VARIABLE, str(tmp_path / "file" / "folder"))
    report().save()
    assert len(said) == 1
    assert "cannot be written (Not a directory)" in said[0]


def test_without_a_graph_nothing_was_compiled() -> None:
    assert report().as_json()["compiled"] is False
    assert report().why_nothing() is None


def test_something_else_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match="schema 1"):
        counts.read(path)


def test_only_native_ranges_point_to_the_endpoints() -> None:
    one = report()
    one.ranges[1, 128] = RangeCount(1, 128, False, "native-range", "Native.")
    assert "endpoints were lost" in str(one.why_nothing())
