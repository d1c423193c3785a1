"""``--no-exec``: what is read is not executed."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from cli_sources import MODEL, Command

from normport.tools import judge, proof

# Whoever imports or executes it is told.
ALARM = "raise RuntimeError('this file was executed')\n"


@pytest.fixture
def alarmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM tree whose files must not be executed, and no way to start a proof."""

    def started(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError(f"a proof was started: {arguments}")

    layers = folder / "vllm" / "model_executor" / "layers"
    layers.mkdir(parents=True)
    for package in (folder / "vllm", layers.parent, layers):
        (package / "__init__.py").write_text(ALARM)
    (layers / "layernorm.py").write_text(ALARM)
    (folder / "vllm" / "model.py").write_text(MODEL + ALARM)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(proof, "_run", started)
    return folder / "vllm" / "model.py"


@pytest.mark.parametrize("more", [(), ("--no-proof",)])
@pytest.mark.parametrize("command", ["scan", "rewrite"])
def test_everything_is_unproven(
    normport: Command, alarmed: Path, command: str, more: tuple[str, ...]
) -> None:
    result = normport(command, "--no-exec", *more, "--output-format=json", "vllm")
    assert result.status == 1
    findings = result.json["findings"]
    assert [finding["safety"] for finding in findings] == ["unproven", "unproven"]
    assert all(finding["equivalence"] is None for finding in findings)
    assert {finding["reason"] for finding in findings} == {judge.NO_EXEC}


def test_nothing_is_written_without_leave(normport: Command, alarmed: Path) -> None:
    assert normport("rewrite", "--no-exec", "--write", "vllm").status == 1
    assert alarmed.read_text() == MODEL + ALARM
    assert normport("rewrite", "--no-exec", "--allow-unproven", "--write", "vllm").status == 0
    assert "GemmaRMSNorm(config" in alarmed.read_text()
