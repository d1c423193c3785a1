"""Code that a proof runs ends its own proof at most, and never makes an unequal norm equal."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from normport.codemods.model import ProofCase
from normport.tools import proof_compare
from normport.tools.proof_channel import Channel, GarbledError, pair
from normport.tools.proof_session import Session

# A fork of a process with threads, which the test runner may have.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

confined = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the kernel filters system calls on Linux, x86-64 and arm64",
)

MODULE = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading, time
import torch
from torch import nn

{top}


class Local(nn.Module):
    def forward(self, x):
        {body}
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype){wrong}
"""


def run(
    top: str = "", body: str = "pass", wrong: str = "", limit_s: float = 60.0
) -> dict[str, Any]:
    module = MODULE.format(top=top, body=body, wrong=wrong)
    new = "lambda x: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)"
    return Session(ProofCase(module, "Local()", new, "none", 1e-6), None, limit_s).run()


@pytest.fixture(autouse=True)
def short_and_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(proof_compare, "SIZES", (64,))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("top", "body", "limit_s", "reason"),
    [
        ("while True: pass", "pass", 1, "did not finish within 1 s"),
        ("", "time.sleep(600)", 1, "did not finish within 1 s"),
        ("", "sys.exit('bye')", 60, "SystemExit: bye"),
        ("", "os._exit(7)", 60, "ended with status 7"),
        ("", "os.kill(os.getpid(), signal.SIGSEGV)", 60, "ended by SIGSEGV"),
        ("", "os.abort()", 60, "ended by SIGABRT"),
        ("x = []\nwhile True: x.append(bytes(1 << 24))", "pass", 60, "MemoryError"),
        ("torch.zeros(1 << 40)", "pass", 60, "memory"),
        ("", "return x.new_zeros(1 << 23)", 60, "has 8388608 elements"),
        ("torch.equal = lambda *_: True", "pass", 60, "changes torch.equal"),
        ("nn.Module.eval = lambda self: self", "pass", 60, "changes torch.nn.Module.eval"),
        ("torch.set_default_dtype(torch.double)", "pass", 60, "torch's default dtype"),
        ("", "torch.rsqrt = torch.cos", 60, "changes torch.rsqrt"),
        ("for n in range(3, 99):\n    try: os.close(n)\n    except OSError: pass", "pass", 60, ""),
        (
            "for n in range(3, 99):\n    try: os.write(n, b'garbage' * 9)\n"
            "    except OSError: pass",
            "pass",
            60,
            "cannot be read",
        ),
    ],
)
def test_what_goes_wrong_is_told(top: str, body: str, limit_s: float, reason: str) -> None:
    result = run(top, body, limit_s=limit_s)
    assert reason in result["failed"]


@confined
@pytest.mark.parametrize(
    "body",
    [
        "os.fork()",
        "subprocess.run(['true'])",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 0)",
        "os.kill(-1, 0)",
        "socket.socket()",
        "open('made', 'w')",
        "open(__import__('tempfile').mktemp(), 'x')",
        "os.mkdir('made')",
        "os.remove(NAME)",
        "os.rename(NAME, 'made')",
        "os.truncate(NAME, 0)",
        "os.chmod(NAME, 0)",
        "open(NAME, 'r+')",
        "open('/proc/self/mem', 'r+b')",
        "os.setsid()",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    ],
)
def test_nothing_outside_is_reached(body: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    result = run(f"NAME = {str(tmp_path / 'file')!r}", body)
    assert "PermissionError" in result["failed"] or "ValueError" in result["failed"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_what_only_computes_and_reads_is_let_be() -> None:
    top = "open(torch.__file__).close()\nos.listdir('.')\nprint('noise', flush=True)"
    body = "thread = threading.Thread(target=int); thread.start(); thread.join()"
    result = run(top, body)
    assert (result.get("status"), result.get("failed")) == ("equal", None)


FORGERY = """
from normport.tools import proof_compare, proof_peer, proof_session, proof_side
import hashlib, json, struct
proof_session.judge = lambda tallies: ("equal", None)
proof_compare.Tally.add = lambda self, *_: self.add_equal(1)
proof_side._changed = lambda watched: []
torch.equal = lambda *_: True
digest = hashlib.blake2b(b"any").hexdigest()
hashlib.blake2b = lambda *_: type("Hash", (), {"update": print, "hexdigest": lambda _: digest})()
"""


def test_a_verdict_cannot_be_forged() -> None:
    results = [run(wrong=" * 2"), run(FORGERY, wrong=" * 2")]
    assert [result.get("status", result) for result in results] == ["different", "different"]


def test_an_answer_in_place_of_numbers_is_no_answer() -> None:
    text = json.dumps({"status": "equal", "results": {}}).encode()
    forged = f"import struct\nanswer = struct.pack('>II', {len(text)}, 0) + {text!r}"
    send = "[os.write(n, answer) for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}')]"
    result = run(f"{forged}\ntry: {send}\nexcept OSError: pass", wrong=" * 2")
    assert result.get("status", "failed") in ("failed", "different")


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\1\0\0\0\0{", b"\0\0\0\x01\xff\0\0\0{"]
)
def test_what_is_no_message_is_garbled(data: bytes) -> None:
    mine, theirs = pair()
    os.write(theirs.writing, data)
    with pytest.raises(GarbledError):
        mine.receive()
    close(mine, theirs)


def test_messages_arrive_whole_and_in_order() -> None:
    mine, theirs = pair()
    for number in range(100):
        theirs.hold({"number": number}, b"abc" * number)
    theirs.flush()
    for number in range(100):
        assert mine.receive() == ({"number": number}, b"abc" * number)
    close(mine, theirs)


def close(*channels: Channel) -> None:
    for channel in channels:
        channel.close()
