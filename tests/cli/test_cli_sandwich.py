"""``normport sandwich``: norm-add-norm in a checkout itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_sources import UNPROVEN, Command, commit_all, git

from normport.codemods.rules.np500_sandwich import RULES
from normport.tools.norm_add_norm import LAYER, layer_source
from normport.tools.tree import SourceTree

MODELS = "vllm/model_executor/models"
BEFORE, AFTER = RULES[0].examples[0].before, RULES[0].examples[0].after
LEFT = BEFORE.replace("x = residual + x", "x = residual.add_(x)")


@pytest.fixture
def checkout(folder: Path) -> Path:
    top = folder / "checkout"
    for path, text in {
        "vllm/__init__.py": "",
        "vllm/model_executor/layers/layernorm.py": "class GemmaRMSNorm: ...\n",
        f"{MODELS}/made.py": BEFORE,
        f"{MODELS}/left.py": LEFT,
    }.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)
    commit_all(top)
    return top


def test_every_sum_is_reported(normport: Command, checkout: Path) -> None:
    result = normport("sandwich", "checkout", *UNPROVEN)
    assert result.status == 1
    left, made = result.out.splitlines()
    assert left.startswith(f"{MODELS}/left.py:15:13: NP505 Layer.forward: residual.add_ writes")
    assert made == (
        f"{MODELS}/made.py:15:13: NP501 Layer.forward: x, residual = self.norm_add_norm(x, "
        "residual, self.post_norm, self.pre_norm)"
    )
    assert "1 can be made one layer call with the next norm, 1 left" in result.err
    assert git(checkout, "status", "--porcelain") == ""


def test_the_diff_applies_and_write_makes_it(normport: Command, checkout: Path) -> None:
    diff = normport("sandwich", "checkout", *UNPROVEN, "--diff")
    assert diff.status == 1
    git(checkout, "apply", "--check", stdin=diff.out)
    written = normport("sandwich", "checkout", *UNPROVEN, "--write")
    assert written.status == 0
    assert (checkout / MODELS / "made.py").read_text() == AFTER
    assert (checkout / MODELS / "left.py").read_text() == LEFT
    assert (checkout / LAYER).read_bytes() == layer_source()
    again = normport("sandwich", "checkout", *UNPROVEN, "--write")
    assert again.status == 0
    assert "0 made one layer call" in again.err


def test_without_a_proof_nothing_is_made(normport: Command, checkout: Path) -> None:
    result = normport("sandwich", "checkout", "--no-proof", "--write")
    assert result.status == 0
    assert "Nothing was run (--no-proof)" in result.out
    assert git(checkout, "status", "--porcelain") == ""


def test_only_and_uncommitted_changes(normport: Command, checkout: Path) -> None:
    assert normport("sandwich", "checkout", *UNPROVEN, "--only", "left").status == 0
    assert "no model file of that name" in normport("sandwich", "checkout", "--only", "no").err
    assert "exclude each other" in normport("sandwich", "checkout", "--diff", "--write").error
    made = checkout / MODELS / "made.py"
    made.write_text(f"{BEFORE}# mine\n")
    dirty = normport("sandwich", "checkout", *UNPROVEN, "--write")
    assert dirty.status == 2
    assert "uncommitted changes" in dirty.err
    assert made.read_text() == f"{BEFORE}# mine\n"
    assert not (checkout / LAYER).exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"def f(:\n", "broken.py does not parse as Python in line 1"),
        (f"{BEFORE}def f(:\n".encode(), "broken.py does not parse as Python in line"),
        (f"{BEFORE}# \xff\n".encode("latin-1"), "broken.py is not UTF-8 (byte 0xff"),
    ],
)
def test_a_broken_file_is_named_and_nothing_written(
    normport: Command, checkout: Path, data: bytes, said: str
) -> None:
    (checkout / MODELS / "broken.py").write_bytes(data)
    commit_all(checkout)
    result = normport("sandwich", "checkout", *UNPROVEN, "--only", "broken")
    assert result.status == 2
    assert said in result.err
    whole = normport("sandwich", "checkout", *UNPROVEN, "--write")
    # Without a word of a norm a file is none of our business, as for scan.
    assert whole.status == (0 if data.startswith(b"def f") else 2)
    assert (git(checkout, "status", "--porcelain") == "") is (whole.status == 2)


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_real_model_is_proved_and_then_written(
    normport: Command, folder: Path, release: Callable[[str], SourceTree]
) -> None:
    source, model = release("0.29.0").root, f"{MODELS}/gemma4_mtp.py"
    shutil.copytree(source / "vllm", folder / "copy" / "vllm", ignore=only_python)
    before = (source / model).read_bytes()
    told = normport("sandwich", "copy", "--only", "gemma4_mtp")
    assert told.status == 1
    assert "1 can be made" in told.err
    # Without a proof the same place is left, with the option that is the cause as its reason.
    for option in ("--no-proof", "--no-exec"):
        left = normport("sandwich", "copy", "--only", "gemma4_mtp", option, "--write")
        assert left.status == 0
        assert f"({option})" in left.out
        assert (folder / "copy" / model).read_bytes() == before
    written = normport("sandwich", "copy", "--only", "gemma4_mtp", "--write")
    assert written.status == 0, written.err
    assert b"self.norm_add_norm(" in (folder / "copy" / model).read_bytes()
    assert (folder / "copy" / LAYER).read_bytes() == layer_source()


def only_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if "." in name and not name.endswith((".py", ".pyi"))]
