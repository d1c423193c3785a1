"""Starts the processes that run a norm, asks them, and reads what they answer as mere data."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from normport.codemods.model import CallForm
from normport.tools import proof_side
from normport.tools.confine import confine, end_with_parent
from normport.tools.proof_channel import Channel, ClosedError, GarbledError, LateError, pair
from normport.tools.proof_compare import Layout

# What a norm may allocate on top of what torch already holds.
MEMORY = 1 << 30

_FLOATING = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


Point = tuple[Layout, int, str]
"""Layout, rows and magnitude of an input."""


class FailedError(Exception):
    """A side could not be run, and why."""


@dataclass(frozen=True)
class Part:
    """A tensor and its dtype, or the type of what is none. ``values``: those of a floating one."""

    kind: str
    shape: tuple[int, ...] = ()
    values: Tensor | None = None

    @property
    def floating(self) -> bool:
        return self.kind in _FLOATING


@dataclass(frozen=True)
class Output:
    """What one call gave; ``written``: each input that it wrote to, as it was left."""

    kind: str = ""
    parts: tuple[Part, ...] = ()
    written: dict[str, Part] = field(default_factory=dict)
    refused: str | None = None


class Peer:
    """One side, running. Every method raises FailedError when it does not answer as it should.

    expression, load: see ``proof_side.serve``. limit_s: seconds that it may take in all.
    """

    def __init__(self, expression: str, load: Callable[[], dict[str, Any]], limit_s: float) -> None:
        self.limit_s = limit_s
        self._pending = 0
        self._channel, theirs = pair()
        self._channel.deadline = time.monotonic() + limit_s
        self.pid = os.fork()
        if not self.pid:
            _become_side(theirs, expression, load, limit_s)
        theirs.close()
        try:
            self._receive()
        except FailedError:
            self.end()
            raise

    def build(self, dtype: str, size: int, eps: float) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Build the norm; the dtype and shape of each of its parameters and buffers."""
        self._send({"build": (dtype, size, eps)})
        message, _ = self._receive()
        try:
            return {
                _clean(key): (_clean(kind), tuple(map(int, shape)))
                for key, kind, shape in message["state"]
            }
        except (KeyError, TypeError, ValueError, OverflowError):
            self._garbled()

    def load(self, kind: str, *, float32: bool) -> None:
        """Have a weight loaded from a checkpoint of the run's dtype or of float32."""
        self._send({"load": {"kind": kind, "float32": float32}})

    def run(self, form: CallForm, call: str, points: Sequence[Point], *, brief: bool) -> None:
        """Have ``call`` run on ``points``; then read one ``summary``, or each ``output``."""
        names = [(layout.name, rows, kind) for layout, rows, kind in points]
        self._send({"run": names, "call": call, "dtype": form.dtype, "brief": brief})
        self._pending += 1 if brief else len(points)

    def summary(self) -> dict[str, Any]:
        """What all points gave, with a digest of the tensors; only to be compared as a whole."""
        message, _ = self._receive()
        self._pending -= 1
        return message

    def output(self) -> Output:
        """What the next point gave."""
        message, payload = self._receive()
        self._pending -= 1
        return self.read(message, payload)

    def read(self, message: Any, payload: bytearray | None) -> Output:
        """One entry of a summary (without a payload its tensors have no values), or an output."""
        try:
            if "refused" in message:
                return Output(refused=_clean(message["refused"]))
            return _output(message, payload)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError):
            self._garbled()

    def changed(self) -> list[str]:
        """What the norm's code changed in torch, by its own account. It answers nothing more."""
        while self._pending:
            self._receive()
            self._pending -= 1
        self._send({"end": True})
        message, _ = self._receive()
        names = message.get("changed")
        if not isinstance(names, list):
            self._garbled()
        return [_clean(name) for name in names]

    def end(self) -> None:
        """End its process."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._channel.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except ClosedError:
            self._closed()

    def _receive(self) -> tuple[dict[str, Any], bytearray]:
        try:
            message, payload = self._channel.receive()
        except LateError as error:
            raise FailedError(f"it did not finish within {self.limit_s:g} s") from error
        except ClosedError:
            self._closed()
        except GarbledError:
            self._garbled()
        if "failed" in message:
            raise FailedError(_clean(message["failed"]))
        return message, payload

    def _closed(self) -> NoReturn:
        for _ in range(20):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.05)
        else:
            raise FailedError("its process closed the connection before it answered")
        self.pid = 0
        self._channel.close()
        code = os.waitstatus_to_exitcode(status)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        raise FailedError(f"its process ended {how} before it answered")

    def _garbled(self) -> NoReturn:
        raise FailedError("its process answered something that cannot be read")


def _become_side(
    channel: Channel, expression: str, load: Callable[[], dict[str, Any]], limit_s: float
) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
        low, high = sorted((channel.reading, channel.writing))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
        end_with_parent()
        confine(MEMORY, limit_s)
        proof_side.serve(channel, expression, load)
    finally:
        os._exit(0)


def _output(message: dict[str, Any], payload: bytearray | None) -> Output:
    place = 0

    def take(kind: str, sizes: list[int]) -> Part:
        nonlocal place
        shape, dtype = tuple(map(int, sizes)), _FLOATING.get(kind)
        if min(shape, default=0) < 0:
            raise ValueError("a negative size")
        if dtype is None or payload is None:
            return Part(_clean(kind), shape)
        count = math.prod(shape)
        if not count:
            return Part(kind, shape, torch.empty(shape, dtype=dtype))
        values = torch.frombuffer(payload, dtype=dtype, count=count, offset=place)
        place += count * dtype.itemsize
        return Part(kind, shape, values.view(shape))

    parts = [
        Part(_clean(part)) if isinstance(part, str) else take(*part) for part in message["parts"]
    ]
    written = {str(name): take(dtype, sizes) for name, dtype, sizes in message["written"]}
    return Output(_clean(message["kind"]), tuple(parts), written)


def _clean(text: object) -> str:
    """Text that may come from anybody, fit to be printed."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= 300 else shown[:297] + "..."
