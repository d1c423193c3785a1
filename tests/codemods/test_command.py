"""The codemod as a plain LibCST command."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest
from libcst.codemod import CodemodContext

from normport.codemods.command import StandardNormsCommand
from normport.codemods.registry import all_rules

EXAMPLE = all_rules()["NP101"].examples[0]


def run(source: str, **options: object) -> tuple[str, list[str]]:
    context = CodemodContext()
    command = StandardNormsCommand(context, **options)  # type: ignore[arg-type]
    result = command.transform_module(cst.parse_module(source))
    return result.code, context.warnings


def test_converts_when_told_to() -> None:
    code, warnings = run(EXAMPLE.before, allow_unproven=True)
    assert code == EXAMPLE.after
    assert warnings == []
    assert run(code, allow_unproven=True) == (code, [])


def test_only_warns_without_a_proof() -> None:
    code, warnings = run(EXAMPLE.before)
    assert code == EXAMPLE.before
    assert len(warnings) == 1
    assert "--allow-unproven" in warnings[0]


def test_refusals_are_warnings() -> None:
    refused = all_rules()["NP204"].examples[0]
    code, warnings = run(refused.before, allow_unproven=True)
    assert code == refused.before
    assert [warning.split()[2] for warning in warnings] == ["NP204"]


def test_a_comment_keeps_a_construction_out() -> None:
    lines = [
        f"{line}  # normport: ignore" if "self.norm = " in line and line.endswith(")") else line
        for line in EXAMPLE.before.split("\n")
    ]
    source = "\n".join(lines)
    assert source != EXAMPLE.before
    assert run(source, allow_unproven=True) == (source, [])
    unused = EXAMPLE.before.replace("import torch\n", "import torch  # normport: ignore\n", 1)
    code, warnings = run(unused, allow_unproven=True)
    assert code != unused
    assert "is unused" in warnings[0]


@pytest.mark.parametrize("flags", [[], ["--allow-unproven"]])
def test_from_the_shell(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(EXAMPLE.before)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "libcst.tool", "codemod"),
            *("-x", "normport.codemods.command.StandardNormsCommand"),
            *("--no-format", "--jobs=1"),
            *flags,
            str(path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert path.read_text() == (EXAMPLE.after if flags else EXAMPLE.before)


def run_in(folder: Path, name: str, **options: object) -> tuple[str, list[str]]:
    context = CodemodContext(filename=str(folder / name))
    command = StandardNormsCommand(context, **options)  # type: ignore[arg-type]
    source = (folder / name).read_text()
    return command.transform_module(cst.parse_module(source)).code, context.warnings


@pytest.mark.parametrize(
    "line",
    [
        "from .model import {0}\n",
        "from pack.model import *\n",
        "import pack.model\n\nX = pack.model.{0}\n",
        "from . import model\n\nX = model.{0}\n",
    ],
)
def test_a_class_that_another_file_imports_stays(tmp_path: Path, line: str) -> None:
    name = EXAMPLE.before.split("class ")[1].split("(")[0]
    (tmp_path / "pack").mkdir()
    for file, text in (("__init__", ""), ("model", EXAMPLE.before), ("other", line.format(name))):
        (tmp_path / "pack" / f"{file}.py").write_text(text)
    code, warnings = run_in(tmp_path, "pack/model.py", allow_unproven=True)
    assert code == EXAMPLE.before
    assert "NP220" in warnings[0]
    (tmp_path / "pack" / "other.py").write_text("from .model import Another\n")
    assert run_in(tmp_path, "pack/model.py", allow_unproven=True) == (EXAMPLE.after, [])


@pytest.mark.parametrize("dim", ["Attn.norm:64", "Attn=64", "Attn.norm=", "Attn.norm=1, 2"])
def test_a_dim_that_is_malformed(dim: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    StandardNormsCommand.add_args(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--dim", dim])
    assert caught.value.code == 2
    assert "argument --dim" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--dim"):
        StandardNormsCommand(CodemodContext(), dim=[dim])


def test_a_dim_for_no_norm() -> None:
    _, warnings = run(EXAMPLE.before, allow_unproven=True, dim=["Attn.nrm=64"])
    assert warnings == ["--dim Attn.nrm=64 names no norm of this file"]
