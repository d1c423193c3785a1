"""Making the n-th change to the file system fail, or the process die there."""

from __future__ import annotations

import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

CHANGING_CALLS = (
    *("open", "write", "fsync", "fchmod", "fchown", "link", "replace", "unlink"),
    *("mkdir", "rmdir"),
)


class Counter:
    """Counts calls that change the file system, and acts before one of them."""

    def __init__(self, at: int, act: Callable[[str], None], *, lasting: bool = False) -> None:
        self.at = at
        self.act = act
        self.lasting = lasting
        self.count = 0

    def wrapped(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at or (self.lasting and self.count > self.at):
                self.act(name)
            return real(*arguments, **options)

        return call


@contextmanager
def acting_at(at: int, act: Callable[[str], None], *, lasting: bool = False) -> Iterator[Counter]:
    """Call ``act`` before the ``at``-th changing call (and before all later ones)."""
    counter = Counter(at, act, lasting=lasting)
    with ExitStack() as patches:
        for name in CHANGING_CALLS:
            patches.enter_context(mock.patch.object(os, name, counter.wrapped(name)))
        yield counter


def no_space(_: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(task: Callable[[], object]) -> tuple[int, str]:
    """Run ``task`` in a forked process; its wait status, and what it returned as text."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns when other tests left threads; this child takes no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                pipe.write(str(task()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text


def contents(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` but git's own, ours in git's folder included."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (".git" not in path.parts or "normport" in path.name)
    }
