"""Child processes that are always stopped, with all that they started themselves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from normport.tools.errors import UserError

GRACE_S = 30.0
"""How long a child may take to end when asked to, in seconds."""

KILLED_S = 0.5
"""How long a killed group is waited for: where nobody collects the dead, it never goes away."""

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals on which this process ends, its children first."""


class Ended(BaseException):
    """A signal asks this process to end. No ``Exception``, so that nothing takes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class _Held:
    """Signals that came while a child was being started, which must not be lost sight of."""

    active = False
    pending: int | None = None


def _end(number: int, frame: FrameType | None = None) -> None:
    if _Held.active:
        _Held.pending = number
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        raise Ended(number)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Within it, the signals of ``ENDS`` raise instead of ending this process at once.

    One that is ignored, as under nohup, stays so.
    """
    former = {number: signal.getsignal(number) for number in ENDS}
    taken = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, former[number])


@contextmanager
def _held() -> Iterator[None]:
    """Within it those signals wait: an exception out of ``Popen`` would leave its child alone."""
    _Held.active = True
    try:
        yield
    finally:
        _Held.active = False
        number, _Held.pending = _Held.pending, None
        if number is not None:
            _end(number)


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: dict[str, str], grace_s: float = GRACE_S
) -> Iterator[subprocess.Popen[bytes]]:
    """``command`` while the block lasts, its output in ``log``.

    It leads a process group of its own: Ctrl-C reaches this process alone, which then asks the
    group to end, and after ``grace_s`` ends it. OSError where it cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as output, _held():
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        yield child
    finally:
        if child is not None:
            stop(child, grace_s)


def stop(child: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End ``child`` and its group: first asked, then made to. Signals meanwhile do not leave it."""
    try:
        if child.poll() is None:
            _signal(child, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
    finally:
        # What the leader started and left behind is still in its group. What follows may need the
        # memory that it held, so its end is waited for.
        _signal(child, signal.SIGKILL)
        child.wait()
        deadline = time.monotonic() + KILLED_S
        while _is_there(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def check_port(host: str, port: int) -> None:
    """UserError where something listens on ``port`` of ``host``: it would be measured instead."""
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex((host, port)) == 0:
            raise UserError(
                f"Port {port} of {host} is in use: stop what listens there, or choose another "
                "with --port."
            )


def last_line(log: Path) -> str:
    """The last thing said in ``log`` that tells something, for a message."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    telling = [line for line in lines if "Error" in line or "error:" in line]
    return (telling or [line for line in lines if line] or ["it said nothing"])[-1][-300:]
