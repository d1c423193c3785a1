"""What goes to which stream: results to stdout, everything said about the run to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported for real it would make `--help` slow
    from normport.tools.pipeline import Progress


def note(message: str) -> None:
    """One line on stderr."""
    print(message, file=sys.stderr, flush=True)


class ReaderGoneError(Exception):
    """Whoever read stdout has closed it, as ``head`` does."""


def write_bytes(data: bytes) -> None:
    """Bytes to stdout as they are: a diff must not be recoded or get other line ends."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def write_text(text: str) -> None:
    """Text to stdout, in its encoding."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def say(line: str) -> None:
    """One line of the result, to stdout."""
    write_text(f"{line}\n")


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
