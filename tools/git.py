"""Running git and reading what it keeps, with one clear sentence when it cannot be run."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from normport.tools.errors import UserError

# A hook or a rebase runs its children with these set; they would point git at another repository
# than the folder it is started in.
_STEERING = frozenset(
    {
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)


def run_git(
    folder: Path, *arguments: str, stdin: bytes = b"", isolated: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run git in ``folder`` and return what it did, whatever its exit status.

    isolated: no configuration of the user or the system takes part.

    Raises:
        UserError: git is not installed or cannot be started.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _STEERING}
    environment["LC_ALL"] = "C"
    if isolated:
        environment = {k: v for k, v in environment.items() if not k.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    # The program that core.fsmonitor names would be run; git looks at the files itself instead.
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false"]
    command = ["git", *options, "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise UserError("git is needed for this and was not found: install it.") from error
    except OSError as error:
        raise UserError(f"git cannot be started: {error.strerror or error}.") from error


def complaint(result: subprocess.CompletedProcess[bytes]) -> str:
    """The first line that git printed to stderr, without its ``fatal:`` or ``error:``."""
    lines = result.stderr.decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip()), f"exit status {result.returncode}")
    return first.removeprefix("fatal: ").removeprefix("error: ").rstrip(".")


def git_folder(root: Path) -> Path | None:
    """Where git keeps the repository whose work tree has its top at ``root``; None: nowhere.

    A linked work tree or a submodule has a ``.git`` file that names the folder.
    """
    entry = root / ".git"
    if entry.is_dir():
        return entry
    try:
        text = entry.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    if not text.startswith("gitdir: "):
        return None
    folder = root / text.removeprefix("gitdir: ").rstrip("\n")
    return folder if folder.is_dir() else None


def work_tree_top(folder: Path) -> Path | None:
    """The nearest folder at or above ``folder`` that git calls a work tree's top; None: none."""
    return next((top for top in (folder, *folder.parents) if git_folder(top)), None)


def uncommitted(root: Path, paths: Sequence[str]) -> list[str]:
    """Those of ``paths`` (relative to ``root``) whose content git could not give back.

    Files that git ignores, and all files outside any work tree, are not among them.

    Raises:
        UserError: there is a work tree, but git cannot read it.
    """
    if work_tree_top(root) is None or not paths:
        return []
    dirty = []
    for path in paths:
        # One call for each path: git prints paths relative to the top, which need not be root.
        result = run_git(
            root, "--literal-pathspecs", "status", "--porcelain", "--no-renames", "--", path
        )
        if result.returncode != 0:
            raise UserError(
                f"git cannot tell whether {path} has uncommitted changes ({complaint(result)}): "
                "mend the checkout or pass --allow-dirty."
            )
        if result.stdout.strip():
            dirty.append(path)
    return dirty


def described_version(root: Path) -> str | None:
    """What ``git describe`` makes of the release tags at ``root``: ``0.29.0``, or with the number
    of commits since the tag ``0.29.0-12-gabcdef0``; None without git, a repository or such a tag.
    """
    try:
        result = run_git(root, "describe", "--tags", "--match", "v[0-9]*")
    except UserError:
        return None
    text = result.stdout.decode("utf-8", "replace").strip()
    return text.removeprefix("v") if result.returncode == 0 and text else None


def head_commit(root: Path) -> str | None:
    """The full hash of HEAD at ``root``; None when there is none."""
    result = run_git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    text = result.stdout.decode("ascii", "replace").strip()
    return text if result.returncode == 0 and text else None


def committed_blob(root: Path, path: str) -> str | None:
    """The blob hash of ``path`` in HEAD; None when HEAD does not hold it."""
    result = run_git(root, "rev-parse", "--verify", "--quiet", f"HEAD:./{path}")
    text = result.stdout.decode("ascii", "replace").strip()
    return text if result.returncode == 0 and text else None


def blob_hash(content: bytes) -> str:
    """git's name for a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
