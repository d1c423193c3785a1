"""What CAR-RMSNorm's decisions cost: a repeated ``route`` beside a dict look-up of the same run.

    python bench/car.py [--engine]

The median of rounds with the smallest and largest is printed, and the exit status is 1 when a
ratio exceeds its bound. With --engine a tiny model is compiled by vLLM's CPU engine with tensor
parallel 2, and the pass's own time is compared with that run's compile time.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import timeit
from pathlib import Path

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


def lookups() -> bool:
    """Each question's ratio to a look-up by the same key in the same round."""
    config = RouteConfig("qwen3.5-dense", "27B", 2, 1, 5120, "bfloat16", "BF16")
    part = (17, 63)
    names = {"route": route, "config": config, "part": part, "table": {17: 1, part: 2}}
    good = True
    for label, question in QUESTIONS.items():
        key = "part" if "part" in question else "17"
        ratios = []
        for _ in range(ROUNDS):
            # The processor's time: other processes of a busy machine are not the subject.
            asked, looked = (
                timeit.Timer(text, timer=time.process_time, globals=names).timeit(CALLS)
                for text in (question, f"table[{key}]")
            )
            ratios.append(asked / looked)
        middle = statistics.median(ratios)
        good &= middle <= LOOKUP_BOUND
        print(
            f"{label:28} {middle:5.1f} times a dict look-up "
            f"({min(ratios):.1f} to {max(ratios):.1f}; bound {LOOKUP_BOUND:.0f})"
        )
    return good


def share(folder: Path) -> bool:
    """The pass's part of the compile time, from the reports of one run."""
    good = True
    paths = sorted(folder.glob("car-rmsnorm-rank*.json"))
    for path in paths:
        found = json.loads(path.read_text())
        if not found["compiled"] or not found["compile_seconds"]:
            print(f"{path.name}: no graph was compiled in this run")
            return False
        part = found["seconds"] / found["compile_seconds"]
        good &= part <= COMPILE_BOUND
        print(
            f"{path.name}: the pass took {part:.2%} of the compile time "
            f"({found['replaced']} rewrites; bound {COMPILE_BOUND:.0%})"
        )
    return good and bool(paths)


if __name__ == "__main__":
    good = lookups()
    if sys.argv[1:] == ["--engine"]:
        sys.path.insert(0, str(ENGINE_TESTS))
        from car_engine import run_engine

        with tempfile.TemporaryDirectory() as home:
            good &= share(run_engine(Path(home), "dense").report)
    sys.exit(not good)
