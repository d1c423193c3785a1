"""That the comparison of ON and OFF catches a wrong op, with what the engine gave for some.

``car_wrong_ops.json`` was recorded from the dense model of ``test_engine_car.py`` with its prompts:
OFF, the composed op as it is, and the composed op with one mistake each (tests/data/README.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from car_compare import LOGPROB_BOUND, check_that_the_bound_says_something, difference

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "car_wrong_ops.json").read_text()
)
OFF = RECORDED.pop("off")
RIGHT = RECORDED.pop("right")


def test_the_right_op_is_taken_for_right() -> None:
    assert difference(RIGHT, OFF) is None
    check_that_the_bound_says_something(RIGHT)


def test_mistakes_were_recorded() -> None:
    assert len(RECORDED) == 6
    assert {len(runs) for runs in RECORDED.values()} == {len(OFF)}


@pytest.mark.parametrize("mistake", RECORDED)
def test_a_wrong_op_is_found(mistake: str) -> None:
    found = difference(RECORDED[mistake], OFF)
    assert found is not None
    assert found.startswith("prompt ")


@pytest.mark.parametrize("off_by", [LOGPROB_BOUND + 1e-9, -1.0, float("nan")])
def test_one_logprob_beyond_the_bound_is_enough(off_by: float) -> None:
    changed = json.loads(json.dumps(OFF))
    assert difference(changed, OFF) is None
    run = changed[-1]
    run["logprobs"][-1][str(run["tokens"][-1])] += off_by
    assert "step 7" in str(difference(changed, OFF))
