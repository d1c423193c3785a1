"""What real ranks saw: two, four, two stages of two, one that dies, and two that disagree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_trees import environment

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    home = tmp_path_factory.mktemp("car-ranks")
    done = subprocess.run(
        [sys.executable, HERE / "car_ranks.py", home / "seen.json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(home, None),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict[str, Any]]] = json.loads((home / "seen.json").read_text())
    for scenario, seen in found.items():
        for rank, one in enumerate(seen):
            assert "failed" not in one, f"{scenario}, rank {rank}: {one['failed']}"
            assert "hung" not in one, f"{scenario}, rank {rank} hung"
    return found


@pytest.mark.parametrize(("scenario", "count"), [("two", 2), ("four", 4), ("stages", 4)])
def test_the_ops_are_bit_equal_to_the_unfused_sequence(
    ranks: dict[str, list[dict[str, Any]]], scenario: str, count: int
) -> None:
    assert len(ranks[scenario]) == count
    for seen in ranks[scenario]:
        assert seen["compared"] > 300
        assert seen["equal"]


@pytest.mark.parametrize("scenario", ["two", "four", "stages"])
def test_the_ops_change_no_argument_and_share_no_memory(
    ranks: dict[str, list[dict[str, Any]]], scenario: str
) -> None:
    assert all(seen["unchanged"] and seen["separate"] for seen in ranks[scenario])


@pytest.mark.parametrize("scenario", ["two", "four"])
def test_a_rewritten_graph_gives_the_same_bits(
    ranks: dict[str, list[dict[str, Any]]], scenario: str
) -> None:
    for seen in ranks[scenario]:
        assert (seen["replaced"], seen["left"]) == (4, 0)
        assert seen["graph_equal"]


def test_each_stage_reduces_over_its_own_tensor_parallel_group(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    for seen in ranks["stages"]:
        assert seen["sizes"] == [2, 2, 4]
        assert seen["only_tp"]
        assert "world:0" in seen["world"]


def test_a_rank_that_dies_makes_the_other_fail_with_a_message(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    survivor, dead = ranks["death"]
    assert dead == {"exit": 3}
    assert survivor["error"]


def test_uneven_decisions_are_an_error_on_every_rank(
    ranks: dict[str, list[dict[str, Any]]],
) -> None:
    assert len(ranks["uneven"]) == 2
    for seen in ranks["uneven"]:
        assert "group tp:0 disagree" in seen["error"]
        assert "provider is 'composed' on rank 0 and 'vllm-musa' on rank 1" in seen["error"]
