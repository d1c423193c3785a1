"""What CAR-RMSNorm's decisions cost: a repeated ``route`` beside a dict look-up of the same run.

    python bench/car.py [--engine] [--json]

The median of rounds with the smallest and largest is printed, and the exit status is 1 when a
ratio exceeds its bound. With --engine a tiny model is compiled by vLLM's CPU engine with tensor
parallel 2, and the pass's own time is compared with that run's compile time. With --json one JSON
object is printed, and the sentences go to stderr.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

from normport.layers.car_rmsnorm import RouteConfig, route

ENGINE_TESTS = Path(__file__).parents[1] / "tests" / "engine"
ROUNDS, CALLS = 15, 50_000
LOOKUP_BOUND = 10.0
COMPILE_BOUND = 0.05
QUESTIONS = {
    "route(config)": "route(config)",
    "route(config, rows)": "route(config, 17)",
    "route(config, range)": "route(config, None, part)",
    "route(config, rows, range)": "route(config, 17, part)",
}


def lookups(report: dict[str, Any]) -> bool:
    """Each question's ratio to a look-up by the same key in the same round."""
    config = RouteConfig("qwen3.5-dense", "27B", 2, 1, 5120, "bfloat16", "BF16")
    part = (17, 63)
    names = {"route": route, "config": config, "part": part, "table": {17: 1, part: 2}}
    good = True
    for label, question in QUESTIONS.items():
        key = "part" if "part" in question else "17"
        ratios, sides = [], []
        for _ in range(ROUNDS):
            # The processor's time: other processes of a busy machine are not the subject.
            asked, looked = (
                timeit.Timer(text, timer=time.process_time, globals=names).timeit(CALLS)
                for text in (question, f"table[{key}]")
            )
            ratios.append(asked / looked)
            sides.append((asked / CALLS * 1e9, looked / CALLS * 1e9))
        middle = statistics.median(ratios)
        asked, looked = (statistics.median(side) for side in zip(*sides, strict=True))
        report["lookups"][label] = [min(ratios), middle, max(ratios)]
        sentence = (
            f"{label:28} {middle:5.1f} times a dict look-up "
            f"({min(ratios):.1f} to {max(ratios):.1f}; bound {LOOKUP_BOUND:.0f}); "
            f"{asked:.0f} ns and {looked:.0f} ns"
        )
        say(report, sentence, middle <= LOOKUP_BOUND)
        good &= middle <= LOOKUP_BOUND
    return good


def say(report: dict[str, Any], sentence: str, good: bool) -> None:
    print(sentence, file=sys.stderr if "--json" in sys.argv else sys.stdout, flush=True)
    if not good:
        report["missed"].append(" ".join(sentence.split()))


def share(folder: Path, report: dict[str, Any]) -> bool:
    """The pass's part of the compile time, from the reports of one run."""
    parts = []
    for path in sorted(folder.glob("car-rmsnorm-rank*.json")):
        found = json.loads(path.read_text())
        if not found["compiled"] or not found["compile_seconds"]:
            say(report, f"{path.name}: no graph was compiled in this run", False)
            return False
        ours, whole = found["seconds"], found["compile_seconds"]
        parts.append(ours / whole)
        report["shares"][path.stem] = parts[-1]
        sentence = (
            f"{path.name}: the pass took {ours:.3f} s of {whole:.1f} s of compiling, "
            f"{parts[-1]:.2%} ({found['replaced']} rewrites; bound {COMPILE_BOUND:.0%})"
        )
        say(report, sentence, parts[-1] <= COMPILE_BOUND)
    if not parts:
        say(report, "the run wrote no report", False)
        return False
    return max(parts) <= COMPILE_BOUND


if __name__ == "__main__":
    result: dict[str, Any] = {"rounds": ROUNDS, "lookups": {}, "shares": {}, "missed": []}
    good = lookups(result)
    if "--engine" in sys.argv:
        sys.path.insert(0, str(ENGINE_TESTS))
        from car_engine import job, run_engine

        with tempfile.TemporaryDirectory() as home:
            (run,) = run_engine(Path(home), job("dense", "dense")).values()
            if run.status != 0:
                sys.exit(f"the engine ended with {run.status}; its log ends:\n{run.log[-2000:]}")
            good &= share(run.report, result)
    if "--json" in sys.argv:
        print(json.dumps(result, indent=2))
    sys.exit(not good)
