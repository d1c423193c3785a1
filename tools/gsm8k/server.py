"""An OpenAI-compatible server as the thing that answers, with its retry policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

import httpx

from normport.tools.errors import UserError
from normport.tools.gsm8k.backend import Decoding, Output
from normport.tools.gsm8k.policy import Policy
from normport.tools.gsm8k.stream import Failed, count, events, whole_characters

CONNECT_TIMEOUT_S = 10.0

_WORTH_ANOTHER = {408, 425, 429}
"""Statuses below 500 that may be another one a moment later."""

_UNKNOWN_TO_IT = {401, 403}
"""Statuses that say who asks is not known, or may not."""


T = TypeVar("T")


class Server:
    """One model of one server; requests go out one at a time."""

    def __init__(
        self,
        base_url: str,
        model: str | None,
        policy: Policy,
        *,
        chat: bool = False,
        key: str | None = None,
        note: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ask the server what it serves.

        base_url: with or without a last ``/v1``. model: None takes the one that is served. key:
        sent as a bearer token and shown nowhere, as are a name and password in ``base_url``.
        note: told of each attempt that failed. UserError where nothing answers, the address is
        no URL, or the model is not served there.
        """
        url = _address(base_url)
        self.root = str(url.copy_with(userinfo=b""))
        key = usable_key(key)
        self._secrets = tuple(filter(None, (key, url.password)))
        self.policy = policy
        self.chat = chat
        self._note = note
        self._sleep = sleep
        timeout = httpx.Timeout(policy.timeout_s, connect=min(CONNECT_TIMEOUT_S, policy.timeout_s))
        # Loading the certificates takes longer than a short answer; plain HTTP needs none.
        self._client = httpx.Client(
            base_url=self.root,
            timeout=timeout,
            verify=url.scheme == "https",
            auth=(url.username, url.password) if url.userinfo else None,
            headers={"Authorization": f"Bearer {key}"} if key else None,
        )
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
            told = self._client.get("/version").raise_for_status().json().get("version")
            version = told if isinstance(told, str) else None
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
                self._check_status(response)
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
            except Failed as failure:
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
            self._check_status(response)
            for event in events(response):
                if event is None:
                    ended = True
                    break
                if event.get("error"):
                    raise Failed(f"broke off its answer: {self._message(event)}")
                counted = event.get("usage")
                usage = counted if isinstance(counted, dict) else usage
                for part, reason_now in self._parts(event):
                    if part:
                        first = first or time.perf_counter()
                        text.append(part)
                    reason = reason_now or reason
        end = time.perf_counter()
        if not ended or reason is None:
            raise Failed("ended its answer before it was complete")
        return Output(
            text=whole_characters("".join(text)),
            prompt_tokens=count(usage.get("prompt_tokens")),
            output_tokens=count(usage.get("completion_tokens")),
            latency_s=end - start,
            ttft_s=None if first is None else first - start,
            finish_reason=reason,
        )

    def _check_status(self, response: httpx.Response) -> None:
        code = response.status_code
        if response.is_success:
            return
        why = self._message(_json(response)) or response.reason_phrase
        said = f"answered with HTTP {code} ({why})" if why else f"answered with HTTP {code}"
        if code >= 500 or code in _WORTH_ANOTHER:
            raise Failed(said)
        what = "--api-key" if code in _UNKNOWN_TO_IT else "--base-url and --served-model"
        raise UserError(f"{response.request.url} {said}; check {what}.")

    def _message(self, body: Any) -> str:
        """What an error body says, on one line and without what only the server may know.

        OpenAI's servers nest it, vLLM's older ones do not.
        """
        error = body.get("error", body) if isinstance(body, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        if not isinstance(said, str):
            return ""
        for secret in self._secrets:
            said = said.replace(secret, "***")
        return " ".join(said.split())[:300].rstrip(".")

    def _parts(self, event: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
        """Text and finish reason of each choice; ``Failed`` where an event is not OpenAI's."""
        try:
            for choice in event.get("choices") or ():
                # A server that does not stream sends a message where others send parts of it.
                part = choice["delta" if "delta" in choice else "message"] if self.chat else choice
                text = (part or {}).get("content") if self.chat else part["text"]
                if not isinstance(text, str | None):
                    raise TypeError
                reason = choice.get("finish_reason")
                yield text or "", None if reason is None else str(reason)
        except (AttributeError, KeyError, TypeError) as error:
            raise Failed("sent an event that is not as OpenAI's are") from error


class _failures:  # noqa: N801, a context manager that reads as one
    """Turns httpx's errors into ``Failed``, each in words that a user can act on."""

    def __init__(self, root: str, policy: Policy) -> None:
        self.root = root
        self.policy = policy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            why = " ".join(str(error).split()) or "no connection"
            raise Failed(f"does not answer ({why}): is the server running?") from error
        if isinstance(error, httpx.TimeoutException):
            said = f"said nothing for {self.policy.timeout_s:g} s (--timeout)"
            raise Failed(said) from error
        if isinstance(error, httpx.RemoteProtocolError):
            raise Failed("ended its answer before it was complete") from error
        if isinstance(error, httpx.RequestError):
            raise Failed(f"cut the connection ({error or type(error).__name__})") from error


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _names(response: httpx.Response, root: str) -> list[str]:
    body = _json(response)
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries
    ):
        raise UserError(f"{root}/v1/models is not OpenAI's list of models; check --base-url.")
    return [entry["id"] for entry in entries]


def _address(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.rstrip("/").removesuffix("/v1").rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"{base_url} is no URL of a server; give it as http://HOST:PORT.")
    return url


def usable_key(key: str | None) -> str | None:
    """The key as a header may hold it; UserError, which does not show it, where none may."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(
            "The API key holds a character that no key has: give one word of ASCII with --api-key "
            "or in OPENAI_API_KEY."
        )
    return key or None
