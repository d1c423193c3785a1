"""When a request to a server is made again, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """When to give up.

    retries: further attempts after the first, for what may pass: no connection, a timeout, HTTP
    408, 425, 429 and 5xx, a stream that breaks off. wait_s: before the first of them, in
    seconds; doubled each time. timeout_s: the longest silence within one answer, in seconds.
    """

    retries: int = 3
    wait_s: float = 1.0
    timeout_s: float = 600.0
