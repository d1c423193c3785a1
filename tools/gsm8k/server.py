"""An OpenAI-compatible server as the thing that answers, with its retry policy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

import httpx

from normport.tools.errors import UserError
from normport.tools.gsm8k.backend import Decoding, Output
from normport.tools.gsm8k.policy import Policy

CONNECT_TIMEOUT_S = 10.0

_WORTH_ANOTHER = {408, 425, 429}
"""Statuses below 500 that may be another one a moment later."""


T = TypeVar("T")


class _Failed(Exception):
    """An attempt that failed in a way that may not last; the message completes a sentence."""


class Server:
    """One model of one server; requests go out one at a time."""

    def __init__(
        self,
        base_url: str,
        model: str | None,
        policy: Policy,
        *,
        chat: bool = False,
        note: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ask the server what it serves.

        base_url: with or without a last ``/v1``. model: None takes the one that is served.
        note: told of each attempt that failed. UserError where nothing answers, the address is
        no URL, or the model is not served there.
        """
        self.root = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.policy = policy
        self.chat = chat
        self._note = note
        self._sleep = sleep
        timeout = httpx.Timeout(policy.timeout_s, connect=min(CONNECT_TIMEOUT_S, policy.timeout_s))
        try:
            known = httpx.URL(self.root).scheme in ("http", "https")
        except httpx.InvalidURL:
            known = False
        if not known:
            raise UserError(f"{base_url} is no URL of a server; give it as http://HOST:PORT.")
        # Loading the certificates takes longer than a short answer; plain HTTP needs none.
        secure = self.root.startswith("https:")
        self._client = httpx.Client(base_url=self.root, timeout=timeout, verify=secure)
        try:
            self.model = self._served(model)
        except BaseException:
            self.close()  # nobody else has it yet
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def about(self) -> dict[str, Any]:
        """What is known of the server; ``vllm_version`` is None where it does not tell."""
        version = None
        with suppress(httpx.HTTPError, ValueError, AttributeError):
            version = self._client.get("/version").raise_for_status().json().get("version")
        return {
            "backend": "server",
            "server": self.root,
            "endpoint": self._endpoint,
            "model": self.model,
            "vllm_version": version,
        }

    @property
    def _endpoint(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def generate(self, prompt: str, decoding: Decoding) -> Output:
        """One answer, as a stream. UserError when the retries are used up, or at once for 4xx."""
        asked = (
            {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        )
        body = {
            "model": self.model,
            **asked,
            "max_tokens": decoding.max_tokens,
            "temperature": 0,
            "stop": list(decoding.stop),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        attempts, output = self._retried(lambda: self._stream(body))
        return replace(output, attempts=attempts)

    def _served(self, wanted: str | None) -> str:
        def ask() -> list[str] | None:
            with _failures(self.root, self.policy):
                response = self._client.get("/v1/models")
                if response.status_code in (404, 405) and wanted is not None:
                    return None  # a server without that list; its answers will tell
                _check_status(response)
                return _names(response, self.root)

        _, names = self._retried(ask)
        if names is None:
            assert wanted is not None
            return wanted
        served = ", ".join(names) or "no model"
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted is None:
            raise UserError(f"{self.root} serves {served}; say which with --served-model.")
        if wanted not in names:
            raise UserError(f"{self.root} serves {served}, not {wanted}; check --served-model.")
        return wanted

    def _retried(self, attempt: Callable[[], T]) -> tuple[int, T]:
        wait = self.policy.wait_s
        for number in range(1, self.policy.retries + 2):
            try:
                return number, attempt()
            except _Failed as failure:
                if number > self.policy.retries:
                    times = "once" if number == 1 else f"{number} times"
                    raise UserError(f"{self.root} {failure}; asked {times}.") from failure
                self._note(f"{self.root} {failure}; asking again in {wait:g} s")
                self._sleep(wait)
                wait *= 2
        raise AssertionError("the last attempt returns or raises")

    def _stream(self, body: dict[str, Any]) -> Output:
        text: list[str] = []
        reason: str | None = None
        usage: dict[str, Any] = {}
        first: float | None = None
        ended = False
        start = time.perf_counter()
        with (
            _failures(self.root, self.policy),
            self._client.stream("POST", self._endpoint, json=body) as response,
        ):
            if response.is_error:
                response.read()
            _check_status(response)
            for event in _events(response):
                if event is None:
                    ended = True
                    break
                if "error" in event:
                    raise _Failed(f"broke off its answer: {_message(event)}")
                counted = event.get("usage")
                usage = counted if isinstance(counted, dict) else usage
                for part, reason_now in self._parts(event):
                    if part:
                        first = first or time.perf_counter()
                        text.append(part)
                    reason = reason_now or reason
        end = time.perf_counter()
        if not ended or reason is None:
            raise _Failed("ended its answer before it was complete")
        return Output(
            text="".join(text),
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            latency_s=end - start,
            ttft_s=None if first is None else first - start,
            finish_reason=reason,
        )

    def _parts(self, event: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
        """Text and finish reason of each choice; ``_Failed`` where an event is not OpenAI's."""
        try:
            for choice in event.get("choices") or ():
                text = (choice.get("delta") or {}).get("content") if self.chat else choice["text"]
                if not isinstance(text, str | None):
                    raise TypeError
                yield text or "", choice.get("finish_reason")
        except (AttributeError, KeyError, TypeError) as error:
            raise _Failed("sent an event that is not as OpenAI's are") from error


class _failures:  # noqa: N801, a context manager that reads as one
    """Turns httpx's errors into ``_Failed``, each in words that a user can act on."""

    def __init__(self, root: str, policy: Policy) -> None:
        self.root = root
        self.policy = policy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            why = " ".join(str(error).split()) or "no connection"
            raise _Failed(f"does not answer ({why}): is the server running?") from error
        if isinstance(error, httpx.TimeoutException):
            said = f"said nothing for {self.policy.timeout_s:g} s (--timeout)"
            raise _Failed(said) from error
        if isinstance(error, httpx.RemoteProtocolError):
            raise _Failed("ended its answer before it was complete") from error
        if isinstance(error, httpx.RequestError):
            raise _Failed(f"cut the connection ({error or type(error).__name__})") from error


def _check_status(response: httpx.Response) -> None:
    code = response.status_code
    if response.is_success:
        return
    said = f"answered with HTTP {code} ({_message(_json(response)) or response.reason_phrase})"
    if code >= 500 or code in _WORTH_ANOTHER:
        raise _Failed(said)
    raise UserError(f"{response.request.url} {said}; check --base-url and --served-model.")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _message(body: Any) -> str:
    """What an error body says, on one line; OpenAI's servers nest it, vLLM's older ones do not."""
    error = body.get("error", body) if isinstance(body, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return " ".join(said.split())[:300].rstrip(".") if isinstance(said, str) else ""


def _names(response: httpx.Response, root: str) -> list[str]:
    body = _json(response)
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries
    ):
        raise UserError(f"{root}/v1/models is not OpenAI's list of models; check --base-url.")
    return [entry["id"] for entry in entries]


def _events(response: httpx.Response) -> Iterator[dict[str, Any] | None]:
    """The events of a server-sent stream; None for the one that says that it is over."""
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            yield None
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise _Failed("sent an event that is not JSON") from error
        if not isinstance(event, dict):
            raise _Failed("sent an event that is no object")
        yield event
