"""The optional patches are each for itself, and go on top of the series together in any order."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from normport.tools.diffs import git_diff
from normport.tools.optional_dispatch import optional_dispatch
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.release
PATCHES = Path(__file__).parent.parent / "patches"
RELEASES = sorted(path.name for path in PATCHES.iterdir())


def git(folder: Path, *arguments: str | Path) -> str:
    """What git says; no order of the patches may need its merging, so ``apply`` takes them."""
    return subprocess.run(
        ["git", "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def touched(patch: bytes) -> set[str]:
    return set(re.findall(r"^--- a/(.+)$", patch.decode(), re.M))


@pytest.mark.parametrize("version", RELEASES)
def test_in_every_order_they_give_the_same_tree(
    release: Callable[[str], SourceTree], tmp_path: Path, version: str
) -> None:
    source = release(version)
    series = sorted((PATCHES / version).glob("*.patch"))
    optional = sorted((PATCHES / version / "optional").glob("*.patch"))
    assert {"norm-add-norm.patch", "muse-glimmer-rounded-weight.patch"} <= {
        path.name for path in optional
    }
    guarded = tmp_path / "xpu-guarded-norms.patch"
    guarded.write_bytes(git_diff(optional_dispatch(source).changes))
    optional.append(guarded)
    tree = tmp_path / "tree"
    for name in set().union(*(touched(patch.read_bytes()) for patch in (*series, *optional))):
        if (source.root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((source.root / name).read_bytes())
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "apply", "--index", *series)
    ported = git(tree, "write-tree")
    results = set()
    for order in itertools.permutations(optional):
        git(tree, "read-tree", "--reset", "-u", ported)
        git(tree, "apply", "--index", *order)
        results.add(git(tree, "write-tree"))
    assert len(results) == 1
    assert results != {ported}
