"""``port``, ``backport`` and ``series`` on the released 0.29.0 sources."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_sources import UNPROVEN, Command, commit_all, git

from normport.tools.backport import LAYERNORM, XPU_OPS
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.release

MUSE = "vllm/model_executor/models/muse_glimmer.py"
NORMS = ("vllm/__init__.py", LAYERNORM, XPU_OPS, MUSE)


@pytest.fixture
def checkout(folder: Path, release: Callable[[str], SourceTree]) -> Path:
    """A git checkout with what the main job reads of vLLM 0.29.0."""
    root = release("0.29.0").root
    top = folder / "checkout"
    for path in NORMS:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, top / path)
    shutil.copytree(root / "vllm" / "ir", top / "vllm" / "ir")
    commit_all(top)
    return top


def test_port_of_a_release(
    folder: Path, normport: Command, checkout: Path, release: Callable[[str], SourceTree]
) -> None:
    release("0.29.0")
    result = normport("port", "vllm==0.29.0", "--out", "out", "--only", "muse_glimmer")
    assert result.status == 0
    assert "vllm==0.29.0 is vLLM 0.29.0." in result.err
    assert "norms in model files: 8 converted in 1 file," in result.out
    assert result.out.splitlines()[-2:] == [
        'apply: git -C CHECKOUT am --keep-non-patch "$PWD"/out/*.patch',
        "proof: out/manifest.json, and the Proof trailers of the converted models' patches",
    ]
    patches = sorted((folder / "out").glob("*.patch"))
    assert [path.name for path in patches] == [
        "0001-xpu-gemma-rms-norm-dispatch.patch",
        "0002-muse-glimmer-standard-norms.patch",
    ]
    for dtype in ("float32", "float16", "bfloat16"):
        assert f"\nProof-{dtype}: max 0 ulp over " in patches[1].read_text()

    waiting = normport("series", "status", "checkout", "--series", "out")
    assert waiting.status == 1
    assert [line.split(":")[0] for line in waiting.out.splitlines()] == ["clean"] * 3
    git(checkout, "am", *map(str, patches))
    there = normport("series", "status", "checkout", "--series", "out")
    assert there.status == 0
    assert [line.split(":")[0] for line in there.out.splitlines()[:2]] == ["obsolete"] * 2

    diff = normport("rewrite", "--diff", checkout / MUSE)
    assert (diff.status, diff.out) == (0, "")


def test_series_apply(folder: Path, normport: Command, checkout: Path) -> None:
    other = checkout / "vllm" / "ir" / "__init__.py"
    other.write_text(other.read_text() + "# uncommitted, but no patch changes it\n")
    assert normport("port", "checkout", "--out", "out", *UNPROVEN, "--only", MUSE).status == 0
    applied = normport("series", "apply", "checkout", "--series", "out")
    assert applied.status == 0
    assert "GemmaRMSNorm(config.hidden_size" in (checkout / MUSE).read_text()
    assert "def forward_xpu" in (checkout / LAYERNORM).read_text()
    assert normport("series", "status", "checkout", "--series", "out").status == 0


def test_port_starts_from_what_is_committed(
    folder: Path, normport: Command, checkout: Path
) -> None:
    for path in (MUSE, LAYERNORM):
        (checkout / path).write_bytes((checkout / path).read_bytes() + b"# mine\n")
    port = ("port", "checkout", "--out", "out", *UNPROVEN, "--only", MUSE)
    refused = normport(*port)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.splitlines()[-1] == (
        f"error: {LAYERNORM} and 1 more has uncommitted changes, from which `git am` cannot start: "
        "commit or stash them, or pass --allow-dirty; no series was written."
    )
    assert not (folder / "out").exists()
    assert normport(*port, "--allow-dirty").status == 0
    assert (folder / "out" / "manifest.json").exists()


def test_backport(folder: Path, normport: Command, checkout: Path) -> None:
    report = normport("backport", "checkout")
    assert report.status == 1
    assert report.out.startswith("needed: ")
    diff = normport("backport", "checkout", "--diff")
    assert diff.status == 1
    git(checkout, "apply", "--check", "-", stdin=diff.out)
    assert normport("backport", "checkout", "--write").status == 0
    again = normport("backport", "checkout", "--write")
    assert (again.status, again.out) == (0, "")
    assert "obsolete: " in again.err


def test_release_is_not_changed(
    folder: Path, normport: Command, release: Callable[[str], SourceTree]
) -> None:
    release("0.29.0")
    result = normport("backport", "vllm==0.29.0", "--write")
    assert result.status == 2
    assert "is not changed" in result.err


def test_half_patched_checkout(folder: Path, normport: Command, checkout: Path) -> None:
    assert normport("backport", "checkout", "--write").status == 0
    git(checkout, "checkout", "--quiet", "--", XPU_OPS)
    for command in (["backport", "checkout", "--write"], ["port", "checkout", "--out", "out"]):
        result = normport(*command)
        assert result.status == 2
        (error,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
        assert error.endswith("put both files back as the release has them, or complete the patch.")
    assert not (folder / "out").exists()


def test_only_must_name_a_model(folder: Path, normport: Command, checkout: Path) -> None:
    result = normport("port", "checkout", "--out", "out", "--only", "nonsense")
    assert result.status == 2
    assert "has no model file of that name" in result.err
    assert not (folder / "out").exists()


def test_model_that_does_not_parse_leaves_the_series_alone(
    folder: Path, normport: Command, checkout: Path
) -> None:
    assert normport("port", "checkout", "--out", "out", *UNPROVEN).status == 0
    before = {path: path.read_bytes() for path in (folder / "out").rglob("*.patch")}
    model = checkout / MUSE
    model.write_text(model.read_text().replace("def forward(", "def forward((", 1))
    result = normport("port", "checkout", "--out", "out", *UNPROVEN)
    assert result.status == 2
    assert "does not parse as Python" in result.err
    assert {path: path.read_bytes() for path in (folder / "out").rglob("*.patch")} == before


def test_a_release_as_a_path(
    folder: Path, normport: Command, release: Callable[[str], SourceTree]
) -> None:
    root = release("0.29.0").root
    before = (root / MUSE).read_bytes()
    alone = ("--exclude", "*.py", "--exclude", "!muse_glimmer.py")
    diff = normport("rewrite", "--diff", *UNPROVEN, *alone, "vllm==0.29.0")
    assert (diff.status, diff.out.count("\n--- a/vllm/")) == (1, 1)
    assert f"\n--- a/{MUSE}\n" in diff.out
    for path in ("vllm==0.29.0", root / MUSE, root):
        result = normport("rewrite", "--write", *UNPROVEN, path)
        assert result.status == 2
        assert "lies in the cache of releases and is not changed" in result.err
    assert (root / MUSE).read_bytes() == before
