"""Measured runs: what is matched and pooled, what may be claimed, and the page."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from evidence_sources import Command

from normport.tools.ab_report import plots
from normport.tools.ab_report.bench import match, read_arm
from normport.tools.ab_report.honesty import line, read
from normport.tools.bootstrap import independent_change, paired_change

RESULT: dict[str, Any] = {
    "model_id": "tiny",
    "num_prompts": 4,
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 2.0,
    "completed": 4,
    "failed": 0,
    "total_input_tokens": 32,
    "total_output_tokens": 16,
    "output_throughput": 8.0,
    "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 10.0,
    "mean_e2el_ms": 130.0,
    "median_ttft_ms": 90.0,
    **{f"p{p}_{m}_ms": 10.0 * p for p in (50, 90, 99) for m in ("ttft", "tpot", "itl", "e2el")},
}


def put(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**RESULT, **values}))
    return path


def arms(
    folder: Path, off: list[float], on: list[float], metric: str = "output_throughput"
) -> None:
    for arm, values in (("off", off), ("on", on)):
        for number, value in enumerate(values):
            put(folder / arm / f"r{number}", "result", **{metric: value})


@pytest.fixture
def drawn(normport: Command, folder: Path) -> Command:
    """Makes the whole report."""
    return lambda *options: normport(
        "ab-report", "--off", "off", "--on", "on", "--out", "out", *options
    )


@pytest.fixture
def report(drawn: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same without its drawings, which take most of the time."""
    for name in ("all_changes", "all_percentiles"):
        monkeypatch.setattr(plots, name, lambda _: [])
    return drawn


def written(folder: Path) -> Any:
    return json.loads((folder / "out/report.json").read_text())


def change(folder: Path, metric: str = "output_throughput_tok_s") -> Any:
    (cell,) = written(folder)["cells"]
    return cell["changes"][metric]


def test_repeats_whose_lengths_differ_a_little_are_repeats(report: Command, folder: Path) -> None:
    for arm, sums in (("off", (4096, 4099, 4121)), ("on", (4101, 4093, 4096))):
        for number, tokens in enumerate(sums):
            put(folder / arm / f"r{number}", "result", total_input_tokens=tokens)
        put(folder / arm / "longer", "result", total_input_tokens=8200)
    assert report().status == 0
    cells = written(folder)["cells"]
    assert [(cell["n"], cell["key"]["input_len"]) for cell in cells] == [("3", 1024), ("1", 2050)]


def test_lengths_that_are_told_are_kept_apart(report: Command, folder: Path) -> None:
    for arm in ("off", "on"):
        for length in (1024, 1025):
            put(folder / arm / f"{length}", "result", input_len=length)
    assert report().status == 0
    assert [cell["n"] for cell in written(folder)["cells"]] == ["1", "1"]


def test_one_run_each_claims_nothing(report: Command, folder: Path) -> None:
    arms(folder, [100.0], [150.0])
    assert "no claim for 1 cell." in report().out
    (cell,) = written(folder)["cells"]
    assert (cell["n"], cell["claim"]) == ("1", "no claim: n = 1")
    assert change(folder)["change_percent"] == 50
    assert change(folder)["interval"] is None
    text = (folder / "out/report.md").read_text()
    assert "With n = 1 there is no spread, so no claim can be made" in text
    assert "| 1 | 100.000 | 150.000 | +50.000% |" in text


def test_repeats_are_pooled(report: Command, folder: Path) -> None:
    arms(folder, [100.0, 102.0, 98.0], [110.0, 112.0, 108.0])
    assert report().status == 0
    (cell,) = written(folder)["cells"]
    assert (cell["n"], cell["runs"], cell["claim"]) == ("3", [3, 3], "interval")
    found = change(folder)
    assert found["change_percent"] == pytest.approx(10)
    assert found["shown"]
    assert found["interval"]["low"] < 10 < found["interval"]["high"]
    text = (folder / "out/report.md").read_text()
    assert "fewer than five repeats they are narrower than the real uncertainty" in text


def test_the_same_input_gives_the_same_page(drawn: Command, folder: Path) -> None:
    arms(folder, [100.0, 102.0], [110.0, 112.0])
    assert drawn().status == 0
    first = (folder / "out/report.html").read_bytes()
    assert drawn().status == 0
    assert (folder / "out/report.html").read_bytes() == first


def test_noise_shows_nothing(report: Command, folder: Path) -> None:
    arms(folder, [100.0, 110.0, 90.0], [101.0, 91.0, 112.0])
    assert report().status == 0
    assert not change(folder)["shown"]


def test_unequal_repeats(report: Command, folder: Path) -> None:
    arms(folder, [100.0, 102.0], [110.0])
    assert report().status == 0
    (cell,) = written(folder)["cells"]
    assert (cell["n"], cell["claim"]) == ("2 OFF, 1 ON", "no claim: n = 1")


@pytest.mark.parametrize(
    "name", ["\ud800", "a\nb\x00\u202ec", "模型 \U0001f350 $\\frac$", "x" * 300]
)
def test_names_of_all_kinds(drawn: Command, folder: Path, name: str) -> None:
    put(folder / "off", "a", model_id=name)
    put(folder / "on", "a", model_id=name)
    ran = drawn("--title", "t\n# u")
    assert (ran.status, ran.error.count("\n")) == (0, 1)
    text = (folder / "out/report.md").read_text()
    assert text.startswith("# t # u\n")
    (row,) = [line for line in text.splitlines() if line.startswith("| ") and "+0.000%" in line][:1]
    assert row.endswith("| 1 | 8.000 | 8.000 | +0.000% |")
    assert Page((folder / "out/report.html").read_text()).open == []


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"mean_ttft_ms": float("nan")}, "TTFT"),
        ({"mean_tpot_ms": 0}, "TPOT"),
        ({"mean_e2el_ms": "130"}, "E2E"),
        ({"mean_e2el_ms": -1}, "E2E"),
    ],
)
def test_figures_that_are_none(
    report: Command, folder: Path, values: dict[str, Any], missing: str
) -> None:
    for number in range(2):
        put(folder / f"off/{number}", "a", **(values if number else {}))
        put(folder / f"on/{number}", "a")
    assert report().status == 0
    (cell,) = written(folder)["cells"]
    assert len(cell["changes"]) == 3
    assert f"Not in every result, or 0, and so not compared: {missing} (tiny" in (
        (folder / "out/report.md").read_text()
    )


def test_nothing_is_written_where_one_file_cannot_be(report: Command, folder: Path) -> None:
    arms(folder, [1.0], [1.0])
    (folder / "out/report.html").mkdir(parents=True)
    ran = report()
    assert (ran.status, ran.out) == (2, "")
    assert ran.error == (
        "error: out/report.html cannot be written (Is a directory); name another place.\n"
    )
    assert [path.name for path in (folder / "out").iterdir()] == ["report.html"]


def test_one_file_in_both_arms(normport: Command, folder: Path) -> None:
    arms(folder, [1.0], [1.0])
    ran = normport("ab-report", "--off", ".", "--on", "on", "--out", "out")
    assert ran.status == 2
    assert "on/r0/result.json is both in OFF and in ON: name folders apart" in ran.error


def test_several_folders_are_repeats(normport: Command, folder: Path) -> None:
    for number in (1, 2):
        put(folder / f"off{number}", "a")
        put(folder / f"on{number}", "a")
    options = [f"--{arm}={arm}{n}" for arm in ("off", "on") for n in (1, 2)]
    assert normport("ab-report", *options, "--out", "out").status == 0
    assert written(folder)["cells"][0]["runs"] == [2, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_id", "other"),
        ("total_input_tokens", 64),
        ("total_output_tokens", 32),
        ("max_concurrency", 8),
        ("tensor_parallel_size", "2"),
        ("precision", "FP8"),
        ("num_prompts", 5),
        ("request_rate", 4.0),
    ],
)
def test_what_differs_is_not_compared(
    report: Command, folder: Path, name: str, value: object
) -> None:
    put(folder / "off", "same")
    put(folder / "on", "same")
    put(folder / "on", "different", **{name: value})
    ran = report()
    assert ran.status == 0
    assert len(written(folder)["cells"]) == 1
    assert written(folder)["cells"][0]["runs"] == [1, 1]
    (alone,) = written(folder)["unmatched"]
    assert "1 ON result without the other arm" in alone
    assert f"note: not compared: {alone}" in ran.error


def test_nothing_in_common(report: Command, folder: Path) -> None:
    put(folder / "off", "a")
    put(folder / "on", "a", max_concurrency=8)
    ran = report()
    assert ran.status == 2
    assert ran.error.startswith("error: No configuration was measured in both arms: ")
    assert not (folder / "out").exists()


def test_where_a_cell_comes_from(folder: Path) -> None:
    put(folder / "a", "result", tensor_parallel_size="4", precision="BF16")
    put(folder / "b", "result", input_lens=[7, 7], output_lens=[5, 6])
    put(folder / "c", "result", input_lens=[7, 7])
    (folder / "c/cell.json").write_text(
        json.dumps({"model": "Q", "input_len": 9, "precision": "FP8", "batch_size": 2})
    )
    said, detailed, declared = (read_arm([folder / name])[0].key for name in "abc")
    assert (said.tensor_parallel_size, said.precision, said.input_len) == (4, "BF16", 8)
    assert (detailed.tensor_parallel_size, detailed.input_len, detailed.output_len) == (None, 7, 4)
    assert (declared.model, declared.input_len, declared.batch_size) == ("Q", 9, 2)
    assert declared.precision == "FP8"


def test_what_is_not_known_is_told(report: Command, folder: Path) -> None:
    arms(folder, [1.0], [1.0])
    assert report().status == 0
    assert "For 1 cell the TP size or the precision is not in the results" in (
        (folder / "out/report.md").read_text()
    )


def test_failed_requests_are_told(report: Command, folder: Path) -> None:
    arms(folder, [1.0], [1.0])
    put(folder / "on/r0", "result", failed=2)
    assert report().status == 0
    assert "Note: 2 requests failed in the runs compared." in (
        (folder / "out/report.md").read_text()
    )


def test_a_metric_that_was_not_measured(report: Command, folder: Path) -> None:
    arms(folder, [1.0], [1.0])
    path = folder / "on/r0/result.json"
    value = json.loads(path.read_text())
    del value["mean_e2el_ms"], value["p99_itl_ms"]
    path.write_text(json.dumps(value))
    assert report().status == 0
    (cell,) = written(folder)["cells"]
    assert "e2e_ms" not in cell["changes"]
    assert set(cell["percentiles"]["itl"]["on"]) == {"50", "90"}


def test_appended_results(folder: Path) -> None:
    (folder / "all.json").write_text("\n".join(json.dumps(RESULT) for _ in range(3)))
    assert len(read_arm([folder / "all.json"])) == 3
    cells, alone = match(read_arm([folder / "all.json"]), read_arm([folder / "all.json"]))
    assert (cells[0].runs, alone) == ((3, 3), ())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: None, "on does not exist"),
        (lambda f: (f / "on").mkdir(), "no result of `vllm bench serve --save-result` there"),
        (lambda f: put(f / "on", "a").write_text("{"), "is not JSON"),
        (lambda f: put(f / "on", "a").write_bytes(b"\xff{}"), "is not UTF-8 text"),
        (lambda f: put(f / "on", "a").write_text("[" * 100_000), "is not JSON"),
        (lambda f: put(f / "on", "a", request_rate=[1]), "request_rate is '[1]', not a number"),
        (lambda f: put(f / "on", "a", max_concurrency=2.5), "batch_size is '2.5', not a whole"),
        (lambda f: put(f / "on", "a", max_concurrency=math.inf), "batch_size is 'inf', not a"),
        (lambda f: put(f / "on", "a", completed=10**400), "no request of that run completed"),
        (lambda f: put(f / "on", "a", completed=0), "no request of that run completed"),
        (lambda f: put(f / "on", "a", tensor_parallel_size="x"), "not a whole number"),
    ],
)
def test_an_arm_that_cannot_be_read(report: Command, folder: Path, make: Any, said: str) -> None:
    put(folder / "off", "a")
    make(folder)
    ran = report()
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error
    assert ran.error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Name both arms with --off and --on, or a table"),
        (("--off", "off"), "Name both arms"),
        (("--from-table", "t", "--on", "on"), "leave --off, --on and --other out"),
        (("--from-table", "t"), "t cannot be read (No such file or directory)"),
        (("--off", "off", "--on", "on", "--other", "x"), "--other x is not NAME=DIR"),
    ],
)
def test_options_that_do_not_fit(
    normport: Command, folder: Path, options: tuple[str, ...], said: str
) -> None:
    arms(folder, [1.0], [1.0])
    ran = normport("ab-report", *options)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error


def test_beside_another_server(report: Command, folder: Path) -> None:
    arms(folder, [8.0], [10.0])
    put(folder / "sg", "a", model_id="q", output_throughput=5.0, mean_ttft_ms=200.0)
    put(folder / "sg", "b", max_concurrency=9)
    assert report("--other", "sglang=sg").status == 0
    (case,) = written(folder)["standalone"]
    gains = {gain["metric"]: gain for gain in case["gains"]}
    # Positive is better: more output, and less time to the first token.
    assert gains["Output throughput (tok/s)"]["on_gain_percent"] == pytest.approx(100)
    assert gains["Output throughput (tok/s)"]["off_gain_percent"] == pytest.approx(60)
    assert gains["Mean TTFT (ms)"]["on_gain_percent"] == pytest.approx(50)
    assert gains["Input throughput (tok/s)"]["other"] == 16
    assert "P90 TTFT (ms)" in gains
    (alone,) = written(folder)["unmatched"]
    assert alone.startswith("sglang: 1 result of ")
    text = (folder / "out/report.md").read_text()
    assert "| Mean TTFT (ms) | lower | 200.000 | 100.000 | 100.000 | +50.000% | +50.000% |" in text


def test_another_servers_cases_by_size(report: Command, folder: Path) -> None:
    for batch in (16, 4, 1):
        for arm in ("off", "on", "sg"):
            put(folder / arm, f"of {batch}", max_concurrency=batch)
    assert report("--other", "sglang=sg").status == 0
    cases = written(folder)["standalone"]
    assert [case["settings"]["max_concurrency"] for case in cases] == [1, 4, 16]
    text = (folder / "out/report.md").read_text()
    assert "num_prompts 4, request_rate inf, max_concurrency 1." in text
    # Equal figures, of which higher and lower ones are better, are no loss.
    assert "+0.000%" in text
    assert "-0.000%" not in text


def a_rewrite_file(path: Path, **values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": 1, "compiled": True, "matched": 18, "replaced": 9, "ranges": [], **values}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "said", "count"),
    [
        ([], "is unknown, because no rewrite file was given", None),
        ([{"replaced": 0}], "0 rewrites were observed: the difference compares configurations", 0),
        ([{"replaced": 0}, {}], "0 rewrites were observed on at least one rank: the", 0),
        ([{"compiled": False, "replaced": 0}], "no graph was compiled in their runs", None),
        ([{}, {"compiled": False, "replaced": 0}], "9 of 18 matched sites were rewritten", 9),
        ([{"replaced": 0}, {"compiled": False}], "; 1 file of runs that compiled nothing left", 0),
        ([{"matched": 9, "replaced": 1}], "1 of 9 matched sites was rewritten", 1),
        ([{}], "9 of 18 matched sites were rewritten to the fused op in the ON arm; how", 9),
        ([{}, {}], "9 of 18 matched sites were rewritten to the fused op in the ON arm per", 9),
        ([{}, {"replaced": 7}], "7 to 9 of 18 matched sites", 7),
    ],
)
def test_what_the_difference_is_attributed_to(
    report: Command, folder: Path, files: list[dict[str, Any]], said: str, count: int | None
) -> None:
    arms(folder, [1.0], [1.0])
    for rank, values in enumerate(files):
        a_rewrite_file(folder / f"rw/deep/car-rmsnorm-rank{rank}.json", **values)
    ran = report(*(["--rewrites", "rw"] if files else []))
    assert ran.status == 0
    assert said in ran.out
    assert written(folder)["rewrites"] == count
    assert said in (folder / "out/report.md").read_text()
    assert said in (folder / "out/report.html").read_text()
    assert line(read([folder / "rw"] if files else []))[1] == count


@pytest.mark.parametrize(
    "values",
    [
        {"schema": 2},
        {"replaced": -1},
        {"replaced": 19},
        {"replaced": True},
        {"replaced": None},
        {"compiled": None},
    ],
)
def test_no_rewrite_file(report: Command, folder: Path, values: dict[str, Any]) -> None:
    arms(folder, [1.0], [1.0])
    path = a_rewrite_file(folder / "rw.json", **values)
    assert "is not a file that the fusion pass wrote" in report("--rewrites", path).error
    (folder / "empty").mkdir()
    assert "empty holds no car-rmsnorm-rank" in report("--rewrites", "empty").error


class Page(HTMLParser):
    """What a page is made of; a tag that is not closed in its order is an error."""

    VOID = ("meta", "link", "br", "img", "use", "path", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone(drawn: Command, folder: Path) -> None:
    for arm in ("off", "on"):
        for number in range(3):
            values = {"output_throughput": 8.0 + number, "mean_ttft_ms": 100.0 - number}
            put(folder / arm / f"r{number}", "result", model_id="a<b>&\"c'|d", **values)
    assert drawn("--title", "<i>R</i>").status == 0
    text = (folder / "out/report.html").read_text()
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "image", "i", "b"} & set(names)
    for _, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("href", "xlink:href", "src"):
                assert value is not None
                assert value.startswith("#")
    assert not re.search(r"url\((?!#)|@import", text)
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 8  # four changes, four kinds of percentiles
    assert all(each["role"] == "img" and each["aria-label"] for each in drawings)
    assert len([tag for tag in names if tag == "table"]) == 8
    assert "a&lt;b&gt;&amp;" in text
    assert "a<b>&\"c'\\|d" in (folder / "out/report.md").read_text()
    identities = [a["id"] for tag, a in page.tags if tag == "section"]
    assert {a["href"] for tag, a in page.tags if tag == "a"} == {f"#{i}" for i in identities}


def test_the_drawings_take_their_colors_from_the_page(drawn: Command, folder: Path) -> None:
    arms(folder, [100.0, 101.0, 102.0], [110.0, 111.0, 112.0])
    assert drawn().status == 0
    text = (folder / "out/report.html").read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []
    used = set(re.findall(r"var\((--\w+)\)", drawn))
    assert {"--ink", "--better", "--off", "--on"} <= used
    light, dark = text.split("prefers-color-scheme: dark")
    for name in used:
        assert f"{name}:" in light
        assert f"{name}:" in dark.split("}")[0]


def test_intervals_are_those_of_the_mean() -> None:
    change, interval = independent_change([100.0, 100.0], [110.0, 110.0])
    assert change == pytest.approx(10)
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(10), pytest.approx(10))
    # With two values each, a resampled mean is one of three; the ends are the extreme ones.
    _, wide = independent_change([90.0, 110.0], [90.0, 110.0])
    assert wide is not None
    assert wide.low == pytest.approx((90 / 110 - 1) * 100)
    assert wide.high == pytest.approx((110 / 90 - 1) * 100)
    assert independent_change([1.0], [2.0, 3.0])[1] is None
    assert paired_change([1.0], [2.0]) == (100, None)
