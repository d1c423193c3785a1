"""A command line to write pages with, and pages that are written once."""

from __future__ import annotations

from pathlib import Path

import pytest
from review_series import COMMITTED, Run, hostile_series

from normport.tools.cli import run


@pytest.fixture
def normport(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line here: exit status, stdout and stderr."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No release is at hand."""
    monkeypatch.setenv("NORMPORT_CACHE", str(tmp_path / "no-cache"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of the committed series of 0.29.0, and of one that is all hostile text."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NORMPORT_CACHE", str(folder / "no-cache"))
        for name, series in (("committed", COMMITTED), ("hostile", hostile_series(folder))):
            assert run(["review", str(series), "--html", str(folder / f"{name}.html")]) == 0
    return {name: folder / f"{name}.html" for name in ("committed", "hostile")}
