"""The real engine with several ranks: on, off, on from a warm cache, and what may go wrong.

On the CPU engine under the test platform, with tiny random Qwen3.5 text models (dense and mixture
of experts). One folder holds the caches of all dense runs, so that a graph compiled for one state
of the switch could be found by the other.
"""

from __future__ import annotations

import pytest
from car_compare import check_that_the_bound_says_something, difference
from car_engine import LAYERS, OFF, Run, job, run_engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return run_engine(
        tmp_path_factory.mktemp("car-engine"),
        job("on", "dense"),
        job("off", "dense", **OFF),
        job("warm", "dense", then="kill"),
        job("uneven", "dense", then="uneven"),
        job("moe", "moe"),
    )


def ended_well(run: Run) -> Run:
    assert run.status == 0, run.log[-4000:]
    return run


@pytest.fixture(scope="module")
def on(runs: dict[str, Run]) -> Run:
    return ended_well(runs["on"])


@pytest.fixture(scope="module")
def off(runs: dict[str, Run]) -> Run:
    return ended_well(runs["off"])


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


def test_the_log_tells_the_rewrites_per_range(on: Run) -> None:
    said = "CAR-RMSNorm: 10 of 15 sites rewritten in the graphs compiled: "
    each = "5 of 5 in 1:15, 0 of 5 in 16:16 (native-range), 5 of 5 in 17:128."
    assert on.log.count(said + each) == 1


def test_every_rank_did_the_same(on: Run) -> None:
    assert counts(on)[0] == counts(on)[1]


def test_off_makes_no_rewrite(off: Run) -> None:
    assert [rank["state"] for rank in off.ranks] == ["off", "off"]
    assert [rank["replaced"] for rank in off.ranks] == [0, 0]
    assert "CAR-RMSNorm: off, as requested" in off.log


def test_on_and_off_generate_the_same(on: Run, off: Run) -> None:
    assert on.outputs is not None
    assert off.outputs is not None
    check_that_the_bound_says_something(on.outputs)
    assert difference(on.outputs, off.outputs) is None


def test_the_switch_never_finds_the_other_states_graphs(on: Run, off: Run) -> None:
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


def test_a_warm_start_gives_the_same_bits_without_compiling(on: Run, runs: dict[str, Run]) -> None:
    warm = runs["warm"]
    assert warm.outputs == on.outputs
    assert [rank["compiled"] for rank in warm.ranks] == [False, False]
    assert "0 rewrites" not in warm.log


def test_a_rank_that_dies_ends_the_engine_with_a_message(runs: dict[str, Run]) -> None:
    warm = runs["warm"]
    assert warm.outputs is not None, "it died before it was to"
    assert warm.status == 1, "None: it hung and was killed; 0: it went on"
    assert "VllmWorker-1 died" in warm.log
    assert "without one of its ranks" not in warm.log


def test_ranks_that_differ_do_not_start(runs: dict[str, Run]) -> None:
    uneven = runs["uneven"]
    assert (uneven.status, uneven.outputs) == (1, None)
    assert "CAR-RMSNorm: the ranks of group tp:0 disagree: table is " in uneven.log


def test_a_mixture_of_experts_is_rewritten(runs: dict[str, Run]) -> None:
    for seen in counts(ended_well(runs["moe"])):
        assert seen[16, 16] == (False, 0)
        assert seen[1, 15] == seen[17, 128] == (True, 2 * LAYERS + 1)
