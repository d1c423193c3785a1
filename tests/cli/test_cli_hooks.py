"""The hooks that this repository offers to pre-commit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_sources import MODEL, PLAIN, Command, commit_all, git
from pre_commit.clientlib import load_manifest

from normport.tools import judge
from normport.tools.proof import Equivalence

MANIFEST = Path(__file__).resolve().parents[2] / ".pre-commit-hooks.yaml"
HOOKS: dict[str, Any] = {hook["id"]: hook for hook in load_manifest(str(MANIFEST))}


def entry(name: str) -> list[str]:
    program, *arguments = shlex.split(HOOKS[name]["entry"])
    assert program == "normport"
    return arguments


def test_manifest() -> None:
    assert set(HOOKS) == {"normport-scan", "normport-rewrite"}
    for hook in HOOKS.values():
        assert (hook["language"], hook["types"]) == ("python", ["python"])
        # Two runs on one checkout would keep each other out.
        assert hook["require_serial"] is True
        assert hook["pass_filenames"] is True
    assert [need[:5] for need in HOOKS["normport-rewrite"]["additional_dependencies"]] == [
        "torch",
        "numpy",
    ]


@pytest.mark.parametrize("source", [MODEL, PLAIN])
def test_scan(folder: Path, normport: Command, source: str) -> None:
    (folder / "a.py").write_text(source)
    (folder / "skipped.py").write_text(MODEL)
    (folder / "pyproject.toml").write_text("[tool.normport]\nexclude = ['skipped.py']\n")
    result = normport(*entry("normport-scan"), "a.py", "skipped.py")
    assert result.status == (1 if source == MODEL else 0)
    assert "skipped.py" not in result.out


def test_rewrite_of_what_is_staged(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pre-commit runs a hook on files that differ from the last commit, and fails if it changes
    one."""
    equal = Equivalence("equal", {}, "the layers")
    monkeypatch.setattr(judge, "prove", lambda cases, _: [equal] * len(cases))
    (folder / "a.py").write_text(PLAIN)
    commit_all(folder)
    (folder / "a.py").write_text(MODEL)
    git(folder, "add", "a.py")
    assert normport(*entry("normport-rewrite"), "a.py").status == 0
    assert "GemmaRMSNorm(" in (folder / "a.py").read_text()
    written = (folder / "a.py").read_bytes()
    assert normport(*entry("normport-rewrite"), "a.py").status == 0
    assert (folder / "a.py").read_bytes() == written
