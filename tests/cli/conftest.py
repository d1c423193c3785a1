"""Runs the command line inside the test's process, in an empty current folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_sources import Command, Result

from normport.tools.cli import run


@pytest.fixture
def normport(capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs the command line in this process."""

    def command(*arguments: str | Path) -> Result:
        capsysbinary.readouterr()
        status = run([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Result(status, out.decode(), err.decode())

    return command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work
