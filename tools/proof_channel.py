"""Messages between the process that compares and those that run a norm, which it does not trust.

A message is a JSON object with bytes behind it. Whatever comes in is read as data, never as code,
no further than a limit and no later than a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import time
from typing import Any

_HEAD = struct.Struct(">II")
_MOST_TEXT, _MOST_BYTES, _CHUNK = 1 << 20, 1 << 26, 1 << 18
_F_SETPIPE_SZ = 1031  # of Linux; a pipe that holds a whole result lets both norms run at once


class ClosedError(Exception):
    """The other end is gone."""


class LateError(Exception):
    """Nothing more came before the deadline."""


class GarbledError(Exception):
    """What came is no message."""


class Channel:
    """One end: a descriptor to read from and one to write to.

    deadline: by ``time.monotonic()``, None to wait for any time.
    """

    def __init__(self, reading: int, writing: int, deadline: float | None = None) -> None:
        self.reading, self.writing = reading, writing
        self.deadline = deadline
        self._held, self._come = bytearray(), bytearray()
        self._place = 0  # where in what has come the next message starts

    def send(self, message: dict[str, Any], *payload: memoryview | bytes) -> None:
        """Write one message, after those that are held back. Raises ClosedError."""
        self.hold(message, *payload)
        self.flush()

    def hold(self, message: dict[str, Any], *payload: memoryview | bytes) -> None:
        """Write one message now or with a later one; many are small, and each switch costs."""
        text = json.dumps(message).encode()
        parts = [memoryview(part).cast("B") for part in payload if len(part)]
        self._held += _HEAD.pack(len(text), sum(len(part) for part in parts))
        self._held += text
        for part in parts:
            self._held += part
        if len(self._held) >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write what is held back. Raises ClosedError."""
        with memoryview(self._held) as held:
            done = 0
            try:
                while done < len(held):
                    done += os.write(self.writing, held[done:])
            except BrokenPipeError as error:
                raise ClosedError from error
        self._held = bytearray()

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        """Read one message. Raises ClosedError, LateError or GarbledError."""
        text_size, size = _HEAD.unpack(self._read(_HEAD.size))
        if text_size > _MOST_TEXT or size > _MOST_BYTES:
            raise GarbledError
        text, payload = self._read(text_size), self._read(size)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GarbledError from error
        if not isinstance(message, dict):
            raise GarbledError
        return message, payload

    def _read(self, size: int) -> bytearray:
        while len(self._come) - self._place < size:
            if self.deadline is not None:
                patience = max(0.0, self.deadline - time.monotonic())
                if not select.select([self.reading], [], [], patience)[0]:
                    raise LateError
            chunk = os.read(self.reading, _CHUNK)
            if not chunk:
                raise ClosedError
            self._come = self._come[self._place :] + chunk
            self._place = 0
        self._place += size
        return self._come[self._place - size : self._place]

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


def pair() -> tuple[Channel, Channel]:
    """Two ends that are connected in both directions."""
    down, up = os.pipe(), os.pipe()
    for descriptor in (down[1], up[1]):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _F_SETPIPE_SZ, 1 << 20)
    return Channel(up[0], down[1]), Channel(down[0], up[1])
