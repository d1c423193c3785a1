"""``normport series evidence``: what a probe found, kept in a series; a simulation stays one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_sources import Command, commit_all
from probe_records import DTYPES, measured, simulation

from normport.tools.manifest import NAME, load
from normport.tools.series import write_series
from normport.tools.tree import FileChange, Patch, SourceTree

MODEL, BEFORE, AFTER = "vllm/model.py", b"x = Local()\n", b"x = RMSNorm()\n"


def write(folder: Path, version: str = "0.29.0") -> Path:
    tree = SourceTree(folder, version, "x", git=False, writable=False)
    patch = Patch("model", "model", "Why.", (), (FileChange(MODEL, BEFORE, AFTER),), "Then.")
    write_series(folder / "series", tree, [patch], [], {"model": [], "bound": "2 ulp"})
    return folder / "series"


@pytest.fixture
def series(folder: Path) -> Path:
    return write(folder)


@pytest.fixture
def record(folder: Path) -> Callable[..., str]:
    def store(content: Any, name: str = "probe.json") -> str:
        (folder / name).write_text(json.dumps(content))
        return name

    return store


def held(series: Path) -> Any:
    return json.loads((series / NAME).read_text())["evidence"].get("probes")


def test_a_measurement_is_taken_in_and_shown(
    normport: Command, series: Path, folder: Path, record: Callable[..., str]
) -> None:
    result = normport("series", "evidence", "series", record(measured()))
    assert (result.status, result.err) == (0, "")
    line = (
        "xpu: measured on Data Center GPU, 2026-11-30: 1 of 2 kernels ran, at most 3 ulp from "
        "native on dense rows"
    )
    assert result.out == f"taken in: probe.json: {line}\n"
    assert held(series) == [measured()]
    assert normport("series", "evidence", "series").out == f"evidence: {line}\n"
    for path, content in (("vllm/__init__.py", b""), (MODEL, BEFORE)):
        (folder / "checkout" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "checkout" / path).write_bytes(content)
    commit_all(folder / "checkout")
    status = normport("series", "status", "checkout", "--series", "series")
    assert status.status == 1
    assert status.out.splitlines()[-1] == f"evidence: {line}"


def test_a_simulation_is_never_read_as_a_measurement(
    normport: Command, series: Path, record: Callable[..., str]
) -> None:
    result = normport("series", "evidence", "series", record(simulation()))
    assert result.status == 0
    assert "xpu: a SIMULATION, which says nothing of the hardware (torch knows no XPU" in result.out
    assert "1 of 2 stand-ins of kernels ran" in result.out
    assert "measured" not in result.out


@pytest.mark.parametrize(
    "change",
    [
        {"simulated": False},
        {"simulated": False, "simulated_because": None},
        {"simulated": False, "simulated_because": None, "device": "Data Center GPU"},
        {"device": "Data Center GPU"},
        {"simulated_because": None},
        {"device": "", "simulated": False, "simulated_because": None},
    ],
)
def test_a_simulation_that_says_otherwise_is_no_record(
    normport: Command, series: Path, record: Callable[..., str], change: dict[str, Any]
) -> None:
    before = (series / NAME).read_bytes()
    result = normport("series", "evidence", "series", record(simulation(**change)))
    assert result.status == 2
    assert result.error.startswith("probe.json is no record of a probe (")
    assert (series / NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"schema": 2}, "its schema is 2, not 1"),
        ({"kind": "scan"}, "its kind is not probe"),
        ({"platform": "cuda"}, "no platform is called 'cuda'"),
        ({"date": "today"}, "its date is none"),
        ({"torch": None}, "it does not name its torch"),
        ({"torch": "2\x1b[31m"}, "torch is no text"),
        ({"kernels": {}}, "it looked at no kernel"),
        ({"kernels": {"k": {"not_called_because": ""}}}, "not_called_because is no text"),
        ({"kernels": {"k": {"cases": {}}}}, "k lacks aliases"),
        ({"more": 1}, "the record has more"),
        ({"kernel_packages": {"p": 1}}, "kernel_packages holds what is no version"),
        ({"kernel_packages": {"p": "1\x1b[31m"}}, "kernel_packages holds what is no version"),
        ({"schema": True}, "its schema is True, not 1"),
        ({"kernels": {"k\x1b[31m": {}}}, "kernels has a name that is no text"),
    ],
)
def test_what_is_no_record_is_said(
    normport: Command,
    series: Path,
    record: Callable[..., str],
    change: dict[str, Any],
    clause: str,
) -> None:
    result = normport("series", "evidence", "series", record(measured() | change))
    assert result.status == 2
    assert f"({clause})" in result.error
    assert held(series) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cases", {"1 x 6656": {"float16": -1, "bfloat16": 0, "float32": 0}}),
        ("cases", {"1 x 6656": {"float16": True, "bfloat16": 0, "float32": 0}}),
        ("cases", {"1 x 6656": {"float16": 10**20, "bfloat16": 0, "float32": 0}}),
        ("cases", {"1 x 6656": dict.fromkeys(DTYPES, "raised:\x1b[2J")}),
        ("cases", {"1 x\n6656": dict.fromkeys(DTYPES, 0)}),
        ("cases", {"1 x 6656": {"float16": 0}}),
        ("aliases", 1),
        ("ratio", {}),
        ("ratio", {dtype: [2.0, 1.0, 3.0] for dtype in DTYPES}),
        ("ratio", {dtype: [0, 1.0, 3.0] for dtype in DTYPES}),
    ],
)
def test_numbers_that_cannot_be_are_no_record(
    normport: Command, series: Path, record: Callable[..., str], key: str, value: Any
) -> None:
    content = measured()
    content["kernels"]["gemma_rms_norm"][key] = value
    result = normport("series", "evidence", "series", record(content))
    assert result.status == 2
    assert "is no record of a probe (gemma_rms_norm" in result.error


def test_each_device_has_one_record_and_a_measurement_ends_simulations(
    normport: Command, series: Path, record: Callable[..., str]
) -> None:
    old, new = record(measured(), "old.json"), record(measured(date="2026-12-01"), "new.json")
    other = record(measured("Other"), "other.json")
    fake = record(simulation(), "fake.json")
    musa = record(simulation("torch_musa knows no device here", platform="musa"), "musa.json")
    for arguments, outcomes in (
        ((fake, musa), ["taken in", "taken in"]),
        ((old,), ["replaced"]),
        ((old, other), ["there already", "taken in"]),
        ((new,), ["replaced"]),
    ):
        result = normport("series", "evidence", "series", *arguments)
        assert result.status == 0
        assert [line.partition(":")[0] for line in result.out.splitlines()] == outcomes
    assert [(r["platform"], r["device"], r["date"]) for r in held(series)] == [
        ("musa", None, "2026-11-30"),
        ("xpu", "Data Center GPU", "2026-12-01"),
        ("xpu", "Other", "2026-11-30"),
    ]
    before = (series / NAME).read_bytes()
    late = normport("series", "evidence", "series", fake)
    assert late.status == 2
    assert "fake.json is a simulation of xpu, of which the series holds a measurement" in late.error
    assert (series / NAME).read_bytes() == before


def test_evidence_outlives_a_series_that_is_written_again(
    normport: Command, series: Path, folder: Path, record: Callable[..., str]
) -> None:
    untouched = load(series)
    assert normport("series", "evidence", "series", record(simulation())).status == 0
    taken = (series / NAME).read_bytes()
    write(folder)
    assert (series / NAME).read_bytes() == taken
    rest = {key: value for key, value in load(series).evidence.items() if key != "probes"}
    assert rest == untouched.evidence
    assert load(series).patches == untouched.patches
    write(folder, "0.30.0")
    assert held(series) is None


def test_errors_are_one_sentence(
    normport: Command, series: Path, folder: Path, record: Callable[..., str]
) -> None:
    name = record(measured())
    (folder / "text.json").write_text("{")
    deep = folder / "deep.json"
    deep.write_text("[" * 100_000)
    for arguments, reason in (
        (("nowhere", name), "nowhere holds no manifest.json"),
        (("series", "missing.json"), "missing.json cannot be read (No such file"),
        (("series", "text.json"), "text.json is not JSON"),
        (("series", "deep.json"), "deep.json is not JSON"),
        (("series", "series"), "series cannot be read (Is a directory)"),
        (("series", record([1], "list.json")), "the whole is no object"),
    ):
        result = normport("series", "evidence", *arguments)
        assert result.status == 2
        assert reason in result.error
    assert normport("series", "evidence", "series").err == (
        "series/manifest.json holds no evidence of a device.\n"
    )


def test_one_bad_file_among_several_takes_in_none(
    normport: Command, series: Path, record: Callable[..., str]
) -> None:
    good, bad = record(measured(), "good.json"), record(measured(kind="scan"), "bad.json")
    assert normport("series", "evidence", "series", good, bad).status == 2
    assert held(series) is None


def test_a_probe_beside_another_release_is_told(
    normport: Command, series: Path, record: Callable[..., str]
) -> None:
    result = normport("series", "evidence", "series", record(measured(vllm="0.31.0")))
    assert result.status == 0
    assert "was made beside vLLM 0.31.0, and the series is of vLLM 0.29.0" in result.err
