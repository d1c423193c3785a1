"""What answers a prompt: the interface of the server and of the engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Decoding:
    """How an answer is generated, always greedily.

    max_tokens: its most tokens. stop: strings that end it and are not part of it.
    """

    max_tokens: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """One answer.

    prompt_tokens, output_tokens: None where the server does not tell.
    latency_s: from the request to the last token, in seconds, of the attempt that succeeded.
    ttft_s: until the first text, in seconds; None where it is not seen.
    tokens: ids of the output; None where a server keeps them.
    attempts: 1 where the first one succeeded.
    """

    text: str
    prompt_tokens: int | None
    output_tokens: int | None
    latency_s: float
    finish_reason: str | None = None
    ttft_s: float | None = None
    tokens: Sequence[int] | None = None
    attempts: int = 1


class Backend(Protocol):
    """Something that generates text. ``about`` says what it is, for the result file."""

    def about(self) -> dict[str, Any]: ...

    def generate(self, prompt: str, decoding: Decoding) -> Output: ...

    def close(self) -> None: ...
