"""The command line, a folder with records, and a server that knows the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from evidence_sources import RECORDS, Command, Result
from fake_server import FakeServer, serving

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
    """The current folder, with the records in ``data.jsonl``."""
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"question": q, "answer": a}) for q, a in RECORDS)
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def right_answer(prompt: str) -> str:
    """What the record says for the last question of ``prompt``."""
    question = prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:")
    return " " + dict(RECORDS)[question]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(right_answer) as started:
        yield started
