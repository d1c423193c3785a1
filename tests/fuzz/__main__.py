"""``python -m fuzz``: many generated and mutated files, a summary with the seed, and the failures.

Run it from ``tests/``, or as ``make fuzz FUZZ_ARGS="--seed 7 --cases 500 --mutants 1000"``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fuzz import generated, mutated
from fuzz.choices import Choices, plainest
from fuzz.commands import FaultError
from normport.tools.errors import UserError
from normport.tools.sources import resolve

BATCH = 25
PROVEN_EVERY, PROCESS_EVERY = 10, 100
"""Every tenth batch is also proven; every hundredth mutant also goes through a process."""


def main() -> int:
    """Run what the arguments say; 1 when a fault was found."""
    arguments = _arguments()
    # The kernel keeps what a killed process wrote; waiting for the disk would prove nothing here.
    os.fsync = lambda _: None  # type: ignore[assignment]
    if arguments.replay is not None:
        return _replay(arguments.replay)
    started = time.monotonic()
    failures = arguments.out
    with tempfile.TemporaryDirectory(prefix="normport-fuzz-") as work:
        counts, faults = _generated(arguments, Path(work), failures)
        print(_line(arguments, "generated", arguments.cases, counts), flush=True)
        more, other = _mutated(arguments, Path(work), failures)
        print(_line(arguments, "mutated", arguments.mutants, more), flush=True)
    found = faults + other
    where = f"; see {failures}" if found else ""
    print(f"{found} faults in {time.monotonic() - started:.0f} s{where}")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seed", default=str(int(time.time())), help="the time by default")
    parser.add_argument("--cases", type=int, default=2000, help="generated files (default 2000)")
    parser.add_argument("--mutants", type=int, default=5000, help="mutated files (default 5000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of each")
    parser.add_argument("--source", default="vllm==0.29.0", help="whose model files are mutated")
    parser.add_argument("--out", type=Path, default=Path("../out/fuzz"), help="failures go here")
    parser.add_argument("--replay", type=Path, metavar="FILE.json", help="run one failure again")
    return parser.parse_args()


def _line(arguments: argparse.Namespace, what: str, number: int, counts: Counter[str]) -> str:
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{what} (seed {arguments.seed}): {number} cases: {told or 'none'}"


def _shown(numbers: range, what: str) -> Iterable[int]:
    """``numbers``, with a line on stderr now and then; garbage is collected here alone."""
    gc.disable()
    for number in numbers:
        if number % BATCH == 0:
            gc.collect()
        if number % 250 == 0:
            print(f"{what} {number} of {numbers.stop}", file=sys.stderr, flush=True)
        yield number
    gc.enable()


def _generated(
    arguments: argparse.Namespace, work: Path, failures: Path
) -> tuple[Counter[str], int]:
    folder = work / "generated"
    folder.mkdir()
    counts: Counter[str] = Counter()
    faults = 0
    numbers = range(arguments.first, arguments.first + arguments.cases)
    batch: list[generated.Case] = []
    for number in _shown(numbers, "generated"):
        batch.append(generated.make(f"{arguments.seed}:{number}"))
        if len(batch) < BATCH and number != numbers[-1]:
            continue
        for proof in (False, True) if number // BATCH % PROVEN_EVERY == 0 else (False,):
            tally = generated.check_all(batch, folder, proof=proof)
            counts.update({f"{'proven ' * proof}{k}": v for k, v in tally.counts.items()})
            faults += len(tally.faults)
            for seed, told in tally.faults.items():
                _keep_case(failures, seed, told, folder, proof)
        batch = []
    return counts, faults


def _keep_case(failures: Path, seed: str, told: str, folder: Path, proof: bool) -> None:
    """Write down the failing case of ``seed``, with all choices plain that may be."""

    def fails(choices: Choices) -> bool:
        return bool(generated.check_all([generated.of(choices)], folder, proof=proof).faults)

    plain = plainest(seed, fails, list(generated.make(seed).model.odd))
    case = generated.make(seed, plain)
    name = seed.replace(":", "-")
    files = {f"generated-{name}-{file}": data for file, data in case.files.items()}
    record = {"kind": "generated", "seed": seed, "plain": sorted(plain), "proof": proof}
    _keep(failures, f"generated-{name}", {**record, "odd": case.model.odd, "fault": told}, files)


def _mutated(arguments: argparse.Namespace, work: Path, failures: Path) -> tuple[Counter[str], int]:
    folder = work / "mutated"
    folder.mkdir()
    counts: Counter[str] = Counter()
    faults = 0
    numbers = range(arguments.first, arguments.first + arguments.mutants)
    files = mutated.corpus(resolve(arguments.source, note=lambda _: None).root) if numbers else []
    for number in _shown(numbers, "mutated"):
        seed = f"{arguments.seed}:{number}"
        mutant = mutated.make(seed, files)
        try:
            counts[mutated.check(mutant, folder, process=number % PROCESS_EVERY == 0)] += 1
        except FaultError as fault:
            counts["fault"] += 1
            faults += 1
            name = f"mutated-{seed.replace(':', '-')}"
            record = {"kind": "mutated", "seed": seed, "options": mutant.options}
            record |= {"name": mutant.name, "data": f"{name}.txt", "fault": str(fault)}
            _keep(failures, name, record, {f"{name}.txt": mutant.data})
    return counts, faults


def _keep(failures: Path, name: str, record: dict[str, object], files: dict[str, bytes]) -> None:
    failures.mkdir(parents=True, exist_ok=True)
    (failures / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    for file, data in files.items():
        (failures / file).write_bytes(data)
    print(f"{failures / name}.json: {record['fault']}", file=sys.stderr, flush=True)


def _replay(path: Path) -> int:
    record = json.loads(path.read_text())
    with tempfile.TemporaryDirectory(prefix="normport-fuzz-") as work:
        if record["kind"] == "generated":
            case = generated.make(record["seed"], frozenset(record["plain"]))
            tally = generated.check_all([case], Path(work), proof=record["proof"])
            told = next(iter(tally.faults.values()), None)
        else:
            data = (path.parent / record["data"]).read_bytes()
            mutant = mutated.Mutant(record["name"], data, tuple(record["options"]))
            told = None
            try:
                mutated.check(mutant, Path(work))
            except FaultError as fault:
                told = str(fault)
    print(told or "nothing is wrong with it any more")
    return 1 if told else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
