"""A small OpenAI-compatible server whose faults are scripted, one per request."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny"


class FakeServer(ThreadingHTTPServer):
    """Answers each prompt by ``answer``; ``faults`` are taken from the front, one a request.

    A fault is ``None`` (none), a status, ``"truncate"`` (ends without the last events),
    ``"cut"`` (closes in the middle of a chunk), ``"silent"`` (sends nothing until ``released``),
    ``"garbage"`` (an event that is not JSON), ``"shape"`` (one that is not OpenAI's),
    ``"error"`` (an error as an event), ``"whole"`` (an answer that is no stream) or ``"half"`` (one
    that breaks off). ``wants``: the ``Authorization`` that it answers to;
    ``usage``: what it says of tokens instead of their numbers; ``raw``: it writes UTF-8 as it is.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.faults: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.models: Any = {"data": [{"id": MODEL}]}
        self.count_tokens = True
        self.usage: Any = None
        self.wants: str | None = None
        self.raw = False
        self.released = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away, which some of the tests are about."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def prompts(self) -> list[str]:
        return [
            body["messages"][0]["content"] if "messages" in body else body["prompt"]
            for body in self.bodies
        ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        sent = self.headers["Authorization"] or ""
        if self.server.wants not in (None, sent):
            said = base64.b64decode(sent.split()[1]).decode() if "Basic" in sent else sent
            self._json(401, {"error": {"message": f"no: {said}"}})
        elif self.path == "/v1/models" and self.server.models is not None:
            self._json(200, self.server.models)
        elif self.path == "/version":
            self._json(200, {"version": "0.29.0"})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self._json(fault, {"error": {"message": f"scripted\n{fault}"}})
            return
        if fault == "silent":
            self.server.released.wait()
        chat = self.path == "/v1/chat/completions" and fault != "not chat"
        text = self.server.answer(self.server.prompts[-1])
        if fault in ("whole", "half"):
            said = {"message": {"content": text}} if chat else {"text": text}
            usage = {"prompt_tokens": 7, "completion_tokens": 4}
            whole = {"choices": [{**said, "finish_reason": "length"}], "usage": usage}
            self._json(200, whole, half=fault == "half")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            self._event({"choices": [{"delta": {"content": part}} if chat else {"text": part}]})
            if fault == "cut":
                self.wfile.write(b"ff\r\ndata: {")
                self.close_connection = True
                return
            if fault == "garbage":
                self._chunk(b"data: {not json\n\n")
            if fault == "shape":
                self._event({"choices": [3]})
            if fault == "error":
                self._event({"error": {"message": "EngineCore died"}})
        if fault != "truncate":
            self._event({"choices": [{"text": "", "delta": {}, "finish_reason": "stop"}]})
            if self.server.count_tokens:
                prompt, output = len(self.server.prompts[-1].split()), len(text.split())
                counted = {"prompt_tokens": prompt, "completion_tokens": output}
                usage = counted if self.server.usage is None else self.server.usage
                self._event({"choices": [], "error": None, "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        text = json.dumps(event, ensure_ascii=not self.server.raw)
        self._chunk(b"data: " + text.encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _json(self, status: int, value: object, *, half: bool = False) -> None:
        data = json.dumps(value, indent=1).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        self.close_connection = half


@contextmanager
def serving(answer: Callable[[str], str]) -> Iterator[FakeServer]:
    """A server that runs while the block does."""
    server = FakeServer(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
