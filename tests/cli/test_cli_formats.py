"""The JSON contract, GitHub annotations, SARIF and ``explain``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_sources import BROKEN, MODEL, REFUSED, SCALE, Command

from normport.codemods.registry import all_rules
from normport.tools.findings import FileResult, Finding, Report
from normport.tools.formats import sarif_format

STANDARD = """\
from vllm.model_executor.layers.layernorm import RMSNorm

norm = RMSNorm(8)  # normport: ignore[NP101]
"""


@pytest.fixture
def tree(folder: Path) -> Path:
    (folder / "model.py").write_text(MODEL)
    (folder / "sub").mkdir()
    (folder / "sub" / "refused.py").write_text(REFUSED)
    (folder / "sub" / "bad, really: 100%.py").write_text(BROKEN)
    return folder


def test_json_contract(tree: Path, normport: Command) -> None:
    result = normport("scan", "--no-proof", "--output-format=json", tree.parent / "work")
    report = result.json
    assert list(report) == ["schema", "findings", "errors", "summary"]
    assert report["schema"] == 1
    keys = [
        *("path", "line", "column", "code", "norm", "computes"),
        *("verdict", "target", "safety", "equivalence", "reason", "lost_comments"),
    ]
    assert [list(finding) for finding in report["findings"]] == [keys] * 4
    first, _, third, _ = report["findings"]
    assert (first["path"], first["line"], first["column"]) == ("model.py", 22, 22)
    assert (first["code"], first["norm"], first["verdict"]) == ("NP101", "OffsetNorm", "convert")
    assert first["target"] == "GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)"
    assert (first["safety"], first["equivalence"]) == ("unproven", None)
    assert first["computes"]["weight"] == "offset"
    assert first["computes"]["offset"] == 1.0
    assert first["computes"]["eps"] == "config.rms_norm_eps"
    assert first["reason"]
    assert (third["path"], third["verdict"]) == ("sub/refused.py", "refuse")
    assert third["target"] is third["safety"] is None
    assert third["reason"]
    assert [list(error) for error in report["errors"]] == [["path", "message"]]
    summary = report["summary"]
    assert (summary["files"], summary["findings"], summary["errors"]) == (3, 4, 1)
    assert (summary["convert"], summary["refuse"], summary["unproven"]) == (2, 2, 2)


def test_paths_are_relative_to_the_argument(tree: Path, normport: Command) -> None:
    result = normport("scan", "--no-proof", "--output-format=json", "sub/refused.py")
    assert {finding["path"] for finding in result.json["findings"]} == {"refused.py"}


def test_paths_in_a_vllm_tree_start_with_vllm(folder: Path, normport: Command) -> None:
    layers = folder / "checkout" / "vllm" / "model_executor" / "layers"
    models = folder / "checkout" / "vllm" / "model_executor" / "models"
    layers.mkdir(parents=True)
    models.mkdir()
    (folder / "checkout" / "vllm" / "__init__.py").write_text("")
    (layers / "layernorm.py").write_text("")
    (models / "model.py").write_text(MODEL)
    expected = {"vllm/model_executor/models/model.py"}
    for argument in ("checkout", "checkout/vllm", models / "model.py"):
        result = normport("scan", "--no-proof", "--output-format=json", argument)
        assert {finding["path"] for finding in result.json["findings"]} == expected


def test_hidden_folders_environments_and_links_are_skipped(folder: Path, normport: Command) -> None:
    for name in (".hidden", "__pycache__", "env", "real"):
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(REFUSED)
    (folder / "env" / "pyvenv.cfg").write_text("")
    (folder / "link.py").symlink_to(folder / "real" / "model.py")
    result = normport("scan", "--output-format=json", ".")
    assert {finding["path"] for finding in result.json["findings"]} == {"real/model.py"}
    assert result.json["summary"]["files"] == 1


def test_github_annotations_are_escaped(tree: Path, normport: Command) -> None:
    lines = normport("scan", "--no-proof", "--output-format=github", ".").out.splitlines()
    assert lines[0].startswith(
        "::warning file=model.py,line=22,col=22,title=normport NP101::OffsetNorm can become "
    )
    counts = lines.index("::group::normport: counts")
    kinds = [line.split(" ")[0] for line in lines[:counts]]
    assert kinds == ["::warning"] * 2 + ["::notice"] * 2 + ["::error"]
    error = lines[counts - 1]
    assert error.startswith("::error file=sub/bad%2C really%3A 100%25.py,")
    assert "100%25.py does not parse" in error
    assert lines[counts + 1 :] == [
        "normport: .: norms 1, to convert 2, refused 0, standard already 0, apart 0",
        "normport: sub: norms 1, to convert 0, refused 2, standard already 0, apart 0",
        "normport: total: norms 2, to convert 2, refused 2, standard already 0, apart 0",
        "::endgroup::",
    ]


def commands(out: str) -> list[tuple[dict[str, str], str]]:
    """Properties and message of each annotation, read as GitHub's runner reads them."""

    def plain(text: str) -> str:
        for escaped, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n")):
            text = text.replace(escaped, character)
        return text.replace("%25", "%")

    found = []
    for line in out.splitlines():
        match = re.fullmatch(r"::(?:warning|notice|error) (.*?)::(.*)", line)
        if match is not None:
            pairs = (part.split("=", 1) for part in match[1].split(","))
            found.append(({key: plain(value) for key, value in pairs}, plain(match[2])))
    return found


def test_github_messages_are_whole(folder: Path, normport: Command) -> None:
    """Each is what the JSON says, to its last word."""
    narrow = MODEL.replace("h = x.float()", "h = x").replace("weight.float()", "weight")
    (folder / "narrow, really: 100%.py").write_text(narrow)
    (folder / "scale.py").write_text(SCALE)
    arguments = ("scan", "--no-proof", ".")
    findings = normport(*arguments, "--output-format=json").json["findings"]
    found = commands(normport(*arguments, "--output-format=github").out)
    assert len(found) == len(findings) == 4
    for (place, message), finding in zip(found, findings, strict=True):
        assert place["file"] == finding["path"]
        told = finding["reason"].removeprefix(f"{finding['norm']}: ")
        assert message.endswith(told)
        if finding["verdict"] == "refuse":
            assert message == f"{finding['norm']} stays: {told}"
    assert "not in float32; normalise in float32 if" in found[0][1]


SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "sarif-2.1.0.json").read_text())


def check_sarif(log: Any) -> None:
    """What the schema of SARIF 2.1.0 asks of a log, and what the standard's text asks of ours."""
    jsonschema.Draft7Validator(SCHEMA).validate(log)
    (run,) = log["runs"]
    identifiers = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(identifiers) == len(set(identifiers))
    for result in run["results"]:
        assert identifiers[result["ruleIndex"]] == result["ruleId"]
        assert result["kind"] == "fail" or result["level"] == "none"
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert not place["artifactLocation"]["uri"].startswith("/")


def test_sarif(tree: Path, normport: Command) -> None:
    log = normport("scan", "--no-proof", "--output-format=sarif", ".").json
    check_sarif(log)
    (run,) = log["runs"]
    assert [result["level"] for result in run["results"]] == ["warning"] * 2 + ["note"] * 2
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    uri = notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "sub/bad%2C%20really%3A%20100%25.py"


def test_the_schema_tells_a_wrong_log(tree: Path, normport: Command) -> None:
    log = normport("scan", "--no-proof", "--output-format=sarif", "model.py").json
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        check_sarif(log)


def test_sarif_of_every_kind_of_finding(folder: Path, normport: Command) -> None:
    (folder / "standard.py").write_text(STANDARD)
    log = normport("scan", "--output-format=sarif", ".").json
    check_sarif(log)
    (run,) = log["runs"]
    assert [(r["kind"], r["level"]) for r in run["results"]] == [("pass", "none")]
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["level"] == "warning"
    assert "is unused" in notification["message"]["text"]
    assert run["properties"]["summary"]["directories"]["."]["done"] == 1
    found = [
        Finding(f"{code}.py", f"{code}.py", 1, 1, code, "N", None, verdict, None, None, None, None)
        for code, verdict in (("NP401", "refuse"), ("NP402", "done"), ("NP403", "refuse"))
    ]
    report = Report((FileResult(folder / "x.py", folder, tuple(found)),), (), 1)
    log = json.loads(sarif_format.render(report))
    check_sarif(log)
    assert {(r["kind"], r["level"]) for r in log["runs"][0]["results"]} == {
        ("informational", "none")
    }
    check_sarif(json.loads(sarif_format.render(Report((), (), 0))))


def test_no_colour_when_stdout_is_no_terminal(tree: Path, normport: Command) -> None:
    result = normport("scan", "--no-proof", ".")
    assert "\x1b" not in result.out + result.err


def test_explain_lists_the_rules_that_begin_so(normport: Command) -> None:
    for prefix in ("NP2", "np22", "NP", "all"):
        lines = normport("explain", prefix).out.splitlines()
        wanted = "NP" if prefix == "all" else prefix.upper()
        known = [code for code in all_rules() if code.startswith(wanted)]
        assert [line.split()[0] for line in lines] == known
    for wrong in ("NP9", "N", "2"):
        result = normport("explain", wrong)
        assert (result.status, result.out) == (2, "")
        assert f"There is no rule '{wrong}'; the known ones are NP100, " in result.error


@pytest.mark.parametrize("code", list(all_rules()))
def test_explain_shows_every_rule(normport: Command, code: str) -> None:
    rule = all_rules()[code]
    result = normport("explain", code.lower())
    assert result.status == 0
    assert result.out.startswith(f"{code}: {rule.title}")
    assert rule.why.strip() in result.out
    for example in rule.examples:
        assert example.before.strip().splitlines()[0] in result.out
