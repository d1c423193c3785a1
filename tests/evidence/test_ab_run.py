"""``normport ab-run``: the reference's commands, the turns of the arms, and children that end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_sources import Command
from fake_server import serving
from test_ab_report_runs import a_rewrite_file

from normport.tools.ab_run.processes import running

FAKE = Path(__file__).with_name("fake_vllm.py")

# As the reference report has them.
SERVE = """
    vllm serve <MODEL_PATH> --tensor-parallel-size 4 \\
      --host 127.0.0.1 --port 39720 --served-model-name <NAME> \\
      --max-model-len 5184 --max-num-seqs 64 --gpu-memory-utilization 0.8 \\
      --no-enable-chunked-prefill --no-enable-prefix-caching \\
      -ac.backend FLASH_ATTN -cc.cudagraph_mode=FULL_DECODE_ONLY --trust-remote-code
"""
OFF = " -cc.pass_config.fuse_allreduce_rms=False"
BENCH = """
    vllm bench serve --backend openai-chat --base-url http://127.0.0.1:39720 \\
      --model <NAME> --tokenizer <MODEL_PATH> --trust-remote-code \\
      --dataset-name random --random-input-len 4096 --random-output-len 1024 \\
      --random-range-ratio 0 --num-prompts <BS> --request-rate inf \\
      --max-concurrency <BS> --endpoint /v1/chat/completions --temperature 0 \\
      --seed 0 --ignore-eos --save-detailed --save-result \\
      --result-dir <RESULT_DIR> --result-filename result.json \\
      --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99
"""
STANDALONE = """
    vllm serve <MODEL_PATH> --tensor-parallel-size 2 --dtype bfloat16 \\
      --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 8192 \\
      --gpu-memory-utilization 0.80 --cudagraph-capture-sizes <CAPTURED> \\
      --no-enable-chunked-prefill --no-enable-prefix-caching --no-enable-dbo \\
      --async-scheduling -ac.backend FLASH_ATTN -cc.mode=3 \\
      -cc.cudagraph_mode=FULL_DECODE_ONLY --trust-remote-code
"""


def text(template: str, **values: object) -> str:
    for name, value in {"MODEL_PATH": "m/Qwen", "NAME": "Q", **values}.items():
        template = template.replace(f"<{name}>", str(value))
    return " ".join(template.replace("\\\n", " ").split())


def dry(normport: Command, *options: str) -> tuple[list[str], list[str]]:
    """The commands and the comments of a dry run."""
    ran = normport("ab-run", "m/Qwen", "--out", "R", "--dry-run", *options)
    assert (ran.status, ran.error) == (0, "")
    lines = ran.out.splitlines()
    return [li for li in lines if li[0] != "#"], [li for li in lines if li[0] == "#"]


def test_the_matrix_of_the_reference(normport: Command, folder: Path) -> None:
    commands, _ = dry(normport, "--name", "Q", "--repeats", "2")
    expected = []
    for repeat in (1, 2):
        for arm in ("on", "off"):
            turn = [text(SERVE) + (OFF if arm == "off" else "")]
            for lengths in ((4096, 1024), (2500, 1500)):
                for batch in (1, 4, 16, 64):
                    template = BENCH.replace("4096", str(lengths[0]))
                    template = template.replace("1024", str(lengths[1]))
                    place = f"R/{arm}/repeat-{repeat}/{lengths[0]}-{lengths[1]}-bs{batch}"
                    turn.append(text(template, BS=batch, RESULT_DIR=place))
            warm_up = turn[4].split(" --save-detailed")[0]  # 4096/1024, 64 requests
            expected += [turn[0], warm_up, *turn[1:]]
    assert commands == expected
    assert not list(folder.glob("R*"))


def test_the_standalone_case_of_the_reference(normport: Command, folder: Path) -> None:
    commands, _ = dry(normport, "--case", "standalone", "--repeats", "1")
    captured = " ".join(map(str, [*range(1, 33), 64]))
    serve = text(STANDALONE, CAPTURED=captured)
    bench = [
        text(
            BENCH.replace("4096", "2500")
            .replace("1024", "1500")
            .replace("--request-rate inf", "--request-rate 4")
            .replace("--num-prompts <BS>", "--num-prompts 20")
            .replace(":39720", ":8000"),
            BS=4,
            NAME="m/Qwen",
            RESULT_DIR=f"R/{arm}/repeat-1/2500-1500-bs4",
        )
        for arm in ("on", "off")
    ]
    warm_up = bench[0].split(" --save-detailed")[0]
    assert commands == [serve, warm_up, bench[0], serve + OFF, warm_up, bench[1]]


def test_a_third_arm(normport: Command, folder: Path) -> None:
    third = ("--other-name", "sglang", "--other-url", "http://h:1/v1", "--other-model", "q")
    commands, comments = dry(normport, "--case", "standalone", "--repeats", "1", *third)
    assert [line for line in comments if "repeat" in line and "with" not in line] == [
        "# on, repeat 1 of 1",
        "# off, repeat 1 of 1",
        "# sglang, repeat 1 of 1",
    ]
    assert "# http://h:1 must be running" in comments
    assert "--base-url http://h:1 --model q --tokenizer m/Qwen" in commands[-1]
    started, _ = dry(
        normport, "--case", "standalone", "--repeats", "1", *third, "--other-serve", "sg --p 1"
    )
    assert started[6] == "sg --p 1"


def test_the_on_arm_is_told_where_to_report(
    normport: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    _, comments = dry(normport, "--repeats", "1")
    assert [line for line in comments if "with" in line] == [
        "# with NORMPORT_CAR_REPORT=R/on/repeat-1/rewrites",
        "# with VLLM_CACHE_ROOT=R/cache/on",
        "# with VLLM_CACHE_ROOT=R/cache/off",
    ]
    monkeypatch.setenv("VLLM_CACHE_ROOT", "mine")
    _, comments = dry(normport, "--repeats", "1")
    assert not any("VLLM_CACHE_ROOT" in line for line in comments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lengths", "4096"), "--lengths 4096 is not INPUT/OUTPUT"),
        (("--lengths", "0/5"), "--lengths 0/5 is not INPUT/OUTPUT"),
        (("--case", "standalone", "--batch-size", "4"), "are for the matrix"),
        (("--vllm", ""), "--vllm is empty"),
        (("--serve-flags", "'"), '--serve-flags "\'" is not a command'),
        (("--serve-flags", "-cc '{\"mode\": 3}'"), "-cc does not merge with the OFF arm's"),
        (("--serve-flags=-cc={}",), "-cc={} does not merge with"),
        (("--serve-flags=--compilation_config.mode=3",), "does not merge with"),
        (
            ("--serve-flags=-cc.mode=3 -cc.pass_config.fuse_allreduce_rms=False",),
            "is what ON and OFF differ in",
        ),
        (("--other-url", "http://x"), "A third arm needs a name"),
        (("--other-name", "on"), "--other-name on names a folder"),
        (("--other-name", "a/b"), "--other-name a/b names a folder"),
        (("--other-name", "x"), "needs --other-url and --other-model"),
        (("--other-name", "x", "--other-url", "h:1", "--other-model", "q"), "h:1 is no URL"),
    ],
)
def test_options_that_do_not_fit(
    normport: Command, folder: Path, options: tuple[str, ...], said: str
) -> None:
    ran = normport("ab-run", "m", "--out", "R", "--dry-run", *options)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What the stand-in was asked so far."""
    path = folder / "log"
    monkeypatch.setenv("FAKE_LOG", str(path))

    def entries() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return entries


Log = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def arguments(port: int) -> list[str]:
    fake = shlex.join([sys.executable, "-S", str(FAKE)])
    given = ["ab-run", "m/tiny", "--out=R s", f"--vllm={fake}", f"--port={port}"]
    return [*given, "--lengths=8/4", "--batch-size=1", "--batch-size=2", "--precision=BF16"]


@pytest.fixture
def measure(normport: Command, arguments: list[str], log: Log) -> Command:
    return lambda *options: normport(*arguments, *options)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def all_ended(entries: list[dict[str, Any]]) -> bool:
    pids = [entry[name] for entry in entries for name in ("pid", "worker") if name in entry]
    assert pids
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)  # killed, and not yet gone
    return not any(map(is_running, pids))


def results(folder: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("result.json"))


def test_turns_and_report(measure: Command, normport: Command, folder: Path, log: Log) -> None:
    ran = measure("--repeats=2")
    assert ran.status == 0, ran.error
    out = folder / "R s"
    assert len(results(out)) == 8
    served = [entry for entry in log() if "worker" in entry]
    off = [OFF.strip() in entry["arguments"] for entry in served]
    assert off == [False, True, False, True]
    assert [bool(entry["report"]) for entry in served] == [True, False, True, False]
    assert len(log()) == 4 * 4  # a server, a warm-up and two results, four times
    assert all_ended(log())
    assert json.loads((out / "on/repeat-1/8-4-bs2/cell.json").read_text()) == {
        "model": "tiny",
        "input_len": 8,
        "output_len": 4,
        "tensor_parallel_size": 4,
        "precision": "BF16",
        "batch_size": 2,
    }
    command = shlex.split(ran.out.splitlines()[-1])
    assert command[:2] == ["normport", "ab-report"]
    assert normport(*command[1:]).status == 0
    report = json.loads((folder / "ab-report/report.json").read_text())
    assert [cell["n"] for cell in report["cells"]] == ["2", "2"]
    for cell in report["cells"]:
        found = cell["changes"]
        assert found["output_throughput_tok_s"]["change_percent"] == pytest.approx(10)
        assert found["ttft_ms"]["change_percent"] == pytest.approx(100 / 1.1 - 100)


def test_a_third_arm_is_measured_and_reported(
    measure: Command, normport: Command, folder: Path, log: Log
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        other = free.getsockname()[1]
    serve = shlex.join([sys.executable, "-S", str(FAKE), "serve", "--port", str(other)])
    ran = measure(
        *("--case=matrix", "--repeats=1", "--other-name=sglang", "--other-model=sg"),
        *(f"--other-url=http://127.0.0.1:{other}", f"--other-serve={serve}"),
    )
    assert ran.status == 0, ran.error
    assert all_ended(log())
    command = shlex.split(ran.out.splitlines()[-1])
    assert command[-2:] == ["--other", "sglang=R s/sglang"]
    assert normport(*command[1:]).status == 0
    report = json.loads((folder / "ab-report/report.json").read_text())
    assert report["unmatched"] == []
    assert [case["settings"]["max_concurrency"] for case in report["standalone"]] == [1, 2]
    gains = {gain["metric"]: gain for gain in report["standalone"][0]["gains"]}
    # The third arm is as fast as ON: its stand-in is given no switch either.
    assert gains["Output throughput (tok/s)"]["on_gain_percent"] == pytest.approx(0)
    assert gains["Mean TTFT (ms)"]["off_gain_percent"] == pytest.approx(-10)


def test_going_on(measure: Command, folder: Path, log: Log) -> None:
    assert measure("--repeats=1").status == 0
    out = folder / "R s"
    done = results(out)
    asked = len(log())
    claimed = measure("--repeats=1").error
    assert claimed.endswith("has results: go on by --resume, or name another --out.\n")
    assert measure("--repeats=1", "--resume").status == 0
    assert len(log()) == asked  # nothing was missing, so nothing was started
    told = a_rewrite_file(out / "on/repeat-1/rewrites/car-rmsnorm-rank0.json")
    (out / "on/repeat-1/8-4-bs2/result.json").write_text('{"completed": 2')  # half written
    assert measure("--repeats=1", "--resume").status == 0
    new = log()[asked:]
    assert ["serve" in new[0]["arguments"], len(new)] == [True, 3]  # server, warm-up, that load
    assert results(out) == done
    # What the first start wrote is not written over: the second takes its graphs from a cache.
    assert not told.exists()
    assert list(out.rglob(told.name)) == [out / "on/repeat-1/rewrites-before-1" / told.name]
    assert "was measured with another plan (cells differs)" in (
        measure("--repeats=1", "--resume", "--precision=FP8").error
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("start", "The server ended with status 3 before it was healthy: ValueError: no such"),
        ("sick", "was not healthy within 1 s; its log is"),
        ("bench", "The benchmark failed with status 1: RuntimeError: initial test run failed;"),
        ("requests", "Not all 1 requests of 8/4 BS 1 (on) completed"),
        ("nothing", "The benchmark wrote no R s/"),
        ("dies", "The server ended with status 9 during a benchmark; its log is"),
    ],
)
def test_a_failure(
    measure: Command,
    folder: Path,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    said: str,
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    ran = measure("--start-timeout=1" if fault == "sick" else "--start-timeout=60")
    assert (ran.status, ran.out) == (2, "")
    last = ran.error.splitlines()[-1]
    assert last.startswith(f"error: {said}") or said in last
    assert last.endswith("; --resume goes on from here.")
    assert results(folder) == []
    # One that is not waited for long may not have said anything yet.
    assert fault == "start" or (fault == "sick" and not log()) or all_ended(log())


def test_no_such_command(normport: Command, folder: Path, port: int) -> None:
    ran = normport("ab-run", "m", "--out=R", f"--port={port}", "--vllm=no-such-vllm")
    assert "There is no command no-such-vllm here" in ran.error
    # Nothing was measured by it, so that the folder is free for the right one.
    assert (
        "no command neither"
        in normport("ab-run", "m", "--out=R", f"--port={port}", "--vllm=neither").error
    )


def test_a_port_in_use(measure: Command, port: int, log: Log) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ran = measure()
    assert ran.status == 2
    assert f"error: Port {port} of 127.0.0.1 is in use" in ran.error
    assert log() == []


def test_a_third_arm_without_a_health_page(measure: Command, folder: Path, log: Log) -> None:
    with serving(str) as third:
        ran = measure(
            *("--repeats=1", "--batch-size=1", "--other-name=x", f"--other-url={third.url}/v1"),
            *("--other-model=q", "--start-timeout=20"),
        )
    # It lists its models; only the stand-in's benchmark wants that page of it.
    assert f"x, repeat 1: using {third.url}\nx, repeat 1: warming up\n" in ran.error


def test_a_third_arm_that_does_not_run(measure: Command, folder: Path) -> None:
    ran = measure(
        "--repeats=1", "--other-name=x", "--other-url=http://127.0.0.1:9", "--other-model=q"
    )
    assert ran.status == 2
    assert "http://127.0.0.1:9 does not answer: start that server first" in ran.error
    assert len(results(folder)) == 4


def _heed_signals() -> None:
    """A shell in the background, or nohup, has some of them ignored, and a child inherits that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, "Interrupted; servers are stopped"),
        (signal.SIGTERM, 143, "Ended by a signal; servers are stopped"),
        (signal.SIGHUP, 129, "Ended by a signal; servers are stopped"),
    ],
)
def test_children_end_with_it(
    arguments: list[str],
    folder: Path,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    status: int,
    said: str,
) -> None:
    monkeypatch.setenv("FAKE_FAULT", "hang")
    code = f"from normport.tools.cli import main; main({arguments!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    ) as child:
        try:
            assert child.stderr is not None
            for line in child.stderr:
                if line.startswith("[1/"):
                    break
            else:
                pytest.fail("it ended before it measured")
            child.send_signal(number)
            _, rest = child.communicate(timeout=60)
            assert child.returncode == status
        finally:
            child.kill()
    assert said in rest
    assert "Traceback" not in rest
    assert all_ended(log())


def test_a_child_that_will_not_end(folder: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')"
    path = folder / "child.log"
    command = [sys.executable, "-S", "-u", "-c", f"{code}; time.sleep(600)"]
    with running(command, path, {}, grace_s=0.3) as child:
        while "up" not in path.read_text():
            assert child.poll() is None
            os.sched_yield()
    assert child.returncode == -signal.SIGKILL
