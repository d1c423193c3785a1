"""The census that ``scan`` prints: rows, sections, counts, and what it is like in a pipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_sources import MODEL, PLAIN, REFUSED, Command

from normport.tools.findings import AS_ONE, FileResult, Finding, Report
from normport.tools.formats import github_format, layout, sarif_format, table_format, text_format
from normport.tools.formats.look import Look
from normport.tools.summary import counted, footer

ROOT = Path(__file__).parents[2]
STANDARD = """\
from vllm.model_executor.layers.layernorm import RMSNorm

first, second = RMSNorm(8), RMSNorm(8)
"""


def finding(path: str, line: int, code: str, **others: object) -> Finding:
    known: dict[str, object] = {
        "norm": "Norm",
        "computes": None,
        "verdict": "refuse",
        "target": None,
        "safety": None,
        "equivalence": None,
        "reason": "It stays.",
    }
    return Finding(path, path, line, 1, code, **{**known, **others})  # type: ignore[arg-type]


def report(*findings: Finding) -> Report:
    return Report((FileResult(Path("x.py"), Path(), findings),), (), 1)


APART = report(
    finding("ops/a.cu.py", 1, "NP401", norm="rms_kernel", reason="A device kernel."),
    finding("ops/a.cu.py", 9, "NP401", norm="rms_kernel", reason="A device kernel."),
    finding("models/m.py", 5, "NP201"),
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_one_row_per_norm_with_its_sites(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "sub").mkdir()
    (folder / "sub" / "refused.py").write_text(REFUSED)
    lines = normport("scan", "--no-proof", ".").out.splitlines()
    assert cells(lines[0]) == ["file", "class", "computes", "sites", "verdict", "reason"]
    assert cells(lines[1]) == [
        "model.py:22",
        "OffsetNorm",
        "1 + weight multiplied in float32, eps config.rms_norm_eps",
        "2 (22, 23)",
        "NP101 convert (unproven)",
        "to GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps). Nothing was run "
        "(--no-proof), so equality is not shown.",
    ]
    assert cells(lines[2])[3:] == [
        "2 (23, 24)",
        "NP201 refuse",
        "OffsetNorm: it subtracts the mean; leave it, or declare torch.nn.LayerNorm if that is "
        "what it computes.",
    ]
    assert [cells(line) for line in lines[3:]] == [
        [],
        ["directory", "norms", "to convert", "refused", "standard already", "apart"],
        [".", "1", "2", "0", "0", "0"],
        ["sub", "1", "0", "2", "0", "0"],
        ["total", "2", "2", "2", "0", "0"],
    ]


def test_sites_that_differ_have_rows_of_their_own(folder: Path, normport: Command) -> None:
    """The epsilon and the size may differ within a row; what is said of the sites may not."""
    source = MODEL.replace("rms_norm_eps)\n\n", "post_eps)\n\n")
    (folder / "model.py").write_text(source)
    (row,) = [
        line for line in normport("scan", "--no-proof", ".").out.splitlines() if "Offset" in line
    ]
    assert "eps config.rms_norm_eps or config.post_eps" in row
    assert (
        "eps=config.rms_norm_eps) or GemmaRMSNorm(config.hidden_size, eps=config.post_eps)" in row
    )
    other = source.replace("self.second(self", "self.second.weight + self.second(self")
    (folder / "model.py").write_text(other)
    rows = [
        line for line in normport("scan", "--no-proof", ".").out.splitlines() if "Offset" in line
    ]
    assert [row.count("convert") for row in rows] == [1, 0]


def test_three_targets_are_counted() -> None:
    targets = [f"RMSNorm({size})" for size in (8, 16, 32)]
    found = [
        finding("m.py", n, "NP102", verdict="convert", safety="safe", target=target, reason=None)
        for n, target in enumerate(targets, 1)
    ]
    assert "to RMSNorm(8) or RMSNorm(16) or 1 more." in table_format.render(report(*found), Look())


def test_standard_layers_are_counted_and_listed_on_request(folder: Path, normport: Command) -> None:
    (folder / "standard.py").write_text(STANDARD)
    result = normport("scan", ".")
    assert result.status == 0
    assert [cells(line) for line in result.out.splitlines()] == [
        ["directory", "norms", "to convert", "refused", "standard already", "apart"],
        [".", "0", "0", "0", "2", "0"],
        ["total", "0", "0", "0", "2", "0"],
    ]
    row = normport("scan", "--show-done", ".").out.splitlines()[1]
    assert cells(row) == ["standard.py:3", "RMSNorm", "-", "2 (3, 3)", "NP100 done", "-"]
    assert normport("rewrite", ".").out == ""
    assert normport("rewrite", "--show-done", ".").out.count("NP100 RMSNorm: done") == 2
    assert len(normport("scan", "--output-format=json", ".").json["findings"]) == 2


def test_what_is_no_models_norm_stands_apart() -> None:
    lines = table_format.render(APART, Look(show_done=True)).splitlines()
    assert [cells(line)[0] for line in lines if line] == [
        "file",
        "models/m.py:5",
        "Apart, no model's norms: device kernels, fusion passes, the standard layers",
        "file",
        "ops/a.cu.py:1",
        "directory",
        "models",
        "ops",
        "total",
    ]
    row = "ops/a.cu.py:1", "rms_kernel", "NP401 A device kernel.", "2 (1, 9)"
    assert tuple(cells(lines[5])) == row
    assert cells(lines[-1]) == ["total", "1", "0", "1", "0", "2"]
    assert "rms_kernel" not in text_format.render(APART, Look())


def test_what_stands_apart_is_counted_apart() -> None:
    counts = APART.counts()
    assert (counts["findings"], counts["refuse"], counts["apart"]) == (3, 1, 2)
    assert "1 refused; 2 apart" in counted(APART)
    lines = github_format.render(APART).splitlines()
    assert lines[0].startswith("::notice file=models/m.py,")
    assert lines[1].startswith("::notice file=ops/a.cu.py,")
    log = sarif_format.render(APART)
    assert log.count('"kind": "informational"') == 2


def test_strict_does_not_mind_what_stands_apart(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plain.py").write_text(PLAIN)
    only_apart = report(*(f for f in APART.findings if f.apart))
    for found, status in ((only_apart, 0), (APART, 1)):
        monkeypatch.setattr("normport.tools.commands.run", lambda *_, found=found: found)
        assert normport("scan", "--strict", ".").status == status


def test_a_cell_stays_on_its_line() -> None:
    odd = finding("a\nb.py", 1, "NP201", norm="N", reason="x\ty\x1b[31m")
    row = table_format.render(report(odd), Look()).splitlines()[1]
    assert r"a\nb.py:1" in row
    assert r"x\ty\x1b[31m" in row


def test_on_a_terminal_the_table_has_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    long = finding("models/a_rather_long_name_of_a_model.py", 1, "NP201", reason="Because. " * 40)
    text = table_format.render(report(long), Look(terminal=True))
    assert max(map(len, text.splitlines())) <= 90
    assert text.count("Because.") == 40
    assert "\x1b[33m" in table_format.render(report(long), Look(terminal=True, color=True))


def real_findings() -> list[Finding]:
    """What was found in vLLM 0.29.0 and left, with its real paths and names."""
    manifest = json.loads((ROOT / "patches" / "0.29.0" / "manifest.json").read_text())
    return [
        finding(one["path"], one["line"], one["code"], norm=one["norm"], reason=one["reason"])
        for one in manifest["evidence"]["left"]
    ]


def folded(path: str) -> str:
    """A pattern of the path: it may go on in the next line behind a slash, and a part that is wider
    than its column behind a part of that."""
    parts = re.findall(r"[^/]*/|[^/]+$", path)
    return r"\n?".join(
        re.escape(part) if len(part) <= 24 else re.sub(r"(_|\\\.)", r"\1\\n?", re.escape(part))
        for part in parts
    )


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_path_is_folded_behind_a_slash(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = real_findings()
    assert len(found) > 40
    text = table_format.render(report(*found), Look(terminal=True))
    assert max(map(len, text.splitlines())) <= width
    first = "\n".join(line.split("  ")[0] for line in text.splitlines())
    for one in found:
        assert re.search(rf"^{folded(one.shown)}:\d", first, re.MULTILINE), one.shown
        assert re.search(rf"^{folded(one.shown.rpartition('/')[0])}$", first, re.MULTILINE)
    assert f"{found[0].norm}: " not in text


def test_a_class_that_is_built_elsewhere_is_the_one_site() -> None:
    alone = finding("m.py", 1, "NP216", reason=f"Norm: it does. Constructed in a.py:3; {AS_ONE}")
    here = finding("m.py", 9, "NP216", norm="Other", reason="Other: it does; leave it.")
    rows = table_format.render(report(alone, here), Look()).splitlines()
    assert cells(rows[1])[3] == "1 (the class)"
    assert cells(rows[2])[3] == "1"


FOLDED = [
    ("a short cell", 20, ["a short cell"]),
    ("it goes on between words", 10, ["it goes on", "between", "words"]),
    ("vllm/models/inkling/model.py:12", 20, ["vllm/models/inkling/", "model.py:12"]),
    (
        "see vllm/models/a_long_name_of_it.py:12",
        12,
        ["see vllm/", "models/a_", "long_name_", "of_it.py:12"],
    ),
    ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
    (
        "\N{CJK UNIFIED IDEOGRAPH-6A21}" * 3,
        4,
        ["\N{CJK UNIFIED IDEOGRAPH-6A21}" * 2, "\N{CJK UNIFIED IDEOGRAPH-6A21}"],
    ),
    ("", 4, [""]),
]


@pytest.mark.parametrize(("text", "width", "lines"), FOLDED)
def test_where_a_cell_is_folded(text: str, width: int, lines: list[str]) -> None:
    assert layout.fold(text, width) == lines


def test_json_has_the_counts_of_each_directory(folder: Path, normport: Command) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "refused.py").write_text(REFUSED)
    (folder / "model.py").write_text(MODEL)
    summary = normport("scan", "--no-proof", "--output-format=json", ".").json["summary"]
    assert summary["directories"]["sub"]["refuse"] == 2
    assert summary["directories"]["."] == {
        "norms": 1,
        "convert": 2,
        "done": 0,
        "refuse": 0,
        "safe": 0,
        "unsafe": 0,
        "unproven": 2,
        "apart": 0,
    }
    assert (summary["norms"], summary["unused_ignores"]) == (2, [])


def test_footer_names_the_options_that_make_the_difference() -> None:
    def site(safety: str, *, applied: bool) -> Finding:
        return finding("m.py", 1, "NP101", verdict="convert", safety=safety, applied=applied)

    default = [site("safe", applied=True), site("unsafe", applied=False)]
    assert footer(default, told=False) == [
        "1 norm can be converted with `normport rewrite --write`.",
        "1 more with `normport rewrite --write --unsafe`.",
    ]
    accepted = [
        *(site(s, applied=True) for s in ("safe", "unsafe")),
        site("unproven", applied=False),
    ]
    assert footer(accepted, told=False) == [
        "2 norms can be converted with `normport rewrite --write --unsafe`.",
        "1 more with `normport rewrite --write --allow-unproven`.",
    ]
    assert footer(accepted[2:], told=False, without="--no-exec") == [
        "1 not proven: run again without --no-exec.",
    ]
    assert footer(accepted[:2], told=True) == []
    assert footer([*default[:1], site("safe", applied=False)], told=True) == []
    assert footer([*default[:1], site("safe", applied=False)], told=True, declined=True) == [
        "1 norm left; `normport rewrite --write` converts it.",
    ]
