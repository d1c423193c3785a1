"""The optional patch with the guarded XPU norms: what is in it, and trees it does not fit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from normport.tools.errors import UserError
from normport.tools.optional_dispatch import (
    KERNELS,
    LICENCE,
    MANAGER,
    NEW_FILES,
    PLATFORM,
    optional_dispatch,
)
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.release
Release = Callable[[str], SourceTree]
IN_TREE = Path(__file__).parent.parent / "layers" / "in_tree"


@pytest.mark.parametrize("version", ["0.29.0", "0.30.0", "0.32.0"])
def test_the_text_is_the_one_that_the_tests_run(release: Release, version: str) -> None:
    patch = optional_dispatch(release(version))
    changes = {change.path: change for change in patch.changes}
    assert set(changes) == {KERNELS, PLATFORM, MANAGER, *NEW_FILES}
    for path, module in NEW_FILES.items():
        assert changes[path].before is None
        assert changes[path].after == LICENCE + (IN_TREE / module).read_bytes()
    for change in patch.changes:
        ast.parse(change.after)
        if change.before is not None:
            before = change.before.splitlines()
            kept = [line for line in change.after.splitlines() if line in before]
            assert len(kept) >= len(before) - 2
    assert b", xpu_norm_providers\n" in changes[KERNELS].after
    assert b'"xpu_norm_providers"]' in changes[KERNELS].after


def copy(release: Release, folder: Path) -> SourceTree:
    tree = release("0.29.0")
    for path in (KERNELS, PLATFORM, MANAGER):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((tree.root / path).read_bytes())
    return replace(tree, root=folder, origin="a checkout")


def test_vllms_formatter_has_nothing_to_change(release: Release, tmp_path: Path) -> None:
    for change in optional_dispatch(release("0.29.0")).changes:
        (tmp_path / Path(change.path).name).write_bytes(change.after)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                "format",
                "--check",
                "--isolated",
                Path(change.path).name,
            ],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (KERNELS, "__all__ =", "__all__: list =", "not built as"),
        (PLATFORM, "class XPUPlatform", "class OtherPlatform", "not built as"),
        (MANAGER, "self.ir_lowering =", "self.lowering =", "not built as"),
    ],
)
def test_a_tree_of_another_build_is_refused(
    release: Release, tmp_path: Path, path: str, old: str, new: str, said: str
) -> None:
    tree = copy(release, tmp_path)
    text = (tmp_path / path).read_text()
    assert old in text
    (tmp_path / path).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=said) as error:
        optional_dispatch(tree)
    assert path in str(error.value)


def test_a_tree_that_has_it_is_refused(release: Release, tmp_path: Path) -> None:
    tree = copy(release, tmp_path)
    for path in NEW_FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    with pytest.raises(UserError, match="is applied"):
        optional_dispatch(tree)
