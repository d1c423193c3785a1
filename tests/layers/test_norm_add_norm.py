"""``NormAddNorm``, as the optional patch adds it, on the norm layers of two releases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from normport.tools.backport import LAYERNORM, backport
from normport.tools.cpu_methods import add_cpu_methods
from normport.tools.tree import SourceTree

CHECK = Path(__file__).parent / "norm_add_norm_check.py"


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_every_path_is_two_norms_and_a_sum(
    release: Callable[[str], SourceTree], version: str, tmp_path: Path
) -> None:
    patched(release(version), tmp_path)
    done = subprocess.run(
        [sys.executable, CHECK, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["paths"].pop("elements") > 500_000
    assert found["paths"] == {"native": 0, "cpu": 0, "definition": 0}
    assert found["methods"].pop("elements") > 300_000
    assert found["methods"] == {"gemma": 0, "scale": 0, "float32 scale": 0, "none": 0}
    # What is more than a plain norm, or would be another implementation, is called as it is.
    assert found["called"] == {"plain": False, "hook": True, "subclass": True, "priority": True}
    assert found["kept"] == {
        f"{norm}, {case}": case != "plain"
        for norm in ("gemma", "scale")
        for case in ("plain", "subclass", "priority")
    }
    assert found["traced"]
    assert found["state"] == []


def patched(tree: SourceTree, root: Path) -> None:
    """The tree's IR, and its layernorm.py as the patch makes it on top of the series."""
    series = backport(tree).patch
    changed = {change.path: change.after for change in (series.changes if series else ())}
    change = add_cpu_methods(tree, changed)
    assert change is not None
    (root / LAYERNORM).parent.mkdir(parents=True)
    (root / LAYERNORM).write_bytes(change.after)
    (root / "vllm" / "ir").symlink_to(tree.root / "vllm" / "ir")


@pytest.mark.release
def test_a_layernorm_that_computes_something_else_is_left(
    release: Callable[[str], SourceTree],
) -> None:
    tree = release("0.29.0")
    text = (tree.root / LAYERNORM).read_bytes()
    for old, new in (
        (b"self.weight.float() + 1.0", b"self.weight.float() + 2.0"),
        (b"self.weight.data if self.pass_weight else None", b"self.weight.data"),
        (b"class GemmaRMSNorm(", b"class OtherRMSNorm("),
        (b"def forward_native(", b"def forward_cpu(self, x): ...\n\n    def forward_native("),
        (b"from vllm import envs, ir", b"from vllm import envs"),
        (b"class RMSNorm(", b"_ONE = 1\n\n\nclass RMSNorm("),
    ):
        assert old in text
        assert add_cpu_methods(tree, {LAYERNORM: text.replace(old, new)}) is None
