"""Keeping two runs of normport from changing the same files at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from normport.tools import git
from normport.tools.errors import UserError


def lock_path(root: Path) -> Path:
    """Where the lock file of a run on ``root`` lies: in git's folder if there is one."""
    folder = git.git_folder(root)
    return folder / "normport.lock" if folder else root / ".normport.lock"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep every other run of normport from changing ``root``.

    Raises:
        UserError: another run holds it, or the lock cannot be written.
    """
    path = lock_path(root)
    try:
        descriptor = _lock(path)
    except BlockingIOError as error:
        raise _busy(root) from error
    except OSError as error:
        raise UserError(
            f"{root} cannot be written ({error.strerror or error}): no file was changed; make it "
            "writable, or work on a copy of it."
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # One that stays holds nobody up.
            os.unlink(path)
        os.close(descriptor)


@contextmanager
def folders_locked(folders: Iterable[Path]) -> Iterator[None]:
    """Keep runs on another root from changing files in ``folders``, those that exist.

    A checkout and a folder in it are two roots with a lock file each. What both want to change
    lies in the same folders: these are locked themselves, which leaves no file behind.

    Raises:
        UserError: another run holds one.
    """
    with ExitStack() as held:
        for folder in sorted(set(folders)):
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _busy(folder) from error
            except OSError:
                # It is yet to be made, or a network file system locks nothing but files: the
                # lock of the root must do there.
                continue
        yield


def _busy(folder: Path) -> UserError:
    return UserError(
        f"Another normport run is changing {folder}: wait until it ends, then run again."
    )


def _lock(path: Path) -> int:
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        # The run before us removed its lock file after we opened it: take a new one.
        os.close(descriptor)
