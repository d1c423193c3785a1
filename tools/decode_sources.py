"""Where ``decode-latency`` gets its tokens from: a server, or vLLM in this process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from normport.tools.decode_latency import Arrivals, Ask
from normport.tools.errors import UserError

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
    root = base_url.rstrip("/").removesuffix("/v1")
    try:
        client = httpx.Client(base_url=root, timeout=httpx.Timeout(timeout_s, connect=10.0))
    except httpx.InvalidURL as error:
        raise UserError(f"--base-url {base_url!r} is no address: {_brief(error)}.") from error
    if model is None:
        try:
            response = client.get("/v1/models").raise_for_status()
            model = str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, httpx.InvalidURL, *_UNLIKE) as error:
            raise UserError(
                f"{base_url} does not list its models ({_brief(error)}): check --base-url."
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
                    text = response.read().decode(errors="replace")[:300]
                    raise UserError(
                        f"{base_url} refused the request ({response.status_code}): {text}"
                    )
                yield from _stream(response.iter_lines())
        except httpx.HTTPError as error:
            raise UserError(f"{base_url} does not answer ({_brief(error)}).") from error
        except _UNLIKE as error:
            raise UserError(
                f"{base_url} does not stream as an OpenAI-compatible server with usage does "
                f"({_brief(error)})."
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
            raise UserError(f"The server broke off: {event['error']}.")
        before = arrivals[-1][1] if arrivals else 0
        tokens = (event.get("usage") or {}).get("completion_tokens")
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
        llm = LLM(
            model=model,
            max_model_len=context,
            max_num_seqs=1,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            **options,
        )
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"vLLM cannot load {model}: {_brief(error)}.") from error
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
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
