"""Guard counts of every process of an engine, also of one that multiprocessing forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from normport.layers import counting

SCRIPT = """
import multiprocessing, sys
from collections import Counter
from contextlib import contextmanager
from normport.layers import counting

counts = Counter()

@contextmanager
def counted():
    yield counts

def work():
    counts["RMSNorm", "kernel"] += 2

counting.counted = counted
counting.count_until_exit(sys.argv[1])
counts["RMSNorm", "not float16"] += 1
context = multiprocessing.get_context("fork")
child = context.Process(target=work)
child.start()
child.join()
print(child.pid, child.exitcode)
"""


def test_a_forked_process_writes_its_own_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "counts-{pid}.json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    child, status = done.stdout.split()
    assert status == "0"
    written = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert len(written) == 2
    mine = [{"layer": "RMSNorm", "reason": "kernel", "calls": 2}]
    assert written.pop(f"counts-{child}.json") == mine
    assert list(written.values()) == [[{"layer": "RMSNorm", "reason": "not float16", "calls": 1}]]


class Slow(str):
    """A kind of layer whose look-up lets other threads in."""

    def __hash__(self) -> int:
        time.sleep(0)
        return 1


def test_threads_lose_no_count() -> None:
    counts: counting.Counts = Counter()
    threads, each = 4, 200
    kind = Slow("RMSNorm")

    def work() -> None:
        for _ in range(each):
            counting._add(counts, kind, None)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert counts == {(kind, counting.KERNEL): threads * each}
