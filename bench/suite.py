"""Run the parts of the bench one after the other, keep what they found, and write it up.

    python bench/suite.py [PART ...] [--engine-python FILE] [--page FILE] [--saved]

Parts: guard, providers, norms, engine, calls, scan, car; without a name all but engine, which takes
as long as the others together. Each is a program of its own in this folder, says what it measures
and can be run alone. Here each prints one JSON object, which goes to out/bench/PART.json. Tables
are printed, and with --page written to a file with those of the parts that were not run this time.
--saved runs nothing.

--engine-python is the Python of an environment with vLLM 0.29.0, for providers, calls, car and
engine.

All parts are run, whatever they find. Exits with 2 when one of them failed, else with 1 when a
limit was missed, and says which.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page import PARTS, machine, page, table

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "bench"
IN_ENGINE = ("providers", "calls", "car", "engine")
OPTIONS = {"car": ["--engine"]}
TIMEOUT_S = 1800


def run(part: str, python: str) -> str | None:
    """Run one part and keep its JSON; what went wrong, or None."""
    command = [python, str(HERE / f"{part}.py"), *OPTIONS.get(part, ()), "--json"]
    variables = dict(os.environ)
    if part == "providers":
        variables["NORMPORT_SIMULATE"] = "xpu"
        variables["PYTHONPATH"] = str(HERE.parent / "tests" / "simulated")
    log = OUT / f"{part}.log"
    try:
        with log.open("w") as words:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                env=variables,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        if done.returncode not in (0, 1):
            return f"exited {done.returncode}; see {log.relative_to(HERE.parent)}"
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"did not end in {TIMEOUT_S} s; see {log.relative_to(HERE.parent)}"
    except ValueError:
        return f"printed no JSON; see {log.relative_to(HERE.parent)}"
    found["machine"], found["date"] = machine(), time.strftime("%Y-%m-%d", time.gmtime())
    (OUT / f"{part}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return None


def saved() -> dict[str, dict[str, Any]]:
    """What each part found when it was last run, in the order of the page."""
    files = {part: OUT / f"{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text()) for part, file in files.items() if file.is_file()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--engine-python", default=sys.executable)
    parser.add_argument("--page", type=Path, help="a Markdown file to write the tables to")
    parser.add_argument("--saved", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part}; they are {', '.join(PARTS)}")
    chosen = options.parts or [part for part in PARTS if part != "engine"]
    OUT.mkdir(parents=True, exist_ok=True)
    failed, missed = [], []
    for part in () if options.saved else chosen:
        print(f"{part} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        wrong = run(part, options.engine_python if part in IN_ENGINE else sys.executable)
        print(f"{part}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if wrong is not None:
            failed.append(f"{part} {wrong}")
    found = saved()
    for part in chosen:
        if part in found and not any(text.startswith(f"{part} ") for text in failed):
            print(table(part, found[part]), flush=True)
            missed += [f"{part}: {sentence}" for sentence in found[part]["missed"]]
    if options.page is not None:
        options.page.write_text(page(found), encoding="utf-8")
    for sentence in missed:
        print(f"MISSED: {sentence}")
    for sentence in failed:
        print(f"FAILED: {sentence}", file=sys.stderr)
    if not missed and not failed:
        print("every limit was kept")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
