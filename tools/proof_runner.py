"""The process that runs old and new norms; started by ``normport.tools.proof``, never by hand.

One JSON request comes on standard input, one JSON line per case goes to standard output, in the
order in which the cases finish. torch and the tree's norms are loaded once; each case then runs
in a child forked from here, with its own time and memory limit, so that a case which hangs, exits,
crashes or changes torch's state cannot touch another. Results are single-threaded.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normport.tools.source_norms import Norms

# What a case may allocate on top of what torch already holds.
MEMORY = 1 << 30
JOBS = 4


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
    partner = _Partner(request["root"])
    if partner.reason is not None:
        _write(out, {"partner": partner.reason})
        return
    _run_all(request["cases"], partner, request["timeout_s"], out)


class _Partner:
    """The norms that replacements are made of; ``reason`` says why there are none."""

    norms: Norms
    reason: str | None = None

    def __init__(self, root: str | None) -> None:
        from normport.kernels import reference
        from normport.tools.source_norms import Norms, load_norms

        if root is None:
            self.norms = Norms(reference.RMSNorm, reference.GemmaRMSNorm)
            return
        try:
            self.norms = load_norms(Path(root))
        except BaseException as error:  # the tree's own code ran: anything may come out of it
            self.reason = _describe(error)


@dataclass
class _Child:
    index: int
    pid: int
    deadline: float
    answer: bytearray = field(default_factory=bytearray)


def _run_all(
    cases: list[dict[str, Any]], partner: _Partner, timeout_s: float, out: IO[str]
) -> None:
    waiting = list(range(len(cases)))[::-1]
    running: dict[int, _Child] = {}
    while waiting or running:
        while waiting and len(running) < min(JOBS, os.cpu_count() or 1):
            index = waiting.pop()
            fd, pid = _fork(index, cases[index], partner, out, list(running))
            running[fd] = _Child(index, pid, time.monotonic() + timeout_s)
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
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                del running[fd]
                os.close(fd)
                reason = f"it did not finish within {timeout_s:g} s"
                _write(out, {"index": child.index, "failed": reason})


def _collect(child: _Child) -> dict[str, Any]:
    # The case may have left threads or processes that hold it up.
    os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    if child.answer:
        answer: dict[str, Any] = json.loads(child.answer)
        return answer
    code = os.waitstatus_to_exitcode(status)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    return {"index": child.index, "failed": f"its process ended {how} before it answered"}


def _fork(
    index: int, case: dict[str, Any], partner: _Partner, out: IO[str], others: list[int]
) -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    for fd in (read, out.fileno(), *others):
        os.close(fd)
    os.dup2(0, 1)
    os.dup2(0, 2)
    _limit_memory()
    try:
        answer = run_case(case, partner.norms)
    except BaseException as error:  # the case's own code ran: anything may come out of it
        answer = {"failed": _describe(error)}
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps({"index": index, **answer}) + "\n")
    os._exit(0)


def _limit_memory() -> None:
    statm = Path("/proc/self/statm")
    if statm.exists():
        held = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _describe(error: BaseException) -> str:
    if type(error).__module__.startswith("normport."):
        return str(error)
    text = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    return text if len(text) <= 300 else text[:297] + "..."


def _write(out: IO[str], answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


def run_case(case: dict[str, Any], norms: Norms) -> dict[str, Any]:
    """Build and compare both norms of one case; the keys of ``case`` are those of ``ProofCase``."""
    import torch

    from normport.tools.proof_session import Session

    module = ModuleType("normport_proof_case")
    sys.modules[module.__name__] = module
    exec(compile(case["module"], "<case>", "exec", dont_inherit=True), vars(module))
    new = {"torch": torch, "RMSNorm": norms.rms_norm, "GemmaRMSNorm": norms.gemma_rms_norm}
    old = vars(module) | {"torch": torch}
    eps = None if case["eps"] is None else float(case["eps"])
    session = Session(case["old"], old, case["new"], new, case["weight"], eps)
    with torch.no_grad():
        return session.run()


if __name__ == "__main__":
    main()
