"""One file of a change: its new content beside it, its old one kept, and back again."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath

from normport.tools.errors import UserError
from normport.tools.journal import Entry, Step, digest


def new_path(path: Path) -> Path:
    """Where the new content of the file ``path`` waits."""
    return path.with_name(f".{path.name}.normport-new")


def old_path(path: Path) -> Path:
    """Where the old content of the file ``path`` is kept."""
    return path.with_name(f".{path.name}.normport-old")


def remove(path: Path) -> None:
    """Remove one of our own files, if it is there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def forget(path: Path) -> None:
    """Remove one of our own files, if that can be done."""
    with suppress(OSError):  # What stays is removed by the next run.
        os.unlink(path)


def write(path: Path, content: bytes, like: os.stat_result | None) -> None:
    """Create ``path`` with the mode and owner of ``like``; it is on the disk on return."""
    remove(path)
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


def stage(root: Path, step: Step) -> None:
    """Everything that can fail for want of room or rights, before any file changes."""
    target = root / step.path
    check_place(root, step.path)
    like = None if step.before is None else os.stat(target, follow_symlinks=False)
    if step.after is not None:
        write(new_path(target), step.after, like)
    if step.before is not None and step.after is not None:
        remove(old_path(target))
        if held(target) == digest(step.before):
            try:
                os.link(target, old_path(target), follow_symlinks=False)
            except OSError:  # A file system without hard links.
                shutil.copy2(target, old_path(target), follow_symlinks=False)
        if held(old_path(target)) != digest(step.before):
            raise changed(root, step.path)


def check_place(root: Path, path: str) -> None:
    """Whether the file's folder still is where its path says, not behind a link."""
    parent = PurePosixPath(path).parent
    if os.path.realpath(root / parent) != os.path.join(os.path.realpath(root), *parent.parts):
        raise changed(root, path)


def changed(root: Path, path: str) -> UserError:
    """The error about a file that changed under our hands."""
    return UserError(
        f"{path} in {root} was changed by somebody else while normport ran: no file was changed; "
        "run again."
    )


def put_back(target: Path, entry: Entry) -> None:
    """Undo the swap of one file."""
    if entry.before is None:
        os.unlink(target)
    else:
        os.replace(old_path(target), target)


def held(path: Path) -> str | None:
    """The sha256 of a file; None when there is none, ``not a file`` for anything else."""
    try:
        if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
            return "not a file"
        return digest(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def staged(target: Path, entry: Entry) -> bool:
    """Whether the new content is complete."""
    return entry.after is None or held(new_path(target)) == entry.after


def sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk on return."""
    # Some network file systems refuse this; the order of the renames still holds there.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
