"""Where ``decode-latency`` gets its tokens from: a server, or vLLM in this process."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from normport.tools.decode_latency import Arrivals, Ask
from normport.tools.doctor import sentence
from normport.tools.errors import UserError
from normport.tools.printable import printable

V2 = "VLLM_USE_V2_MODEL_RUNNER"
# What reading an answer raises that is no JSON, or JSON of another shape.
_UNLIKE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def server(base_url: str, model: str | None, timeout_s: float) -> tuple[Ask, str]:
    """Asks an OpenAI-compatible server; with the name of its model, the first that it lists.

    base_url: with or without ``/v1``. Raises UserError when httpx is missing or the server does
    not answer as it should; so does what is returned.
    """
    try:
        import httpx
    except ImportError as error:
        raise UserError(
            "Asking a server needs httpx: install it (`pip install '.[evidence]'` where "
            "normport's sources are), or name a model with --model."
        ) from error
    from normport.tools.gsm8k.server import usable_key
    from normport.tools.gsm8k.stream import lines

    root = base_url.rstrip("/").removesuffix("/v1")
    where = shown(base_url)
    key = usable_key(os.environ.get("OPENAI_API_KEY"))
    try:
        client = httpx.Client(
            base_url=root,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
    except httpx.InvalidURL as error:
        raise UserError(
            f"--base-url {where!r} is no address ({_brief(error)}): give it as http://HOST:PORT."
        ) from error
    if model is None:
        try:
            response = client.get("/v1/models").raise_for_status()
            model = str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, httpx.InvalidURL, *_UNLIKE) as error:
            raise UserError(
                f"{where} does not list its models ({_line(_brief(error), key)}): check "
                "--base-url, and OPENAI_API_KEY where the server wants a key."
            ) from error

    def ask(prompt: Sequence[int], tokens: int, seed: int) -> Arrivals:
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "seed": seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            with client.stream("POST", "/v1/completions", json=body) as response:
                if response.is_error:
                    text = _line(response.read().decode(errors="replace"), key)
                    raise UserError(
                        f"{where} refused the request ({response.status_code}: {text}): check "
                        "--model and the lengths, and OPENAI_API_KEY where the server wants a key."
                    )
                yield from _stream(lines(response))
        except httpx.HTTPError as error:
            raise UserError(
                f"{where} does not answer ({_brief(error)}): check --base-url and the server's log."
            ) from error
        except _UNLIKE as error:
            raise UserError(
                f"{where} does not stream as an OpenAI-compatible server with usage does "
                f"({_brief(error)}): check that --base-url is such a server's."
            ) from error

    return ask, model


def _stream(lines: Any) -> Arrivals:
    """The arrivals in a stream of server-sent events.

    vLLM tells the tokens with each event. A server that tells them at the end alone has its events
    counted as a token each, but for the last, which has what is left.
    """
    arrivals: list[tuple[float, int]] = []
    for line in lines:
        now = time.perf_counter()
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise UserError(f"The server broke off ({_line(str(event['error']))}): see its log.")
        before = arrivals[-1][1] if arrivals else 0
        tokens = (event.get("usage") or {}).get("completion_tokens")
        if tokens is not None and type(tokens) is not int:
            raise TypeError(f"completion_tokens is {type(tokens).__name__}")
        if not event.get("choices"):
            if arrivals and tokens is not None:
                arrivals[-1] = (arrivals[-1][0], tokens)
        elif tokens is not None:
            if tokens > before:
                arrivals.append((now, tokens))
        elif event["choices"][0].get("text"):
            arrivals.append((now, before + 1))
    yield from arrivals


def in_process(
    model: str, runner: str | None, context: int, options: dict[str, Any]
) -> tuple[Ask, str, int, Callable[[], None]]:
    """Builds an engine here: asks it; its runner, its vocabulary's size, and what ends it.

    runner: ``v1`` or ``v2``; None for vLLM's own choice. context: tokens that a request may have.
    Raises UserError when vLLM is missing or cannot load the model.
    """
    ours = {
        "model": model,
        "max_model_len": context,
        "max_num_seqs": 1,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    if taken := sorted(ours.keys() & options):
        raise UserError(
            f"--engine-args gives {', '.join(taken)}, which the measurement sets itself: leave "
            f"{'it' if len(taken) == 1 else 'them'} out."
        )
    # What vLLM logs is about its own start, and stdout is for the result.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if runner is not None:
        os.environ[V2] = "1" if runner == "v2" else "0"
    try:
        from vllm import LLM, SamplingParams
    except ImportError as error:
        raise UserError(
            f"Measuring in process needs vLLM ({error}): install it, or name a server with "
            "--base-url."
        ) from error
    try:
        llm = LLM(**ours, **options)
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        # pydantic's first line only counts its errors.
        told = _line(sentence(error)) if "validation error" in str(error) else _brief(error)
        raise UserError(
            f"vLLM cannot load {model} ({told.rstrip('.')}): check --model and --engine-args."
        ) from error
    config = llm.llm_engine.vllm_config
    used = "v2" if getattr(config, "use_v2_model_runner", False) else "v1"
    numbers = count()

    def ask(prompt: Sequence[int], tokens: int, seed: int) -> Arrivals:
        parameters = SamplingParams(
            temperature=0, seed=seed, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        engine = llm.llm_engine
        engine.add_request(str(next(numbers)), {"prompt_token_ids": list(prompt)}, parameters)
        before = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                now = time.perf_counter()
                tokens_now = len(output.outputs[0].token_ids)
                if tokens_now > before:
                    before = tokens_now
                    yield now, tokens_now

    def end() -> None:
        with suppress(AttributeError):
            llm.llm_engine.engine_core.shutdown()

    return ask, used, config.model_config.get_vocab_size(), end


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_line(lines[0])}" if lines else type(error).__name__


def shown(base_url: str) -> str:
    """The address without a name and password in it."""
    return re.sub(r"//[^/]*@", "//", base_url)


def _line(text: str, key: str | None = None) -> str:
    """What a server says, as part of a sentence: it may be a page, steer a terminal, or repeat
    what is secret."""
    words = shown(printable(text))
    return (words.replace(key, "***") if key else words)[:300]
