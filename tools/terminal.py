"""What goes to which stream: results to stdout, everything said about the run to stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from normport.tools.errors import UserError

if TYPE_CHECKING:  # imported for real it would make `--help` slow
    from rich.status import Status

    from normport.tools.pipeline import Progress


class _ClosedOutput(io.TextIOBase):
    """Stands for a stdout that was closed before the start: nothing can be printed."""

    def write(self, _: str) -> int:
        raise UserError(
            "Standard output is closed, so the result cannot be printed: leave it open or send it "
            f"to {os.devnull}."
        )


class _Nowhere(io.TextIOBase):
    """Stands for a stderr that was closed before the start: what is said there is lost."""

    def write(self, text: str) -> int:
        return len(text)


def prepare_streams() -> None:
    """Make stdout and stderr safe to write any text to, also when they are closed.

    A character that the stream's encoding lacks, or a byte of a file name that is no UTF-8, is
    printed as a backslash escape. The numbers of closed streams are taken, since a file that is
    opened later would get them and with it what child processes print.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Typed as always there, but None where the descriptor was closed.
    if getattr(sys, "stdout", None) is None:
        sys.stdout = _ClosedOutput()
    if getattr(sys, "stderr", None) is None:
        sys.stderr = _Nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Let what is left in ``stream`` go nowhere, so that the flush at exit does not fail."""
    with suppress(OSError):  # a stream without a descriptor holds nothing back
        number = stream.fileno()
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)


def note(message: str) -> None:
    """One line on stderr; lost when nobody reads it, which changes no result."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


class ReaderGoneError(Exception):
    """Whoever read stdout has closed it, as ``head`` does."""


@contextmanager
def _naming_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error
    except OSError as error:
        # What could not be written would be tried again, and complained of, when Python exits.
        silence(sys.stdout)
        raise UserError(
            f"The standard output cannot be written ({error.strerror or error}); send it elsewhere."
        ) from error


def write_bytes(data: bytes) -> None:
    """Bytes to stdout as they are: a diff must not be recoded or get other line ends."""
    if isinstance(sys.stdout, _ClosedOutput):
        if data:
            sys.stdout.write("")  # tells that there is none
        return
    with _naming_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_text(text: str) -> None:
    """Text to stdout, in its encoding."""
    if not text:
        return
    with _naming_stdout():
        sys.stdout.write(text)
        sys.stdout.flush()


def say(line: str) -> None:
    """One line of the result, to stdout."""
    write_text(f"{line}\n")


def stdout_is_terminal() -> bool:
    """Whether a person reads stdout as it is written."""
    return sys.stdout.isatty()


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

    with ExitStack() as stack:
        shown: list[Status] = []

        def show(what: str, done: int, total: int) -> None:
            if not shown:  # only now: it starts a thread, which would keep workers from starting
                shown.append(stack.enter_context(Console(stderr=True).status("starting")))
            if done % 16 == 0:
                shown[0].update(f"{what} ({done}/{total})" if total > 1 else what)

        yield show
