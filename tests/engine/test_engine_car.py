"""The real engine, tensor parallel 2, compiled: on, off, and on again from a warm cache.

On the CPU engine under the test platform, with tiny random Qwen3.5 text models (dense and mixture
of experts). One folder holds the caches of all dense runs, so that a graph compiled for one state
of the switch could be found by the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from car_engine import Run, run_engine

pytestmark = pytest.mark.engine

LAYERS = 2
LOGPROB_BOUND = 0.05
"""Inductor fuses a native norm with its neighbors, which rounds less often than the op: bf16 steps
in the hidden states reach the logprobs."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("car-engine")


@pytest.fixture(scope="module")
def on(home: Path) -> Run:
    return run_engine(home, "dense", "on")


@pytest.fixture(scope="module")
def off(home: Path, on: Run) -> Run:
    return run_engine(home, "dense", "off", off=True)


@pytest.fixture(scope="module")
def warm(home: Path, off: Run) -> Run:
    return run_engine(home, "dense", "warm")


def counts(run: Run) -> list[dict[tuple[int, int], tuple[bool, int]]]:
    return [
        {(r["start"], r["end"]): (r["fused"], r["replaced"]) for r in rank["ranges"]}
        for rank in run.ranks
    ]


def test_on_is_the_default_and_says_so(on: Run) -> None:
    (line,) = {line for line in on.log.splitlines() if "CAR-RMSNorm: on, by default." in line}
    assert "endpoints: 15, 16." in line
    assert [rank["state"] for rank in on.ranks] == ["on", "on"]
    assert [rank["provider"] for rank in on.ranks] == ["composed", "composed"]


def test_every_fused_range_is_rewritten_and_the_native_one_is_not(on: Run) -> None:
    for seen in counts(on):
        assert list(seen) == [(1, 15), (16, 16), (17, 128)]
        assert seen[16, 16] == (False, 0)
        assert seen[1, 15] == seen[17, 128] == (True, 2 * LAYERS + 1)


def test_every_rank_did_the_same(on: Run) -> None:
    assert counts(on)[0] == counts(on)[1]


def test_off_makes_no_rewrite(off: Run) -> None:
    assert [rank["state"] for rank in off.ranks] == ["off", "off"]
    assert [rank["replaced"] for rank in off.ranks] == [0, 0]
    assert "CAR-RMSNorm: off, as requested" in off.log


@pytest.mark.xfail(
    reason="open: Inductor rounds less often in a native norm than the op does, and the random "
    "model's logits lie so close that a token of bf16 changes",
    strict=False,
)
def test_on_and_off_generate_the_same(on: Run, off: Run) -> None:
    for one, other in zip(on.outputs, off.outputs, strict=True):
        assert one["tokens"] == other["tokens"]
        pairs = zip(one["logprobs"], other["logprobs"], strict=True)
        assert max(abs(a - b) for a, b in pairs) <= LOGPROB_BOUND
    assert len({token for run in on.outputs for token in run["tokens"]}) > 4


def test_the_switch_never_finds_the_other_states_graphs(on: Run, off: Run, warm: Run) -> None:
    folders = [
        {
            line.split("Using cache directory: ")[1].split("/rank_")[0]
            for line in run.log.splitlines()
            if "Using cache directory: " in line
        }
        for run in (on, off)
    ]
    assert folders[0]
    assert folders[1]
    assert not folders[0] & folders[1]


def test_a_warm_start_gives_the_same_bits_without_compiling(on: Run, warm: Run) -> None:
    assert warm.outputs == on.outputs
    assert [rank["compiled"] for rank in warm.ranks] == [False, False]
    assert "0 rewrites" not in warm.log


@pytest.mark.slow
def test_a_mixture_of_experts_is_rewritten(home: Path) -> None:
    run = run_engine(home, "moe", "moe")
    for seen in counts(run):
        assert seen[16, 16] == (False, 0)
        assert seen[1, 15] == seen[17, 128]
        assert seen[1, 15][1] > 0
