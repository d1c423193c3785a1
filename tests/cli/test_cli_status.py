"""Exit statuses and streams of ``scan`` and ``rewrite``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_sources import MODEL, PLAIN, REFUSED, SCALE, UNPROVEN, Command, commit_all, git

from normport.tools import commands


def test_nothing_to_do_is_0(folder: Path, normport: Command) -> None:
    (folder / "plain.py").write_text(PLAIN)
    result = normport("scan", ".")
    assert (result.status, result.out) == (0, "")
    assert "1 file, 0 norms" in result.err


def test_something_to_convert_is_1(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    result = normport("scan", "--no-proof", ".")
    assert result.status == 1
    assert "  NP101 convert (unproven)  to GemmaRMSNorm(" in result.out
    listed = normport("rewrite", "--no-proof", ".").out
    assert listed.startswith("model.py:22:22: NP101 OffsetNorm: convert (unproven) to ")
    assert "2 not proven: run again without --no-proof." in result.err


def test_refused_alone_is_0_and_strict_makes_it_1(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(REFUSED)
    result = normport("scan", ".")
    assert result.status == 0
    assert "NP201 refuse" in result.out
    assert normport("scan", "--strict", ".").status == 1


def test_proof_makes_safe_and_unsafe(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "scale.py").write_text(SCALE)
    findings = normport("rewrite", "--unsafe", "--output-format=json", ".").json["findings"]
    assert [finding["safety"] for finding in findings] == ["safe"] * 2 + ["unsafe"] * 2
    ulps = [finding["equivalence"]["bfloat16"]["max_ulp"] for finding in findings]
    assert ulps == [0, 0, 1, 1]
    first = findings[2]
    assert first["target"] == "RMSNorm(config.hidden_size, eps=config.rms_norm_eps)"
    assert first["safety"] == "unsafe"
    assert first["equivalence"]["float32"]["max_ulp"] == 0
    assert first["reason"]


def test_no_proof_writes_nothing_without_leave(folder: Path, normport: Command) -> None:
    model = folder / "model.py"
    model.write_text(MODEL)
    assert normport("rewrite", "--no-proof", "--write", ".").status == 1
    assert model.read_text() == MODEL


def test_write_then_second_run_changes_nothing(folder: Path, normport: Command) -> None:
    model = folder / "model.py"
    model.write_text(MODEL)
    first = normport("rewrite", "--write", ".")
    assert (first.status, first.out) == (0, "")
    assert "model.py: 2 norms converted\nConverted 2 norms in 1 file." in first.err
    written = model.read_text()
    assert "GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)" in written
    assert "OffsetNorm" not in written.replace("GemmaRMSNorm", "")
    second = normport("rewrite", "--write", ".")
    assert second.status == 0
    assert "2 standard already" in second.err
    assert model.read_text() == written


def test_diff_goes_through_git_apply(folder: Path, normport: Command) -> None:
    (folder / "sub dir").mkdir()
    model, crlf = folder / "sub dir" / "model.py", folder / "crlf.py"
    model.write_text(MODEL)
    crlf.write_bytes(MODEL.replace("\n", "\r\n").encode().rstrip())
    commit_all(folder)
    result = normport("rewrite", *UNPROVEN, "--diff", ".")
    assert result.status == 1
    assert result.out.startswith("diff --git a/crlf.py b/crlf.py\n")
    git(folder, "apply", "-", stdin=result.out)
    assert normport("rewrite", *UNPROVEN, "--write", "--allow-dirty", ".").status == 0
    assert "GemmaRMSNorm(" in model.read_text()
    assert crlf.read_bytes().count(b"\n") == crlf.read_bytes().count(b"\r\n")
    again = normport("rewrite", *UNPROVEN, "--diff", ".")
    assert (again.status, again.out) == (0, "")


def test_diff_from_within_a_subfolder(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "model.py").write_text(MODEL)
    commit_all(folder)
    monkeypatch.chdir(folder / "models")
    result = normport("rewrite", *UNPROVEN, "--diff", "model.py")
    git(folder / "models", "apply", "-", stdin=result.out)
    assert "GemmaRMSNorm(" in (folder / "models" / "model.py").read_text()


def test_uncommitted_changes_are_not_written_over(folder: Path, normport: Command) -> None:
    model = folder / "model.py"
    model.write_text(PLAIN)
    commit_all(folder)
    model.write_text(MODEL)
    result = normport("rewrite", *UNPROVEN, "--write", ".")
    assert result.status == 2
    assert "uncommitted changes" in result.error
    assert model.read_text() == MODEL
    assert normport("rewrite", *UNPROVEN, "--write", "--allow-dirty", ".").status == 0


def test_one_bad_file_keeps_all_from_being_written(folder: Path, normport: Command) -> None:
    good, bad = folder / "good.py", folder / "bad.py"
    good.write_text(MODEL)
    bad.write_text(MODEL.replace("return self", "return ) self"))
    result = normport("rewrite", *UNPROVEN, "--write", "--output-format=json", ".")
    assert result.status == 2
    assert good.read_text() == MODEL
    assert [finding["path"] for finding in result.json["findings"]] == ["good.py", "good.py"]
    (error,) = result.json["errors"]
    assert error["path"] == "bad.py"
    assert error["message"] in result.err
    assert "Nothing was written" in result.err


def test_class_used_by_another_file_stays(folder: Path, normport: Command) -> None:
    """A class that several files use is converted in all of them or in none."""
    model = folder / "model.py"
    model.write_text(MODEL)
    (folder / "other.py").write_text("from .model import (\n    Layer,  # a\n    OffsetNorm,\n)\n")
    assert normport("rewrite", *UNPROVEN, "--write", ".").status == 0
    assert model.read_text() == MODEL
    findings = normport("scan", *UNPROVEN[:1], "--output-format=json", ".").json["findings"]
    assert {(finding["norm"], finding["code"]) for finding in findings} >= {("OffsetNorm", "NP220")}


def test_without_torch_all_is_unproven_and_said_so(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "hidden").mkdir()
    (folder / "hidden" / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder / "hidden"))
    result = normport("scan", "--output-format=json", "model.py")
    assert result.status == 1
    assert {finding["safety"] for finding in result.json["findings"]} == {"unproven"}
    assert result.err.count("pip install '.[proof]'") == 1


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["scan", "--help"]])
def test_help_and_version_are_0(normport: Command, arguments: list[str]) -> None:
    result = normport(*arguments)
    assert result.status == 0
    assert "normport" in result.out
    assert result.err == ""


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from normport.tools.cli import run; run(['--help']); "
        "print(*({'torch', 'libcst', 'rich', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_interrupt_is_130(folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run", interrupted)
    result = normport("scan", ".")
    assert (result.status, result.out, result.err) == (130, "", "")


def test_reader_that_goes_away_is_no_traceback(folder: Path) -> None:
    for number in range(40):
        (folder / f"model_{number}.py").write_text(REFUSED * 8)
    reading, writing = os.pipe()
    os.close(reading)
    code = "from normport.tools.cli import main; main()"
    command = [sys.executable, "-c", code, "scan", "--no-proof", "."]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
