"""``series``, and ``backport`` of an installed vLLM: what is said, and what is left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_sources import Command, commit_all

from normport.tools import sources
from normport.tools.backport import LAYERNORM, TESTS, XPU_OPS
from normport.tools.series import write_series
from normport.tools.tree import FileChange, Patch, SourceTree

MODEL, OPS, TEST = "vllm/model.py", "vllm/ops.py", "tests/test_ops.py"
BEFORE = {"vllm/__init__.py": b"", MODEL: b"x = Local()\n", OPS: b"ops = 1\n"}
PORTED, ROUNDED, NEW_OPS = b"x = RMSNorm()\n", b"x = RMSNorm(1)\n", b"ops = 2\n"


def patch(name: str, *changes: FileChange) -> Patch:
    return Patch(name, name, "Why.", (), changes, "Then.")


@pytest.fixture
def series(folder: Path) -> Path:
    tree = SourceTree(folder, "0.29.0", "x", git=False, writable=False)
    numbered = [
        patch("ops", FileChange(OPS, BEFORE[OPS], NEW_OPS), FileChange(TEST, None, b"t = 1\n")),
        patch("model", FileChange(MODEL, BEFORE[MODEL], PORTED)),
    ]
    optional = [patch("rounded", FileChange(MODEL, PORTED, ROUNDED))]
    write_series(folder / "series", tree, numbered, optional)
    return folder / "series"


@pytest.fixture
def checkout(folder: Path) -> Path:
    top = folder / "checkout"
    for path, content in BEFORE.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(content)
    commit_all(top)
    return top


def states(out: str) -> list[str]:
    return [line.split(":")[0] for line in out.splitlines()]


def test_apply_says_what_it_applied(normport: Command, series: Path, checkout: Path) -> None:
    result = normport("series", "apply", "checkout", "--series", "series")
    assert result.status == 0
    assert result.out == (
        "applied: 0001-ops.patch, 0002-model.patch; optional patches are left: "
        "optional/rounded.patch\n"
    )
    again = normport("series", "apply", "checkout", "--series", "series")
    assert again.status == 0
    assert states(again.out) == ["applied", "left out", "left out"]
    assert again.out.startswith("applied: nothing; ")


def test_with_the_optional_patch_applied(normport: Command, series: Path, checkout: Path) -> None:
    assert normport("series", "apply", "checkout", "--series", "series").status == 0
    (checkout / MODEL).write_bytes(ROUNDED)
    there = normport("series", "status", "checkout", "--series", "series")
    assert (there.status, states(there.out)) == (0, ["obsolete"] * 3)
    again = normport("series", "apply", "checkout", "--series", "series")
    assert again.status == 0
    assert again.out.splitlines()[0] == "applied: nothing"
    assert (checkout / MODEL).read_bytes() == ROUNDED


def test_status_leaves_an_interrupted_run_as_it_is(
    normport: Command, series: Path, checkout: Path
) -> None:
    journal = checkout / ".git" / "normport-journal"
    journal.write_text('{"schema": 1, "entries": [], "folders": []}')
    result = normport("series", "status", "checkout", "--series", "series")
    assert journal.exists()
    assert f"an interrupted run left {checkout} half changed" in result.err
    assert "`normport series apply` completes it" in result.err
    assert normport("series", "apply", "checkout", "--series", "series").status == 0
    assert not journal.exists()


def test_installed_vllm(
    normport: Command, series: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(checkout / ".git")
    monkeypatch.setattr(sources, "_find_here", lambda: str(checkout / "vllm" / "__init__.py"))
    arguments = ("--installed", "--series", "series")
    assert states(normport("series", "status", *arguments).out) == ["clean"] * 3
    assert normport("series", "apply", *arguments).status == 0
    assert (checkout / OPS).read_bytes() == NEW_OPS
    assert not (checkout / "tests").exists()
    assert normport("series", "status", *arguments).status == 0


def test_no_vllm_named(normport: Command, series: Path) -> None:
    assert "No vLLM was named" in normport("series", "status", "--series", "series").error


@pytest.mark.release
def test_backport_brings_no_tests_into_site_packages(
    folder: Path, normport: Command, release: Callable[[str], SourceTree]
) -> None:
    root, top = release("0.29.0").root, folder / "site-packages"
    for path in ("vllm/__init__.py", LAYERNORM, XPU_OPS):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, top / path)
    shutil.copytree(root / "vllm" / "ir", top / "vllm" / "ir")
    assert TESTS not in normport("backport", top, "--diff").out
    result = normport("backport", top, "--write")
    assert result.status == 0
    assert f"Changed {LAYERNORM}, {XPU_OPS}." in result.err
    assert not (top / "tests").exists()
    assert "obsolete: " in normport("backport", top, "--write").err


@pytest.mark.release
@pytest.mark.parametrize("option", ["--no-proof", "--no-exec"])
def test_only_takes_a_path_and_no_proof_is_told(
    folder: Path, normport: Command, release: Callable[[str], SourceTree], option: str
) -> None:
    root, model = release("0.29.0").root, "vllm/model_executor/models/muse_glimmer.py"
    top = folder / "checkout"
    for path in ("vllm/__init__.py", LAYERNORM, XPU_OPS, model):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, top / path)
    shutil.copytree(root / "vllm" / "ir", top / "vllm" / "ir")
    only = ("--only", f"checkout/{model}")
    result = normport("port", "checkout", "--out", "my out", option, *only)
    assert result.status == 1
    assert result.out.splitlines()[-2:] == [
        "apply: git -C CHECKOUT am --keep-non-patch \"$PWD\"/'my out'/*.patch",
        f"proof: none was run ({option})",
    ]


def test_a_series_of_another_release_is_told(
    normport: Command, series: Path, checkout: Path
) -> None:
    (checkout / "vllm" / "_version.py").write_text("version = '0.30.0'\n")
    for command in ("status", "apply"):
        result = normport("series", command, "checkout", "--series", "series")
        assert (
            "note: the series in series was made from vLLM 0.29.0, and checkout is vLLM 0.30.0: "
            "whether a patch applies is all that is looked at.\n"
        ) in result.err
    (checkout / "vllm" / "_version.py").write_text("version = '0.29.0'\n")
    assert "was made from" not in normport("series", "status", "checkout", "--series", "series").err


def test_tests_that_are_left_out_are_told(normport: Command, series: Path, folder: Path) -> None:
    for path, content in BEFORE.items():
        (folder / "plain" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "plain" / path).write_bytes(content)
    for command in ("status", "apply"):
        result = normport("series", command, "plain", "--series", "series")
        told = "note: plain has no tests/, so what the patches add there is left out.\n"
        assert told in result.err
    assert (folder / "plain" / OPS).read_bytes() == NEW_OPS
    assert not (folder / "plain" / TEST).exists()
