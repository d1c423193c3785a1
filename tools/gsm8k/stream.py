"""What a server streams, read as OpenAI's servers write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


class Failed(Exception):
    """An attempt that failed in a way that may not last; the message completes a sentence."""


def events(response: httpx.Response) -> Iterator[dict[str, Any] | None]:
    """The events of a server-sent stream; None for the one that says that it is over.

    A server that does not stream answers with one object, which is an event then, and whole.
    """
    found = lines(response)
    for line in found:
        if line.lstrip().startswith("{"):
            yield _event("\n".join([line, *found]))
            yield None
            return
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            yield None
            return
        yield _event(data)


def _event(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Failed("sent an event that is not JSON") from error
    if not isinstance(event, dict):
        raise Failed("sent an event that is no object")
    return event


def lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream. httpx's own also end at U+2028 and the like, which text may hold."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    yield rest.decode("utf-8", "replace")


def count(value: Any) -> int | None:
    """A number of tokens; None where the server counts in some other way."""
    return value if type(value) is int and value >= 0 else None


def whole_characters(text: str) -> str:
    """``text`` with what was cut in two between events joined, and half a character replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
