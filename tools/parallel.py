"""Shares work among processes, where that pays and can be done safely.

A worker is a fork of this process: it starts in milliseconds and has everything imported. It is
made before any thread is, since a fork takes along locks that other threads hold. Where that
cannot be, and for little work, everything is done in this process; the results are the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from traceback import format_exc
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from normport.tools.errors import UserError

if TYPE_CHECKING:  # imported for real only where there are workers
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

T = TypeVar("T")
R = TypeVar("R")

ENOUGH = 64
"""From how many items on workers are started; below, starting them takes longer than the work."""

SWITCH = "NORMPORT_JOBS"
"""The environment variable that says how many processes share the work."""

MOST = 4
"""More workers gain little beside what this process does alone, and each takes memory."""

# Chunks per worker: the last ones to end should not keep the others waiting.
_CHUNKS = 16


class Workers:
    """Up to ``most`` other processes, started once for all that there is to do.

    most: None for what ``$NORMPORT_JOBS`` says, else one per processor that this process may use
        but at most ``MOST``.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = _processors() if most is None else most
        self._workers: list[tuple[BaseProcess, Connection[Any, Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def start(self, items: int) -> None:
        """Start the workers, if so many items are worth it and it is safe; do so only once."""
        if self._workers or items < ENOUGH or self.most < 2 or not _can_fork():
            return
        from multiprocessing import get_context

        context = get_context("fork")
        # Ctrl-C goes to all processes of the terminal. It is this process that ends the workers,
        # so none of them may be hit by it, not even before it has said so itself.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(self.most):
                ours, theirs = context.Pipe()
                others = [connection for _, connection in self._workers]
                process = context.Process(target=_serve, args=(theirs, [ours, *others]))
                process.daemon = True
                process.start()
                theirs.close()
                self._workers.append((process, ours))
        except OSError:
            self.end()  # no process or no memory to be had: this one does it all
            self.most = 0
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def map(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        done: Callable[[int], object] = lambda _: None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> list[R]:
        """What ``function`` returns for each item, in order of the items.

        function, items, results: of kinds that can be pickled, where workers may be running.
        done: called with the number of items that are done.
        meanwhile: called once, while workers are busy, if there are any: what this process can
            do ahead.
        Raises what ``function`` raises, and UserError when a worker was ended from outside.
        """
        if not self._workers:
            results = []
            for number, item in enumerate(items):
                done(number)
                results.append(function(item))
            return results
        # Neighbors are often alike, so each chunk takes one from every part of the whole.
        number = min(len(items), _CHUNKS * len(self._workers))
        chunks = [range(first, len(items), number) for first in range(number)]
        found: dict[int, R] = {}
        for chunk, part in self._share(chunks, function, items, meanwhile):
            found.update(zip(chunk, part, strict=True))
            done(len(found))
        return [found[index] for index in range(len(items))]

    def _share(
        self,
        chunks: Sequence[range],
        function: Callable[[T], R],
        items: Sequence[T],
        meanwhile: Callable[[], object],
    ) -> Iterator[tuple[range, list[R]]]:
        """Each chunk with its results, as they come."""
        from multiprocessing.connection import wait

        waiting = list(reversed(chunks))
        busy: dict[Connection[Any, Any], tuple[BaseProcess, range]] = {}

        def hand_out(process: BaseProcess, connection: Connection[Any, Any]) -> None:
            chunk = waiting.pop()
            busy[connection] = (process, chunk)
            with _naming_end(process):
                connection.send((function, [items[index] for index in chunk]))

        for process, connection in self._workers[: len(waiting)]:
            hand_out(process, connection)
        meanwhile()
        while busy:
            for ready in wait(list(busy)):
                connection = cast("Connection[Any, Any]", ready)
                process, chunk = busy.pop(connection)
                with _naming_end(process):
                    results, error = connection.recv()
                if error is not None:
                    raise error
                yield chunk, results
                if waiting:
                    hand_out(process, connection)

    def end(self) -> None:
        """End the workers, whatever they are doing."""
        for process, connection in self._workers:
            connection.close()
            process.kill()  # it has nothing to tidy up
        for process, _ in self._workers:
            process.join()
            process.close()
        self._workers.clear()


@contextmanager
def _naming_end(process: BaseProcess) -> Iterator[None]:
    """Turns the end of a worker's connection into the end of the worker, which is the reason."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        process.join(10)
        status = process.exitcode
        how = f"by signal {-status}" if status is not None and status < 0 else f"with {status}"
        raise UserError(
            f"A process that did a part of the work was ended {how}, perhaps for want of memory: "
            f"free some, or set {SWITCH}=1 to work in one process."
        ) from error


def _serve(connection: Connection[Any, Any], others: Sequence[Connection[Any, Any]]) -> None:
    """A worker: answers until it is ended, or the process that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in others:  # held here, they would hide the end of that process
        other.close()
    with suppress(EOFError, ConnectionError):
        while True:
            function, items = connection.recv()
            answer: tuple[list[Any], Exception | None]
            try:
                answer = [function(item) for item in items], None
            except Exception as error:
                error.add_note(f"In a process that did a part of the work:\n{format_exc()}")
                answer = [], error
            connection.send(answer)


def _processors() -> int:
    given = os.environ.get(SWITCH, "")
    if given.isdecimal():
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST)
    return min(os.cpu_count() or 1, MOST)


def _can_fork() -> bool:
    """Whether a fork of this process is sound: the system has it, and no thread runs beside.

    macOS has it, but its own libraries start threads that do not survive it.
    """
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1
