"""Stands for the ``vllm`` command: serves a health page, and writes a benchmark's result.

Everything it is asked is appended to ``$FAKE_LOG``, one JSON line per call with its process id.
``$FAKE_FAULT`` names what goes wrong: ``start`` (the server ends at once), ``sick`` (it is never
healthy), ``bench`` (the benchmark fails), ``requests`` (one request fails), ``nothing`` (no result
is written), ``hang`` (the benchmark lasts), ``dies`` (the server ends during the benchmark).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FAULT = os.environ.get("FAKE_FAULT")
FACTOR = 1.1
"""How much faster the ON arm is."""


def record(**entry: object) -> None:
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], **entry}) + "\n")


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(9)
        off = "-cc.pass_config.fuse_allreduce_rms=False" in sys.argv
        body = b"off" if off else b"on"
        self.send_response(503 if FAULT == "sick" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve() -> None:
    if FAULT == "start":
        print("ValueError: no such backend\nshutting down")
        sys.exit(3)
    # A worker, as a real server has; it does not end with its parent by itself.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    record(worker=worker.pid, report=os.environ.get("NORMPORT_CAR_REPORT"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


def bench() -> None:
    record()
    saved = "--save-result" in sys.argv
    if FAULT == "hang" and saved:
        time.sleep(600)
    if FAULT == "bench" and saved:
        print("Traceback\nRuntimeError: initial test run failed")
        sys.exit(1)
    url = option("--base-url")
    if FAULT == "dies" and saved:
        try:
            urllib.request.urlopen(f"{url}/die")
        except OSError:
            time.sleep(0.2)
        sys.exit(1)
    arm = urllib.request.urlopen(f"{url}/health").read().decode()
    if not saved or FAULT == "nothing":
        return
    prompts, output = int(option("--num-prompts")), int(option("--random-output-len"))
    factor = FACTOR if arm == "on" else 1.0
    result = {
        "model_id": option("--model"),
        "num_prompts": prompts,
        "request_rate": "inf",
        "max_concurrency": int(option("--max-concurrency")),
        "duration": 2.0 / factor,
        "completed": prompts - (FAULT == "requests"),
        "failed": int(FAULT == "requests"),
        "total_input_tokens": prompts * int(option("--random-input-len")),
        "total_output_tokens": prompts * output,
        "output_throughput": prompts * output / 2.0 * factor,
        "mean_ttft_ms": 100 / factor,
        "mean_tpot_ms": 10 / factor,
        "mean_e2el_ms": 1000 / factor,
    }
    (Path(option("--result-dir")) / option("--result-filename")).write_text(json.dumps(result))


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else bench()
