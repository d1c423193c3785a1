"""What a scan of the whole vLLM package costs, beside other tools on the same tree.

    python bench/scan.py [--source vllm==0.29.0] [--repeats 5] [--skip proof --skip libcst ...]

All commands run on the one tree, in turns whose order alternates, so that all of them meet the
same machine; the two slow ones (the scan with its proof, LibCST's codemod) run once, at the end.
Every time is that of a whole process, from its start to its end:

    scan      normport scan --no-proof
    ast-grep  ast-grep's search for one pattern of a class
    ruff      ruff check --select F401, without its cache
    version   normport --version
    help      normport --help
    proof     normport scan: what could be converted is run as well
    libcst    a codemod that changes nothing (noop.py), by LibCST's own command line, two jobs

Each quick one has an unmeasured run first, so that no turn waits for the disk or for bytecode.
Memory is what all processes of one more scan hold together, shared pages counted once (Linux).

Exits with 1 when a limit is missed, and says which.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from normport.tools.errors import UserError
from normport.tools.sources import resolve

HERE = Path(__file__).resolve().parent
LIMITS = {"scan": 4.0, "proof": 25.0, "version": 0.25, "help": 0.25}
"""Seconds, for the median."""
MEGABYTES = 400.0
TIMES_FASTER = 20.0
"""How much faster than the codemod that changes nothing."""
REFERENCE = 2.2
"""Seconds that ast-grep takes on the machine that the limits are for."""
SLOW = ("proof", "libcst")


@dataclass
class Side:
    """One command.

    statuses: those that are no failure. says: what it says on stderr unless it fails.
    times, cpu: wall and processor seconds, one per run.
    """

    command: Sequence[str | Path]
    statuses: frozenset[int] = frozenset({0})
    says: str = ""
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def run(self, meanwhile: Callable[[int], object] = lambda _: None) -> tuple[float, float]:
        """Wall and processor seconds of one run; UserError when it fails."""
        started = time.perf_counter()
        process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment},
        )
        assert process.stderr is not None
        meanwhile(process.pid)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        spent = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode not in self.statuses or self.says not in said:
            last = (said.strip().splitlines() or ["nothing"])[-1]
            raise UserError(f"{' '.join(map(str, self.command))} failed; it said: {last}")
        return spent, usage.ru_utime + usage.ru_stime

    def measure(self) -> None:
        spent, cpu = self.run()
        self.times.append(spent)
        self.cpu.append(cpu)


def make_sides(tree: Path, skip: Sequence[str]) -> tuple[dict[str, Side], list[str]]:
    """The commands by name, and the names of those that are not installed."""
    normport, found = program("normport"), frozenset({0, 1})
    codemod = ["codemod", "-x", "noop.Noop", "--no-format", "--hide-progress", "-j", "2", str(tree)]
    if normport is None:
        raise UserError("normport is not installed beside this Python; run `make bench`.")
    sides = {
        "scan": Side([normport, "scan", "--no-proof", tree], found),
        "version": Side([normport, "--version"]),
        "help": Side([normport, "--help"]),
        "proof": Side([normport, "scan", tree], found),
        "libcst": Side(
            [sys.executable, "-m", "libcst.tool", *codemod],
            found,  # files that LibCST cannot parse are no failure here
            says="Finished codemodding",
            folder=tree.parent,
            environment={"PYTHONPATH": str(HERE)},
        ),
    }
    missing = []
    pattern = ["run", "--lang", "python", "--pattern", "class $NAME(nn.Module): $$$BODY"]
    others: dict[str, list[str | Path]] = {
        "ast-grep": [*pattern, "--json=stream", tree],
        "ruff": ["check", "--select", "F401", "--isolated", "--no-cache", "--quiet", tree],
    }
    for name, arguments in others.items():
        command = program(name)
        if command is None:
            missing.append(name)
        else:
            sides[name] = Side([command, *arguments], found)
    return {name: side for name, side in sides.items() if name not in skip}, missing


def program(name: str) -> str | None:
    """The command beside this Python, else on the path."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def peak_megabytes(side: Side) -> float | None:
    """The most that a command and its children hold at once; None where it cannot be told."""
    if not Path("/proc/self/smaps_rollup").is_file():
        return None
    peak = 0

    def watch(pid: int) -> None:
        nonlocal peak
        while (held := sum(map(proportional, family(pid)))) > 0:
            peak = max(peak, held)
            time.sleep(0.005)

    side.run(watch)
    return peak / 1024


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            queue += map(int, _text(task).split())
    return found


def proportional(pid: int) -> int:
    """Kilobytes of a process, each shared page divided among its holders; 0 when it has ended."""
    for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # it has ended meanwhile
        return ""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="vllm==0.29.0", help="tree to scan")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--skip", action="append", default=[], choices=["ast-grep", "ruff", *SLOW], help="leave out"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats must be at least 2")
    tree = resolve(options.source, note=lambda text: print(text, file=sys.stderr))
    folder = tree.root / "vllm"
    sides, missing = make_sides(folder, options.skip)

    quick = [name for name in sides if name not in SLOW]
    for name in quick:
        sides[name].run()
    for turn in range(options.repeats):
        for name in quick if turn % 2 else reversed(quick):
            sides[name].measure()
    memory = peak_megabytes(sides["scan"])
    for name in SLOW:
        if name in sides:
            sides[name].measure()

    scan = sides["scan"].times
    report = {
        "source": tree.origin,
        "files": sum(1 for _ in folder.rglob("*.py")),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "repeats": options.repeats,
        "seconds": {name: quartiles(side.times) for name, side in sides.items()},
        "cpu_seconds": {name: statistics.median(side.cpu) for name, side in sides.items()},
        "times_scan": {
            name: quartiles([other / own for other, own in zip(side.times, scan, strict=True)])
            if name not in SLOW
            else quartiles([side.times[0] / statistics.median(scan)])
            for name, side in sides.items()
        },
        "megabytes": memory,
        "not_installed": missing,
        "at_reference": quartiles(at_reference(scan, sides["ast-grep"].times))
        if "ast-grep" in sides
        else None,
    }
    report["missed"] = missed(report)
    print(json.dumps(report, indent=2)) if options.json else print_report(report)
    return 1 if report["missed"] else 0


def at_reference(scan: Sequence[float], ast_grep: Sequence[float]) -> list[float]:
    """What each scan would have taken where ast-grep takes ``REFERENCE`` seconds."""
    return [own * REFERENCE / other for own, other in zip(scan, ast_grep, strict=True)]


def missed(report: Mapping[str, object]) -> list[str]:
    """A sentence for each limit that was not kept."""
    seconds, ratios, memory = report["seconds"], report["times_scan"], report["megabytes"]
    assert isinstance(seconds, dict)
    assert isinstance(ratios, dict)
    found = [
        f"{name} took {seconds[name][1]:.2f} s, more than {limit:g} s"
        for name, limit in LIMITS.items()
        if name in seconds and seconds[name][1] > limit
    ]
    if isinstance(memory, float) and memory > MEGABYTES:
        found.append(f"scan held {memory:.0f} MB, more than {MEGABYTES:g} MB")
    if "libcst" in ratios and ratios["libcst"][1] < TIMES_FASTER:
        found.append(
            f"scan was {ratios['libcst'][1]:.1f} times faster than libcst, not {TIMES_FASTER:g}"
        )
    return found


def print_report(report: Mapping[str, object]) -> None:
    seconds, cpu, ratios = report["seconds"], report["cpu_seconds"], report["times_scan"]
    assert isinstance(seconds, dict)
    assert isinstance(cpu, dict)
    assert isinstance(ratios, dict)
    print(
        f"{report['source']}, {report['files']} files, Python {report['python']}, "
        f"{report['processors']} processors; median [quartiles] of {report['repeats']} turns, "
        f"{' and '.join(name for name in SLOW if name in seconds) or 'nothing'} once"
    )
    for name, (low, middle, high) in seconds.items():
        spread = "" if name in SLOW else f"[{low:.2f}, {high:.2f}]"
        limit = f"limit {LIMITS[name]:g} s" if name in LIMITS else ""
        print(
            f"  {name:<9} {middle:7.2f} s  {spread:<16} {cpu[name]:7.2f} s of processors  "
            f"{ratios[name][1]:6.2f} x scan  {limit}".rstrip()
        )
    for name in report["not_installed"] if isinstance(report["not_installed"], list) else ():
        print(f"  {name:<9} not installed")
    if report["at_reference"] is not None:
        low, middle, high = cast("tuple[float, float, float]", report["at_reference"])
        spread = f"{middle:.2f} s  [{low:.2f}, {high:.2f}]"
        print(f"  a scan where ast-grep takes {REFERENCE:g} s: {spread}")
    memory = report["megabytes"]
    held = f"{memory:.0f} MB" if isinstance(memory, float) else "not measured here"
    print(f"  memory of a scan, all processes: {held}, limit {MEGABYTES:g} MB")
    broken = report["missed"]
    for sentence in broken if isinstance(broken, list) else ():
        print(f"MISSED: {sentence}")
    if not broken:
        print("all limits were kept")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
