"""Several processes find what one finds, in the same order, and an end from outside ends all.

Each runs in a process of its own, with no threads beside: that is where workers are started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_sources import BROKEN, MODEL, PLAIN, REFUSED, SCALE

from normport.tools.parallel import ENOUGH, SWITCH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")

SCAN = "from normport.tools.cli import main; main()"


def start(folder: Path, jobs: int, script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={**os.environ, SWITCH: str(jobs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, jobs: int, script: str, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, jobs, script, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def has_ended(session: int) -> bool:
    """Whether no process of a session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def many(folder: Path) -> Path:
    """Enough files for workers, of every outcome; a class of one is used by another."""
    helper = "\n\ndef _helper():\n    return 1\n"
    files = [MODEL, REFUSED, SCALE, BROKEN, MODEL + helper, MODEL.replace("OffsetNorm", "Shared")]
    for number in range(ENOUGH):
        text = files[number // 10] if number % 10 == 0 and number < 60 else PLAIN
        (folder / f"m{number:02}.py").write_text(text)
    (folder / "user.py").write_text("from m50 import Shared\nfrom m40 import _helper\n")
    (folder / "latin.py").write_bytes(b"# sqrt( mean( \xe9\n")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("scan", "--no-proof", "--output-format=json", "."),
        ("scan", "--no-proof", "--unsafe", "."),
        ("rewrite", "--no-proof", "--allow-unproven", "--diff", "."),
    ],
)
def test_all_that_is_printed_is_the_same(many: Path, arguments: tuple[str, ...]) -> None:
    alone = run(many, 1, SCAN, *arguments)
    assert alone[0] == 2  # of the broken files
    assert "OffsetNorm" in alone[1]
    assert run(many, 2, SCAN, *arguments) == alone


PIDS = """
import os
from normport.tools.parallel import Workers

def pid(number):
    return number, os.getpid()

with Workers({most}) as workers:
    workers.start({items})
    found = workers.map(pid, range({items}))
    assert [number for number, _ in found] == list(range({items}))
    pids = {{pid for _, pid in found}}
    print(len(pids), os.getpid() in pids)
"""


@pytest.mark.parametrize(
    ("most", "items", "printed"),
    [(3, 5 * ENOUGH, "3 False"), (3, ENOUGH - 1, "1 True"), (1, 5 * ENOUGH, "1 True")],
)
def test_who_does_the_work(folder: Path, most: int, items: int, printed: str) -> None:
    status, out, err = run(folder, 1, PIDS.format(most=most, items=items))
    assert (status, out.strip(), err) == (0, printed, "")


def test_no_worker_is_started_beside_a_thread(folder: Path) -> None:
    beside = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    script = beside + PIDS.format(most=2, items=ENOUGH)
    assert run(folder, 1, script)[:2] == (0, "1 True\n")


def test_what_the_work_raises_comes_through(folder: Path) -> None:
    script = PIDS.replace("return number,", "return 1 // (number - 70),")
    status, _, err = run(folder, 1, script.format(most=2, items=2 * ENOUGH))
    assert status == 1
    assert err.splitlines().count("ZeroDivisionError: integer division or modulo by zero") == 2


IN_WORKERS = """
import os, signal, time
from pathlib import Path
from normport.tools import cli, source_file

# A shell that runs the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
parent = os.getpid()
find_sites = source_file.find_sites

def found(source, *rest):
    if os.getpid() != parent:
        {action}
    return find_sites(source, *rest)

source_file.find_sites = found
cli.main()
"""


def test_a_worker_that_dies_is_an_error(many: Path) -> None:
    script = IN_WORKERS.format(action="os.kill(os.getpid(), signal.SIGKILL)")
    process = start(many, 2, script, "scan", "--no-proof", ".")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "error: A process that did a part of the work was ended by signal 9, perhaps for want of "
        "memory: free some, or set NORMPORT_JOBS=1 to work in one process.\n"
    )
    assert has_ended(process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_run_ends_its_workers(many: Path, number: int) -> None:
    script = IN_WORKERS.format(action="Path('.busy').touch(); time.sleep(2)")
    process = start(many, 2, script, "scan", "--no-proof", ".")
    while not (many / ".busy").exists():
        assert process.poll() is None
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)  # until the last of them has closed the streams
    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert (out, err) == ("", "")
