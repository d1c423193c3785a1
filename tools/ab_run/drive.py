"""Carries out a plan, turn by turn; what is measured already is not measured again."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from normport.tools.ab_report.configuration import SIDECAR
from normport.tools.ab_run.plan import RESULT, Load, Plan
from normport.tools.ab_run.processes import check_port, last_line, running
from normport.tools.errors import UserError
from normport.tools.evidence_files import read_object, write_json

PLAN = "plan.json"
POLL_S = 0.2


@dataclass(frozen=True)
class Limits:
    """Longest waits, in seconds: for a server to be healthy, and for one benchmark to end."""

    start_s: float = 1800.0
    bench_s: float = 14400.0
    stop_s: float = 30.0


def prepare(plan: Plan, *, resume: bool) -> None:
    """Claim ``plan.out``. UserError where it has results of another plan, or any without resume.

    A run that ended before its first server answered, as with a wrong command, claims nothing.
    """
    path = plan.out / PLAN
    # Through JSON, which has lists where a plan has tuples.
    identity = json.loads(json.dumps(plan.identity()))
    if path.exists() and any(each != path for each in plan.out.rglob("*.json")):
        if not resume:
            raise UserError(f"{plan.out} has results: go on by --resume, or name another --out.")
        former = read_object(path, "a plan that `normport ab-run` wrote")
        for name in sorted(former.keys() | identity.keys()):
            if former.get(name) != identity.get(name):
                raise UserError(
                    f"{plan.out} was measured with another plan ({name} differs); name another "
                    "folder with --out."
                )
    write_json(path, identity)


def carry_out(plan: Plan, limits: Limits, tell: Callable[[str], None]) -> int:
    """Measure whatever is missing and return how many results that was.

    tell: gets one line for each step. UserError where a server or a benchmark fails; what was
    measured is kept.
    """
    turns = [(arm, repeat) for repeat in range(1, plan.repeats + 1) for arm in plan.arms]
    total = len(turns) * len(plan.loads)
    todo = {
        turn: [load for load in plan.loads if not measured(plan.results(*turn, load), load)]
        for turn in turns
    }
    missing = sum(map(len, todo.values()))
    done = total - missing
    if done:
        tell(f"{done} of {total} results are there already")
    for arm, repeat in turns:
        loads = todo[arm, repeat]
        if not loads:
            continue
        with ExitStack() as stack:
            server = _serve(plan, arm, repeat, limits, tell, stack)
            tell(f"{arm}, repeat {repeat}: warming up")
            folder = plan.folder(arm, repeat)
            _bench(plan.warm_up(arm), folder / "warm-up.log", server, limits)
            for load in loads:
                done += 1
                tell(f"[{done}/{total}] {arm}, repeat {repeat}: {load.label}")
                _measure(plan, arm, repeat, load, server, limits)
    return missing


def measured(folder: Path, load: Load) -> bool:
    """Whether ``folder`` has a whole result in which no request failed."""
    try:
        result = json.loads((folder / RESULT).read_bytes())
    except (OSError, ValueError):
        return False  # none, or one that was being written when the run was ended
    return isinstance(result, dict) and result.get("completed") == load.num_prompts


def _serve(
    plan: Plan,
    arm: str,
    repeat: int,
    limits: Limits,
    tell: Callable[[str], None],
    stack: ExitStack,
) -> subprocess.Popen[bytes] | None:
    command, url = plan.serve(arm), plan.url(arm)
    if command is None:
        tell(f"{arm}, repeat {repeat}: using {url}")
        _wait(url, None, None, limits)
        return None
    address = urlsplit(url)
    check_port(address.hostname or plan.host, address.port or 80)
    tell(f"{arm}, repeat {repeat}: starting the server")
    log = plan.folder(arm, repeat) / "serve.log"
    if arm == "on":
        _keep(plan.rewrites(repeat))
    environment = plan.environment(arm, repeat)
    server = stack.enter_context(_started(command, log, environment, limits))
    _wait(url, server, log, limits)
    return server


def _keep(folder: Path) -> None:
    """Move what a former start of this turn wrote aside; this one's graphs come from its cache."""
    if folder.exists():
        taken = sum(1 for _ in folder.parent.glob(f"{folder.name}-before-*"))
        folder.rename(folder.with_name(f"{folder.name}-before-{taken + 1}"))


@contextmanager
def _started(
    command: list[str], log: Path, environment: dict[str, str], limits: Limits
) -> Iterator[subprocess.Popen[bytes]]:
    if shutil.which(command[0]) is None:
        raise UserError(f"There is no command {command[0]} here; name vLLM's with --vllm.")
    log.parent.mkdir(parents=True, exist_ok=True)
    with running(command, log, environment, limits.stop_s) as child:
        yield child


def _wait(
    url: str, server: subprocess.Popen[bytes] | None, log: Path | None, limits: Limits
) -> None:
    """Until the server says that it is healthy."""
    deadline = time.monotonic() + limits.start_s
    while True:
        if server is not None and server.poll() is not None:
            assert log is not None
            raise UserError(
                f"The server ended with status {server.returncode} before it was healthy: "
                f"{last_line(log)}; its log is {log}."
            )
        try:
            if _is_healthy(url):
                return
        except httpx.TransportError:
            if server is None:
                raise UserError(f"{url} does not answer: start that server first.") from None
        if time.monotonic() > deadline:
            where = "" if log is None else f"; its log is {log}"
            raise UserError(f"{url} was not healthy within {limits.start_s:g} s{where}.")
        time.sleep(POLL_S)


def _is_healthy(url: str) -> bool:
    """Whether the server says so; of one without that page, whether it lists its models."""
    for page in ("health", "v1/models"):
        answer = httpx.get(f"{url}/{page}", timeout=5, verify=False)
        if answer.status_code not in (404, 405):
            # What a key is wanted for is there; the benchmark takes it from its environment.
            return answer.is_success or answer.status_code in (401, 403)
    return False


def _measure(
    plan: Plan,
    arm: str,
    repeat: int,
    load: Load,
    server: subprocess.Popen[bytes] | None,
    limits: Limits,
) -> None:
    folder = plan.results(arm, repeat, load)
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / RESULT
    result.unlink(missing_ok=True)
    write_json(folder / SIDECAR, plan.sidecar(arm, load))
    log = folder / "bench.log"
    _bench(plan.bench(arm, repeat, load), log, server, limits)
    if measured(folder, load):
        return
    if not result.exists():
        raise UserError(f"The benchmark wrote no {result}: {last_line(log)}; its log is {log}.")
    kept = result.rename(folder / "incomplete.txt")
    raise UserError(
        f"Not all {load.num_prompts} requests of {load.label} ({arm}) completed; what the "
        f"benchmark wrote is {kept}, its log {log}."
    )


def _bench(
    command: list[str], log: Path, server: subprocess.Popen[bytes] | None, limits: Limits
) -> None:
    with _started(command, log, {}, limits) as bench:
        try:
            status = bench.wait(limits.bench_s)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"The benchmark did not end within {limits.bench_s:g} s; its log is {log}."
            ) from None
    if server is not None and server.poll() is not None:
        raise UserError(
            f"The server ended with status {server.returncode} during a benchmark; its log is "
            f"{log.parent}{'' if log.name == 'warm-up.log' else '/..'}/serve.log."
        )
    if status:
        raise UserError(
            f"The benchmark failed with status {status}: {last_line(log)}; its log is {log}."
        )
