"""Tokens per second of a whole MuseGlimmer in the real vLLM engine, with and without the series.

    python bench/engine.py [--layers 12] [--hidden 1024] [--tokens 32] [--rounds 21] [--eager-only]

Runs in an environment with vLLM 0.29.0 (``make test-env`` makes one). Three engines stand side by
side, each in a process of its own on the same random checkpoint:

    unported   vLLM as released
    ported     with patches/0.29.0
    chained    with patches/0.29.0 and optional/norm-add-norm.patch on top

They take turns, a round at a time and in changing order, so all meet the same machine; only one
works at a time. A turn decodes one sequence, where what a layer costs the interpreter weighs most.
Printed are tokens per second and the ratios to ``unported`` of the same round: median, the
interval in which their true median lies with 95% confidence, and the least and greatest of all
rounds. ``--clock cpu`` takes the engine's processor time, for a machine that has other work (with
OMP_NUM_THREADS=1, or waiting threads count too).

A limit (``--limits``: 0.95 ported, 1.0 chained, in both modes) is held when the median reaches it,
missed when the whole interval is below it, and otherwise not decided by this run. Exits with 1 when
one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "engine"))

VARIANTS = ("unported", "ported", "chained")
PROMPT = [1, *(4 + 7 * number % 400 for number in range(15))]


def checkpoint(folder: Path, layers: int, hidden: int, dtype: str) -> None:
    """A random checkpoint as those of the tests, larger."""
    import tiny_muse_glimmer as tiny

    tiny.LAYERS, tiny.HIDDEN, tiny.INTERMEDIATE = layers, hidden, hidden * 11 // 4
    tiny.HEADS, tiny.KV_HEADS = max(hidden // 64, 1), max(hidden // 128, 1)
    tiny.write(folder, dtype, vision=False)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    text = config["text_config"]
    text["no_rope_layers"] = [(number + 1) % 4 and 1 for number in range(layers)]
    text["max_position_embeddings"] = 1024
    file.write_text(json.dumps(config))


def serve(folder: str, dtype: str, eager: bool, tokens: int, clock: str) -> None:
    """One engine: says that it is ready, then decodes once for each line of stdin."""
    from engine_runner import register
    from vllm import LLM, SamplingParams

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints too
    register()
    now = time.process_time if clock == "cpu" else time.perf_counter
    llm = LLM(
        model=folder,
        dtype=dtype,
        enforce_eager=eager,
        max_model_len=max(256, 2 * tokens),
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=True,
        skip_mm_profiling=True,
    )
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)

    def decode() -> tuple[float, list[int]]:
        """Tokens per second after the first, and the tokens."""
        engine = llm.llm_engine
        engine.add_request(str(time.monotonic_ns()), {"prompt_token_ids": PROMPT}, greedy)
        times, ids = [], []
        while engine.has_unfinished_requests():
            for output in engine.step():
                times.append(now())
                ids = list(output.outputs[0].token_ids)
        return (len(times) - 1) / (times[-1] - times[0]), ids

    decode()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(decode()), file=answers, flush=True)


class Engine:
    """One variant's process."""

    def __init__(self, name: str, root: Path | None, base: Path, options: Sequence[str]) -> None:
        from engine_trees import environment

        home = base / name
        home.mkdir(exist_ok=True)
        self.log = home / "log"
        variables = environment(home, root)
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env=variables,
            text=True,
        )

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended; its log ends:\n{self.log.read_text()[-3000:]}")
        return line.strip() if line.startswith("ready") else json.loads(line)

    def turn(self) -> tuple[float, list[int]]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        speed, tokens = self.read()
        return speed, tokens

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(base: Path, arguments: argparse.Namespace, eager: bool) -> dict[str, list[float]]:
    """Tokens per second of each variant, round by round."""
    options = [str(base / "checkpoint"), arguments.dtype, str(int(eager)), str(arguments.tokens)]
    options.append(arguments.clock)
    engines: dict[str, Engine] = {}
    speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    try:
        for name in VARIANTS:
            root = None if name == "unported" else base / f"{name}-tree"
            engines[name] = Engine(name, root, base, options)
            engines[name].read()
        for number in range(arguments.rounds):
            order = VARIANTS[number % 3 :] + VARIANTS[: number % 3]
            tokens = {}
            for name in order:
                speed, tokens[name] = engines[name].turn()
                speeds[name].append(speed)
            if eager and len({tuple(found) for found in tokens.values()}) > 1:
                raise SystemExit("the variants generate different tokens in eager mode")
    finally:
        for engine in engines.values():
            engine.end()
    return speeds


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of what the values are drawn from lies, with 95% confidence.

    Two of the sorted values: the count of those below the median is binomial.
    """
    count = len(values)
    tail, low = 0.0, 0
    while low < count // 2 and (tail := tail + math.comb(count, low) / 2**count) <= 0.025:
        low += 1
    ordered = sorted(values)
    edge = max(low - 1, 0)
    return ordered[edge], ordered[count - 1 - edge]


def judged(
    mode: str, speeds: dict[str, list[float]], limits: Sequence[float]
) -> list[dict[str, Any]]:
    """A row for each variant: its speed, its ratio to ``unported``, what became of the limit."""
    rows = []
    for name, limit in zip(VARIANTS, (None, *limits), strict=True):
        ratios = [a / b for a, b in zip(speeds[name], speeds["unported"], strict=True)]
        median, (low, high) = statistics.median(ratios), interval(ratios)
        verdict = ""
        if limit is not None:
            missed = "missed" if high < limit else "not decided"
            verdict = "held" if median >= limit else missed
        rows.append(
            {
                "mode": mode,
                "variant": name,
                "tokens_per_second": round(statistics.median(speeds[name]), 2),
                "ratio": round(median, 4),
                "interval": [round(low, 4), round(high, 4)],
                "range": [round(min(ratios), 4), round(max(ratios), 4)],
                "limit": limit,
                "verdict": verdict,
            }
        )
    return rows


def text(row: dict[str, Any]) -> str:
    (low, high), (least, most) = row["interval"], row["range"]
    limit = f"   limit {row['limit']:g}: {row['verdict']}" if row["verdict"] else ""
    return (
        f"{row['mode']:10}{row['variant']:10}{row['tokens_per_second']:10.1f} tokens/s   "
        f"{row['ratio']:.3f} of unported [{low:.3f}, {high:.3f}] "
        f"({least:.3f} to {most:.3f}){limit}"
    )


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        folder, dtype, eager, tokens, clock = sys.argv[2:]
        serve(folder, dtype, eager == "1", int(tokens), clock)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--limits", type=float, nargs=2, default=(0.95, 1.0))
    parser.add_argument("--eager-only", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    from engine_trees import SERIES, apply_series, missing, release

    if (reason := missing()) is not None:
        print(f"bench/engine.py: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="normport-bench-") as folder:
        base = Path(folder)
        package, series = release(), sorted(SERIES.glob("*.patch"))
        apply_series(package, base / "ported-tree", series)
        chained = [*series, SERIES / "optional" / "norm-add-norm.patch"]
        apply_series(package, base / "chained-tree", chained)
        checkpoint(base / "checkpoint", arguments.layers, arguments.hidden, arguments.dtype)
        setup = (
            f"MuseGlimmer, {arguments.layers} layers, hidden {arguments.hidden}, "
            f"{arguments.dtype}, one sequence, {arguments.rounds} rounds of {arguments.tokens} "
            f"tokens in turn, {arguments.clock} time"
        )
        # With --json the words go where they do not disturb.
        words = sys.stderr if arguments.json else sys.stdout
        print(setup, file=words, flush=True)
        rows = []
        for mode in ("eager",) if arguments.eager_only else ("eager", "compiled"):
            speeds = measure(base, arguments, mode == "eager")
            rows += judged(mode, speeds, arguments.limits)
            print("\n".join(map(text, rows[-len(VARIANTS) :])), file=words, flush=True)
    missed = [
        f"{row['variant']} reaches {row['ratio']:.3f} of unported in {row['mode']} mode, "
        f"less than {row['limit']:g}"
        for row in rows
        if row["verdict"] == "missed"
    ]
    if arguments.json:
        print(json.dumps({"setup": setup, "rows": rows, "missed": missed}, indent=2))
    for sentence in missed:
        print(f"MISSED: {sentence}", file=words)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
