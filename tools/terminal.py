"""What goes to which stream: results to stdout, everything said about the run to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from normport.tools.pipeline import Progress


def note(message: str) -> None:
    """One line on stderr."""
    print(message, file=sys.stderr, flush=True)


def write_bytes(data: bytes) -> None:
    """Bytes to stdout as they are: a diff must not be recoded or get other line ends."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def colour_wanted() -> bool:
    """Whether stdout is a terminal that shows colours and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


@contextmanager
def progress() -> Iterator[Progress]:
    """A status line on stderr while the run lasts; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("starting") as status:

        def show(what: str, done: int, total: int) -> None:
            if done % 16 == 0:
                status.update(f"{what} ({done}/{total})" if total > 1 else what)

        yield show
