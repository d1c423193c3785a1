"""The process that sees to a proof; started by ``normport.tools.proof``, never by hand.

One JSON request comes on standard input, one JSON line per case goes to standard output, in the
order in which the cases finish. torch is loaded once; each case is then compared in a child forked
from here (``proof_session``), which has the norms run in confined children of its own. Nothing of
the norms' code is executed here or where they are compared. Results are single-threaded.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from normport.codemods.model import CallForm, ProofCase

JOBS = 4
# A case that is over its time ends itself; what does not is ended after so many seconds more.
GRACE_S = 15.0


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        import torch
    except ImportError as error:
        _write(out, {"no_torch": str(error)})
        return
    torch.set_num_threads(1)
    # Loaded before anything is forked, so once.
    from normport.tools.proof_session import load_tree

    root = None if request["root"] is None else Path(request["root"])
    if root is not None:
        reason = load_tree(root, request["timeout_s"])
        if reason is not None:
            _write(out, {"partner": reason})
            return
    _run_all([_case(case) for case in request["cases"]], root, request["timeout_s"], out)


def _case(fields: dict[str, Any]) -> ProofCase:
    forms = tuple(CallForm(**form) for form in fields["forms"])
    return ProofCase(**{**fields, "forms": forms})


@dataclass
class _Child:
    index: int
    pid: int
    deadline: float
    answer: bytearray = field(default_factory=bytearray)


def _run_all(cases: list[ProofCase], root: Path | None, timeout_s: float, out: IO[str]) -> None:
    waiting = list(range(len(cases)))[::-1]
    running: dict[int, _Child] = {}
    while waiting or running:
        while waiting and len(running) < min(JOBS, os.cpu_count() or 1):
            index = waiting.pop()
            fd, pid = _fork(index, cases[index], root, timeout_s, [out.fileno(), *running])
            running[fd] = _Child(index, pid, time.monotonic() + timeout_s + GRACE_S)
        patience = min(child.deadline for child in running.values()) - time.monotonic()
        ready, _, _ = select.select(list(running), [], [], max(0.0, patience))
        for fd in ready:
            chunk = os.read(fd, 1 << 16)
            running[fd].answer += chunk
            if not chunk or chunk.endswith(b"\n"):
                _write(out, _collect(running.pop(fd)))
                os.close(fd)
        for fd, child in list(running.items()):
            if time.monotonic() >= child.deadline:
                _write(out, _collect(running.pop(fd)))
                os.close(fd)


def _collect(child: _Child) -> dict[str, Any]:
    os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    if child.answer.endswith(b"\n"):
        answer: dict[str, Any] = json.loads(child.answer)
        return answer
    code = os.waitstatus_to_exitcode(status)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    return {"index": child.index, "failed": f"what compares ended {how} before it answered"}


def _fork(
    index: int, case: ProofCase, root: Path | None, timeout_s: float, others: list[int]
) -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    try:
        from normport.tools.confine import end_with_parent
        from normport.tools.proof_session import Session

        for fd in (read, *others):
            os.close(fd)
        end_with_parent()
        answer = Session(case, root, timeout_s).run()
        with os.fdopen(write, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps({"index": index, **answer}) + "\n")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _write(out: IO[str], answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
