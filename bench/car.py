"""What CAR-RMSNorm's decisions cost: a repeated ``route`` beside a dict look-up of the same run.

    python bench/car.py [REPORT_FOLDER COMPILE_SECONDS]

The median of rounds with the smallest and largest is printed, and the exit status is 1 when a
ratio exceeds its bound. The pass's own time is in the report that a compiled engine run writes
(NORMPORT_CAR_REPORT); with that folder and the run's compile time the share is printed as well.
"""

from __future__ import annotations

import json
import statistics
import sys
import timeit
from pathlib import Path

from normport.layers.car_rmsnorm import RouteConfig, route

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
            asked = timeit.timeit(question, globals=names, number=CALLS)
            looked = timeit.timeit(f"table[{key}]", globals=names, number=CALLS)
            ratios.append(asked / looked)
        middle = statistics.median(ratios)
        good &= middle <= LOOKUP_BOUND
        print(
            f"{label:28} {middle:5.1f} times a dict look-up "
            f"({min(ratios):.1f} to {max(ratios):.1f}; bound {LOOKUP_BOUND:.0f})"
        )
    return good


def share(folder: Path, compile_seconds: float) -> bool:
    """The pass's part of the compile time of the run that wrote the reports."""
    good = True
    for path in sorted(folder.glob("car-rmsnorm-rank*.json")):
        found = json.loads(path.read_text())
        if not found["compiled"]:
            print(f"{path.name}: no graph was compiled in this run")
            return False
        part = found["seconds"] / compile_seconds
        good &= part <= COMPILE_BOUND
        print(f"{path.name}: {part:.2%} of the compile time (bound {COMPILE_BOUND:.0%})")
    return good


if __name__ == "__main__":
    good = lookups()
    if len(sys.argv) == 3:
        good &= share(Path(sys.argv[1]), float(sys.argv[2]))
    sys.exit(not good)
