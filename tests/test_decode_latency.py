"""The decode measurement against a server of our own, whose tokens come when it says."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest

from normport.tools.cli import run as command
from normport.tools.decode_latency import Job, Latency, measure
from normport.tools.decode_sources import in_process, server
from normport.tools.errors import UserError


class Server(ThreadingHTTPServer):
    """Answers completions as vLLM does; ``usage``: each event, the last one, or none has it."""

    usage = "each"
    lacking = 0
    status = 200
    asked: list[dict[str, Any]]

    def events(self, tokens: int) -> Iterator[dict[str, Any]]:
        for number in range(1, tokens - self.lacking + 1):
            usage = {"completion_tokens": number} if self.usage == "each" else None
            # Some libraries take this character for the end of a line.
            yield {"choices": [{"text": "x\u2028"}], "usage": usage}
        if self.usage == "last":
            yield {"choices": [], "usage": {"completion_tokens": tokens - self.lacking}}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.server.asked.append(body)
        events = self.server.events(body["max_tokens"])
        text = (
            "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
            + "data: [DONE]\n\n"
        )
        self.answer(text.encode())

    def answer(self, content: bytes) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def completions() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as found:
        found.asked = []
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def url(completions: Server) -> str:
    return f"http://127.0.0.1:{completions.server_address[1]}/v1"


def run(completions: Server, job: Job) -> Latency:
    ask, model = server(url(completions), None, 10.0)
    return measure(ask, job, model=model, where="here", runner="v1", progress=lambda _: None)


@pytest.mark.parametrize("usage", ["each", "last", "none"])
def test_a_server_is_asked_as_the_reference_was(completions: Server, usage: str) -> None:
    completions.usage = usage
    found = run(completions, Job(input_len=20, output_len=6))
    assert found.model == "tiny"
    assert [one.seed for one in found.measured] == [42, 43, 44]
    assert len(found.warm_up_ms) == 2
    assert len(completions.asked) == 5
    prompts = [body["prompt"] for body in completions.asked]
    assert len({tuple(prompt) for prompt in prompts}) == 5
    assert all(len(prompt) == 20 and max(prompt) < 1000 for prompt in prompts)
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in completions.asked)
    assert found.to_json()["mean_ms_per_token"] == sum(m.ms_per_token for m in found.measured) / 3
    assert found.to_json()["runner"] == "v1"
    again = run(completions, Job(input_len=20, output_len=6))
    assert [body["prompt"] for body in completions.asked[5:]] == prompts
    assert again.job == found.job


def test_only_the_time_between_first_and_last_token_counts() -> None:
    times = iter([[(10.0, 1), (10.5, 3), (11.0, 5)]])
    found = measure(
        lambda *_: iter(next(times)),
        Job(4, 5, 0, (42,)),
        model="m",
        where="here",
        runner="v2",
        progress=lambda _: None,
    )
    assert found.mean_ms == pytest.approx(250.0)


def test_a_short_answer_is_no_measurement(completions: Server) -> None:
    completions.lacking = 2
    with pytest.raises(UserError, match="4 tokens came where 6 were asked for"):
        run(completions, Job(20, 6))


def test_an_answer_in_one_piece_is_no_measurement() -> None:
    with pytest.raises(UserError, match="came at once"):
        measure(
            lambda *_: iter([(1.0, 6)]),
            Job(4, 6, 0),
            model="m",
            where="here",
            runner=None,
            progress=lambda _: None,
        )


def test_a_server_that_refuses_is_one_sentence(completions: Server) -> None:
    ask, _ = server(url(completions), None, 10.0)
    completions.status = 400
    with pytest.raises(UserError, match="refused the request"):
        list(ask([1], 2, 42))
    with pytest.raises(UserError, match="does not list its models"):
        server(url(completions), None, 10.0)
    with pytest.raises(UserError, match="does not list its models"):
        server("http://127.0.0.1:9", None, 10.0)


def test_lengths_that_leave_nothing_are_refused(completions: Server) -> None:
    for job, said in (
        (Job(0, 6), "--input-len 0: give 1 to"),
        (Job(10**12, 6), "--input-len 1000000000000: give"),
        (Job(20, 1), "--output-len 1: give 2 to"),
        (Job(20, 10**12), "--output-len 1000000000000: give"),
        (Job(20, 6, -1), "--warmups -1: give 0 to"),
        (Job(20, 6, 10**9), "--warmups 1000000000: give"),
        (Job(20, 6, 0, (42, -1)), "--seed -1: give 0 to"),
        (Job(20, 6, 0, (1 << 64,)), "--seed 18446744073709551616: give"),
        (Job(20, 6, 0, ()), "without a seed"),
        (Job(20, 6, vocabulary=0), "at least one token id"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            run(completions, job)
    assert completions.asked == []


def test_what_a_server_says_is_part_of_one_sentence(
    completions: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, _ = server(url(completions), None, 10.0)
    page = b"<html>\n\x1b[2J<body>\r\n\xff</html>"
    event = b'data: {"error": "engine\\ndied \\u001b[2J"}\n\n'
    for status, content, said in (
        (500, page, "<html> \ufffd[2J<body> \ufffd</html>"),
        (200, event, "engine died \ufffd[2J"),
    ):
        completions.status = status
        monkeypatch.setattr(Handler, "do_POST", lambda self, c=content: self.answer(c))
        with pytest.raises(UserError) as failed:
            list(ask([1], 2, 42))
        assert said in str(failed.value)
        assert str(failed.value).isprintable()


def test_the_servers_key_is_sent_and_never_told(
    completions: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    answer = Handler.answer

    def seen(self: Handler, content: bytes) -> None:
        keys.append(self.headers["Authorization"])
        answer(self, content)

    monkeypatch.setattr(Handler, "answer", seen)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-local-1\n")
    run(completions, Job(20, 6, 0, (42,)))
    assert set(keys) == {"Bearer sk-local-1"}
    completions.status = 401
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        server(url(completions), None, 10.0)
    address = url(completions).replace("//", "//somebody:secret@")
    with pytest.raises(UserError, match="does not list its models") as failed:
        server(address, None, 10.0)
    assert "secret" not in str(failed.value)
    ask, _ = server(address, "tiny", 10.0)
    monkeypatch.setattr(
        Handler, "do_POST", lambda self: answer(self, b"Incorrect API key: sk-local-1")
    )
    with pytest.raises(UserError, match=r"401: Incorrect API key: \*\*\*") as failed:
        list(ask([1], 2, 42))
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    "event",
    [
        "[]",
        '"x"',
        '{"choices": [5], "usage": {"completion_tokens": true}}',
        '{"choices": [5]}',
        "[" * 100_000,
    ],
)
def test_events_of_another_shape_are_one_sentence(
    completions: Server, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    ask, _ = server(url(completions), None, 10.0)
    monkeypatch.setattr(Handler, "do_POST", lambda self: self.answer(f"data: {event}\n\n".encode()))
    with pytest.raises(UserError, match="does not stream as"):
        list(ask([1], 2, 42))


def test_an_address_that_is_none_is_one_sentence() -> None:
    with pytest.raises(UserError, match="is no address"):
        server("http://\0", "tiny", 10.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeout", "inf"], "--timeout inf: give seconds"),
        (["--timeout", "0"], "--timeout 0: give seconds"),
        (["--out", "."], "is a folder"),
        (["--input-len", "-1"], "--input-len -1: give"),
        (["--model", ""], "--model is empty"),
        (["--base-url", ""], "--base-url is empty"),
    ],
)
def test_options_are_looked_at_before_anything_is_measured(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["decode-latency", "--base-url", "http://127.0.0.1:9", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_vllm_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what vLLM logs of it does not go among the results."""
    said = """1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: 'm'. [type=value_error]
    For further information visit https://errors.pydantic.dev/2/v/value_error"""

    class Refusing:
        def __init__(self, **_: object) -> None:
            raise ValueError(said)

    fake = ModuleType("vllm")
    fake.LLM, fake.SamplingParams = Refusing, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "x")
    monkeypatch.delenv("VLLM_LOGGING_STREAM")
    with pytest.raises(UserError) as failed:
        in_process("m", None, 8, {})
    assert str(failed.value) == (
        "vLLM cannot load m (Invalid repository ID or local directory specified: 'm'): check "
        "--model and --engine-args."
    )
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_model_len": 9}, "max_model_len, which the measurement sets itself: leave it out"),
        (
            {"model": "n", "max_num_seqs": 2, "seed": 1},
            "max_num_seqs, model, which the measurement sets itself: leave them out",
        ),
    ],
)
def test_what_the_measurement_sets_is_not_taken_from_the_user(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        in_process("m", None, 8, given)
