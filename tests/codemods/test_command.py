"""The codemod as a plain LibCST command."""

from __future__ import annotations

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
