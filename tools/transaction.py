"""Several files changed as one: all of them or none, also when the process is killed.

A journal is written first. It names every file with the sha256 of what it holds before and after.
Then each new content is written beside its file (``.NAME.normport-new``) and each old one kept by
a link (``.NAME.normport-old``), then the renames happen, then the journal goes. Whoever finds a
journal can tell from the hashes how far its run came, and finish the work or take it back.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from normport.tools.errors import UserError

_NOTHING_CHANGED = "no file was changed"
_UNTIDY = "mend that and run normport again, which completes the change"


@dataclass(frozen=True)
class Step:
    """One file: ``before`` None creates it, ``after`` None removes it."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Entry:
    """A step in the journal: sha256 in place of content."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Journal:
    """What a run set out to do below ``root``, and the folders it makes for it, outermost first."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]


def digest(content: bytes | None) -> str | None:
    """The sha256 in hexadecimal; None for a file that is not there."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def checked_path(path: str) -> str:
    """``path`` if it is relative, stays below its root and out of git's own folder.

    Raises:
        UserError: it does not.
    """
    parts = PurePosixPath(path).parts
    clean = "/".join(parts) == path and "\0" not in path and "\\" not in path
    if not parts or not clean or path.startswith("/") or ".." in parts or parts[0] == ".git":
        raise UserError(f"{path!r} is no path of a file inside the tree: it was not touched.")
    return path


@dataclass(frozen=True)
class Work:
    """The steps to carry out below ``root`` and where their journal lies."""

    root: Path
    steps: Sequence[Step]
    journal: Path


def commit(root: Path, steps: Sequence[Step], journal: Path) -> None:
    """Carry out all ``steps`` below ``root`` or none of them; see ``commit_all``."""
    commit_all([Work(root, steps, journal)])


def commit_all(work: Sequence[Work]) -> None:
    """Carry out all steps of all ``work`` or none of them.

    Each root has its own journal; all of them are complete before the first file changes, and
    none goes before the last file is changed. So what a killed run leaves is completed in every
    root, except that, killed while it still wrote the new contents, it may leave some roots to be
    completed and others untouched.

    The files must hold what the steps say they hold before. A file keeps its mode and, where the
    process may, its owner.

    Raises:
        UserError: a file cannot be written; every file is as it was.
    """
    with ExitStack() as undo:
        records = [_prepare(part, undo) for part in work]
        for part, record in zip(work, records, strict=True):
            _swap_all(part.root, record, _NOTHING_CHANGED)
        undo.pop_all()
    for part, record in zip(work, records, strict=True):
        with _naming(f"The journal in {part.journal.parent}", _UNTIDY):
            _tidy(part.root, record, part.journal)


def _prepare(work: Work, undo: ExitStack) -> Journal:
    """Write the journal and all new contents, with in ``undo`` what takes everything back."""
    root, journal = work.root, work.journal
    record = Journal(
        tuple(Entry(checked_path(s.path), digest(s.before), digest(s.after)) for s in work.steps),
        _missing_folders(root, work.steps),
    )
    with _naming(f"The journal in {journal.parent}", _NOTHING_CHANGED):
        undo.callback(_forget, _new(journal))
        _write(_new(journal), _to_json(record), None)
        os.replace(_new(journal), journal)
        _sync_folder(journal.parent)
    undo.callback(_take_back, root, record, journal)
    for folder in record.folders:
        with _naming(str(root / folder), _NOTHING_CHANGED):
            os.mkdir(root / folder)
    for step in work.steps:
        with _naming(f"{step.path} in {root}", _NOTHING_CHANGED):
            _stage(root / step.path, step)
    return record


def recover(root: Path, journal: Path) -> Literal["completed", "taken back"] | None:
    """Finish what an interrupted run left, or take it back when its new contents are incomplete.

    Returns None when no run was interrupted.

    Raises:
        UserError: a file is neither as that run found it nor as it wanted it; nothing is touched.
    """
    with _naming(f"The journal in {journal.parent}", _UNTIDY):
        if not os.path.lexists(journal):
            _forget(_new(journal))
            return None
        record = _from_json(journal)
        if all(_completable(root, entry) for entry in record.entries):
            _swap_all(root, record, _UNTIDY)
            _tidy(root, record, journal)
            return "completed"
    _take_back(root, record, journal)
    return "taken back"


@contextmanager
def _naming(path: str, outcome: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): {outcome}."
        ) from error


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.normport-new")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.normport-old")


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _forget(path: Path) -> None:
    with suppress(OSError):  # What stays is removed by the next run.
        os.unlink(path)


def _missing_folders(root: Path, steps: Sequence[Step]) -> tuple[str, ...]:
    folders: dict[str, None] = {}
    for step in steps:
        for parent in reversed(PurePosixPath(step.path).parents[:-1]):
            if not (root / parent).is_dir():
                folders[str(parent)] = None
    return tuple(folders)


def _write(path: Path, content: bytes, like: os.stat_result | None) -> None:
    """Create ``path`` with the mode and owner of ``like``; it is on the disk on return."""
    _remove(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if like is not None:
            with suppress(OSError):  # Only root may give a file away, and not everywhere.
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stage(target: Path, step: Step) -> None:
    """Everything that can fail for want of room or rights, before any file changes."""
    like = None if step.before is None else os.stat(target, follow_symlinks=False)
    if step.after is not None:
        _write(_new(target), step.after, like)
    if step.before is not None and step.after is not None:
        _remove(_old(target))
        try:
            os.link(target, _old(target), follow_symlinks=False)
        except OSError:  # A file system without hard links.
            shutil.copy2(target, _old(target))


def _swap_all(root: Path, record: Journal, outcome: str) -> None:
    for entry in record.entries:
        with _naming(f"{entry.path} in {root}", outcome):
            _swap(root / entry.path, entry)
    _sync_parents(root, record)


def _tidy(root: Path, record: Journal, journal: Path) -> None:
    """Remove our own files; the journal goes last, so that it names them while they are there."""
    for entry in record.entries:
        _remove(_new(root / entry.path))
        _remove(_old(root / entry.path))
    os.unlink(journal)
    _sync_folder(journal.parent)


def _swap(target: Path, entry: Entry) -> None:
    if _held(target) == entry.after:
        return
    if entry.after is None:
        os.replace(target, _old(target))
    else:
        os.replace(_new(target), target)


def _take_back(root: Path, record: Journal, journal: Path) -> None:
    """Put every file back as it was before the run.

    Raises:
        UserError: a file cannot be put back; the journal stays for another try.
    """
    for entry in record.entries:
        if not _restorable(root, entry):
            raise UserError(
                f"{entry.path} was changed by somebody else while or after a normport run was "
                f"interrupted: restore it, or remove {journal} to keep all files as they are, "
                "then run again."
            )
    with _naming("The tree", "an interrupted change is only partly undone, so run normport again"):
        for entry in record.entries:
            target = root / entry.path
            if _held(target) != entry.before:
                if entry.before is None:
                    os.unlink(target)
                else:
                    os.replace(_old(target), target)
        _sync_parents(root, record)
        for entry in record.entries:
            _remove(_new(root / entry.path))
        for folder in reversed(record.folders):
            with suppress(OSError):  # Somebody put something else there, or it was never made.
                os.rmdir(root / folder)
        _tidy(root, record, journal)


def _held(path: Path) -> str | None:
    """The sha256 of a file; None when there is none, ``not a file`` for anything else."""
    try:
        if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
            return "not a file"
        return digest(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _completable(root: Path, entry: Entry) -> bool:
    target = root / entry.path
    held = _held(target)
    if held == entry.after:
        return True
    return held == entry.before and (entry.after is None or _held(_new(target)) == entry.after)


def _restorable(root: Path, entry: Entry) -> bool:
    target = root / entry.path
    held = _held(target)
    if held == entry.before:
        return True
    return held == entry.after and (entry.before is None or _held(_old(target)) == entry.before)


def _sync_parents(root: Path, record: Journal) -> None:
    for folder in {(root / entry.path).parent for entry in record.entries}:
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    # Some network file systems refuse this; the order of the renames still holds there.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _to_json(record: Journal) -> bytes:
    return json.dumps({"schema": 1, **asdict(record)}, indent=1).encode()


def _from_json(path: Path) -> Journal:
    try:
        if not path.is_file():
            raise ValueError(path)
        content = json.loads(path.read_bytes())
        if content["schema"] != 1:
            raise ValueError(content["schema"])
        entries = [Entry(e["path"], e["before"], e["after"]) for e in content["entries"]]
        folders = [checked_path(folder) for folder in content["folders"]]
        for entry in entries:
            checked_path(entry.path)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a journal that this normport wrote: remove it if no normport run is "
            "to be completed."
        ) from error
    return Journal(tuple(entries), tuple(folders))
