"""What happens where ruff, which lays out edited statements, does not do so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_sources import MODEL, SCALE, Command

from normport.codemods import layout

WRITE = ("rewrite", "--no-proof", "--allow-unproven", "--write")


@pytest.fixture
def ruff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The program that is taken for ruff."""
    program = tmp_path / "ruff"
    monkeypatch.setattr(layout, "find_ruff_bin", lambda: str(program))
    layout._check_formats.cache_clear()
    yield program
    layout._check_formats.cache_clear()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo broken >&2; exit 1",
            "does not format `x = 1`: it ended with 1 and said `broken`; run it by hand, or ",
        ),
        ("cat >/dev/null", "does not format `x = 1`: it ended with 0; "),
        ("printf '\\377'", "does not format `x = 1`: it ended with 0 and said "),
        ("exec sleep 600", "did not end within 1 s; run it by hand, or "),
        (None, "cannot be run (No such file or directory); "),
    ],
)
@pytest.mark.parametrize("arguments", [("scan", "--no-proof"), WRITE])
def test_a_ruff_that_does_not_format(
    folder: Path,
    normport: Command,
    ruff: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    script: str | None,
    said: str,
) -> None:
    """One sentence, at once: no refusal of each norm, and no layout that is not ruff's."""
    monkeypatch.setattr(layout, "TIMEOUT_S", 1)
    if script is not None:
        ruff.write_text(f"#!/bin/sh\n{script}\n")
        ruff.chmod(0o755)
    (folder / "model.py").write_text(MODEL)
    (folder / "scale.py").write_text(SCALE)
    result = normport(*arguments, ".")
    assert (result.status, result.out) == (2, "")
    assert result.error.startswith(f"{ruff}, which lays out edited statements, ")
    assert said in result.error
    assert (folder / "model.py").read_text() == MODEL
    assert (folder / "scale.py").read_text() == SCALE


def test_no_ruff(folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(layout, "find_ruff_bin", nowhere)
    (folder / "model.py").write_text(MODEL)
    result = normport(*WRITE, ".")
    assert result.status == 2
    assert result.error.endswith("is not installed beside normport; run `pip install ruff`.")
