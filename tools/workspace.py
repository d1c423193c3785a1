"""Changing a checkout: with a lock, all files or none, and never over somebody else's work."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from normport.tools import git, transaction
from normport.tools.errors import UserError
from normport.tools.journal import Place
from normport.tools.locks import lock_path, locked
from normport.tools.transaction import Step, Work
from normport.tools.tree import FileChange


def apply_changes(root: Path, changes: Sequence[FileChange], *, allow_dirty: bool = False) -> None:
    """Write all ``changes`` below ``root``, or none.

    A change that is there already is left as it is. What an interrupted run of ours left is
    completed first.

    allow_dirty: also change files that have uncommitted changes in git.

    Raises:
        UserError: a file holds neither what its change starts from nor what it ends in, has
            uncommitted changes, is a link, or cannot be written; or another run is at work. In
            each case every file is as it was.
    """
    apply_everywhere({root: changes}, allow_dirty=allow_dirty)


def apply_everywhere(
    changes: Mapping[Path, Sequence[FileChange]], *, allow_dirty: bool = False
) -> None:
    """As ``apply_changes``, for the changes below several roots: all of them or none.

    Every root is locked and checked, and every new content is on the disk, before the first file
    changes. When a file of one root cannot be changed, those of the others are put back.

    Raises:
        UserError: as ``apply_changes``; every file of every root is as it was.
    """
    merged: dict[Path, list[FileChange]] = {}
    for folder, wanted in changes.items():
        here = merged.setdefault(_real(folder), [])
        # One tree can be reached by two paths, of which one leads through a link.
        here += [change for change in wanted if change not in here]
    squashed = {root: _squashed(wanted) for root, wanted in merged.items()}
    with ExitStack() as locks:
        _recover_all(squashed, locks)
        _carry_out(squashed, allow_dirty)


def recover(root: Path) -> Literal["completed", "taken back"] | None:
    """Complete, or take back, what an interrupted run of ours left below ``root``.

    What it left below other roots goes the same way. Call it before reading files that are to be
    changed; None when no file may be half changed.

    Raises:
        UserError: somebody else changed a file since, or it cannot be written.
    """
    root = _real(root)
    if not (was_interrupted(root) or os.path.lexists(lock_path(root))):
        return None
    with ExitStack() as locks:
        return _recover_all([root], locks)[root]


def _recover_all(
    roots: Iterable[Path], locks: ExitStack
) -> dict[Path, Literal["completed", "taken back"] | None]:
    """Lock ``roots`` and recover them, with all other roots of the runs that were interrupted."""
    held = sorted(roots)
    for root in held:
        locks.enter_context(locked(root))
    outcomes: dict[Path, Literal["completed", "taken back"] | None] = {}
    for root in tuple(held):
        journal = journal_path(root)
        for other in transaction.companions(Place(root, journal)):
            if other.root not in held:
                locks.enter_context(locked(other.root))
                held.append(other.root)
        outcomes[root] = transaction.recover(root, journal)
    return outcomes


def was_interrupted(root: Path) -> bool:
    """True when a run of ours below ``root`` was interrupted, so that files may be half changed."""
    return os.path.lexists(journal_path(_real(root)))


def _real(path: Path) -> Path:
    # Unlike Path.resolve this takes a loop of links for a path that is not there.
    return Path(os.path.realpath(path))


def takes_no_tests(root: Path) -> bool:
    """True for an installed vLLM: ``tests/`` beside it would be in every project's way."""
    return git.git_folder(root) is None and not (root / "tests").is_dir()


def is_test(path: str) -> bool:
    """Whether a file's path, relative to a tree, lies in the tree's ``tests/``."""
    return path.startswith("tests/")


def carry_out(root: Path, steps: Sequence[Step], *, allow_dirty: bool) -> None:
    """As ``apply_changes``, for whoever holds the lock and has recovered."""
    _carry_out({root: steps}, allow_dirty)


def _carry_out(steps: Mapping[Path, Sequence[Step]], allow_dirty: bool) -> None:
    work = []
    for root, wanted in steps.items():
        waiting = [step for step in wanted if _is_waiting(root, step)]
        if waiting:
            check_committed(root, [step.path for step in waiting], allow_dirty=allow_dirty)
            work.append(Work(root, waiting, journal_path(root)))
    transaction.commit_all(work)


def check_committed(root: Path, paths: Sequence[str], *, allow_dirty: bool) -> None:
    """Raises UserError when one of the files has uncommitted changes, unless that is allowed."""
    if not allow_dirty:
        dirty = git.uncommitted(root, paths)
        if dirty:
            more = f" and {len(dirty) - 1} more" if len(dirty) > 1 else ""
            raise UserError(
                f"{dirty[0]}{more} has uncommitted changes: commit or stash them, or pass "
                "--allow-dirty; no file was changed."
            )


def journal_path(root: Path) -> Path:
    """Where the journal of a run on ``root`` lies: out of sight in git's folder if there is one."""
    folder = git.git_folder(root)
    return folder / "normport-journal" if folder else root / ".normport-journal"


def _squashed(changes: Sequence[FileChange]) -> list[Step]:
    """One step for each file, also when several patches change it one after the other."""
    steps: dict[str, Step] = {}
    for change in changes:
        path = transaction.checked_path(change.path)
        earlier = steps.get(path)
        if earlier is not None and earlier.after != change.before:
            raise ValueError(f"the changes of {path} do not follow from each other")
        before = earlier.before if earlier else change.before
        steps[path] = Step(path, before, change.after)
    return [step for step in steps.values() if step.before != step.after]


def _is_waiting(root: Path, step: Step) -> bool:
    """False when the file already holds what the step ends in."""
    held = _current(root, step.path)
    if held == step.after:
        return False
    if held != step.before:
        raise UserError(
            f"{step.path} is neither as normport read it nor as it would leave it (somebody "
            "changed it or half applied a patch): restore it and run again; no file was changed."
        )
    return True


def _current(root: Path, path: str) -> bytes | None:
    """What the file holds now; None when it is not there.

    Raises:
        UserError: there is an ``obstacle``, or it cannot be read or written.
    """
    found = obstacle(root, path)
    if found is not None:
        raise UserError(f"{found}: no file was changed.")
    target = root / path
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise UserError(
                f"{path} is write-protected: no file was changed; make it writable, or work on a "
                "copy of the tree."
            )
        return target.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): no file was changed."
        ) from error


def obstacle(root: Path, path: str) -> str | None:
    """Why the file can neither be changed nor made, as a sentence without its end; None: it can.

    It is no plain file, or lies behind a link or below a file. Rights are not looked at.
    """
    target = root
    try:
        for part in path.split("/"):
            target = target / part
            if target.is_symlink():
                return (
                    f"{target.relative_to(root)} is a symbolic link, which normport does not "
                    "follow or replace"
                )
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return f"{path} cannot be made because a file stands where its folder should"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror or error})"
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a plain file"
        return f"{path} is {kind} where a file is wanted"
    return None


def read_source(path: Path, shown: str | None = None) -> bytes:
    """The bytes of a Python file, which are known to decode by its own rules (PEP 263).

    shown: how to name the file in messages; the path by default.

    Raises:
        UserError: it is not there, is a folder, cannot be read, or is not in its encoding.
    """
    shown = shown or str(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{shown} is no plain file, so it was not read: name a Python file.")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{shown} does not exist: name a Python file or a folder.") from error
    except IsADirectoryError as error:
        raise UserError(f"{shown} is a folder where a Python file is wanted.") from error
    except OSError as error:
        raise UserError(
            f"{shown} cannot be read ({error.strerror or error}): check its permissions."
        ) from error
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise UserError(f"{shown} cannot be decoded ({error.msg}): save it as UTF-8.") from error
    try:
        content.decode(encoding)
    except LookupError as error:
        raise UserError(f"{shown} cannot be decoded ({error}): save it as UTF-8.") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        named = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise UserError(
            f"{shown} is not {named} (line {line}): save it as UTF-8 or declare its encoding."
        ) from error
    return content
