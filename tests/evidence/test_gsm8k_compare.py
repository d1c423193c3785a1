"""``normport gsm8k compare``: what it finds, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_sources import Command

from normport.tools.gsm8k.backend import Output
from normport.tools.gsm8k.prompts import Asked
from normport.tools.gsm8k.results import KIND, SCHEMA, entry, summary

RUN = {"model": "tiny", "vllm_version": "0.29.0"}
Change = Callable[[dict[str, Any]], None]


def a_run(
    path: Path,
    outputs: list[str],
    *,
    run: dict[str, Any] = RUN,
    ms: list[float] | None = None,
    tokens: bool = True,
    complete: bool = True,
    prompt: str = "Question",
) -> None:
    """Write a result file; each output has 10 tokens, its characters' codes stand for their ids."""
    times = ms or [5.0] * len(outputs)
    questions = [
        entry(
            Asked(index, f"{prompt} {index}", "#### 7"),
            Output(text, 3, 10, time / 100, tokens=list(map(ord, text)) if tokens else None),
        )
        for index, (text, time) in enumerate(zip(outputs, times, strict=True))
    ]
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "complete": complete,
        "run": run,
        "summary": summary(questions),
        "questions": questions,
    }
    path.write_text(json.dumps(result))


@pytest.fixture
def compared(normport: Command, folder: Path) -> Command:
    return lambda *arguments: normport("gsm8k", "compare", "a.json", "b.json", *arguments)


def test_identical_runs(compared: Command, folder: Path) -> None:
    for name in ("a.json", "b.json"):
        a_run(folder / name, ["so\n#### 7", "none"])
    ran = compared("--require-identical")
    assert ran.status == 0
    assert "outputs: 2 identical, 0 different" in ran.out
    assert "strict-match: 50.0% -> 50.0% correct, 1 -> 1 invalid" in ran.out


def test_a_harmless_difference(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["it is seven\n#### 7"])
    a_run(folder / "b.json", ["it is 7 in all\n#### 7"])
    ran = compared()
    assert ran.status == 0
    assert "question 0: from character 6, token 6 on" in ran.out
    assert "before 'it is seven\\n#### 7'" in ran.out
    assert compared("--require-identical").status == 1


def test_one_output_is_the_start_of_the_other(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"], tokens=False)
    a_run(folder / "b.json", ["7\n"], tokens=False)
    assert "question 0: from character 1 on" in compared().out


def test_a_lost_answer(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["#### 7", "#### 8"])
    a_run(folder / "b.json", ["#### 9", "#### 7"])
    ran = compared()
    assert ran.status == 1
    for name in ("strict-match", "flexible-extract", "vllm"):
        assert f"  lost: question 0 by {name}\n  " in ran.out
        assert f"  gained: question 1 by {name}\n" in ran.out


def test_an_answer_lost_by_one_scorer_alone(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["#### 7"])
    a_run(folder / "b.json", ["#### 7 or 8"])
    ran = compared()
    assert ran.status == 1
    assert "lost: question 0 by strict-match" not in ran.out
    assert "lost: question 0 by vllm" in ran.out


def test_a_new_invalid_output(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["#### 8"])
    a_run(folder / "b.json", ["eight"])
    ran = compared()
    assert ran.status == 1
    assert "lost" not in ran.out
    assert "newly invalid: question 0 by vllm" in ran.out
    assert "strict-match: 0.0% -> 0.0% correct, 0 -> 1 invalid" in ran.out


def test_a_gain_alone_is_fine(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["eight"])
    a_run(folder / "b.json", ["#### 7"])
    assert compared().status == 0


def test_settings_that_differ_are_named(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"])
    a_run(folder / "b.json", ["7"], run={**RUN, "vllm_version": "0.30.0"})
    assert "  vllm_version: '0.29.0' before, '0.30.0' after\n" in compared().out


def test_a_setting_of_several_parts_is_told_in_words(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"], run={**RUN, "patch_series": {"state": "unknown"}})
    state = {"state": "applied", "release": "0.29.0", "patches": ["1.patch", "2.patch"]}
    a_run(folder / "b.json", ["7"], run={**RUN, "patch_series": state})
    told = "  patch_series: state unknown before, state applied, release 0.29.0, patches 2 after\n"
    assert told in compared().out


def test_speed_of_a_resumed_run(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"] * 4, ms=[10, 20, 30, 40])
    a_run(folder / "b.json", ["7"] * 4, ms=[5, 10, 15, 20], run={**RUN, "resumed_after": [2]})
    assert "a resumed run was timed in more than one session, so no claim" in compared().out
    assert compared("--json", "c.json").status == 0
    assert json.loads((folder / "c.json").read_text())["resumed"] is True


def test_speed_with_its_spread(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"] * 4, ms=[10, 20, 30, 40])
    a_run(folder / "b.json", ["7"] * 4, ms=[11, 22, 33, 44])
    # Each question takes 10 % longer, so every resampling of the pairs says the same.
    assert "ms/token: +10.00 % (lower is better), 95% interval +10.00 to +10.00" in compared().out


def test_speed_that_shows_nothing(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["7"] * 2, ms=[10, 10])
    a_run(folder / "b.json", ["7"] * 2, ms=[8, 12])
    ran = compared()
    assert "no change is shown, the interval holds 0" in ran.out
    assert compared().out == ran.out  # the resampling is seeded


def test_speed_of_one_question(compared: Command, folder: Path) -> None:
    for name in ("a.json", "b.json"):
        a_run(folder / name, ["7"])
    assert "one question says nothing about the spread, so no claim" in compared().out


def test_json(compared: Command, folder: Path) -> None:
    a_run(folder / "a.json", ["#### 7"])
    a_run(folder / "b.json", ["#### 6"])
    assert compared("--json", "c.json").status == 1
    written = json.loads((folder / "c.json").read_text())
    assert written["lost"][0] == ["strict-match", 0]
    assert written["divergences"][0]["character"] == 5


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"outputs": ["7", "7"]}, "a.json answers 1 question and b.json 2, not the same ones"),
        ({"prompt": "Other"}, "a.json and b.json have different prompts for question 0"),
        ({"complete": False}, "b.json is not complete: finish the run with --resume"),
    ],
)
def test_runs_that_cannot_be_compared(
    compared: Command, folder: Path, keywords: dict[str, Any], said: str
) -> None:
    a_run(folder / "a.json", ["7"])
    a_run(folder / "b.json", **{"outputs": ["7"], **keywords})
    ran = compared()
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"kind": "normport gsm8k", "schema": 9}'])
def test_no_result_file(compared: Command, folder: Path, content: str) -> None:
    a_run(folder / "a.json", ["7"])
    (folder / "b.json").write_text(content)
    ran = compared()
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.startswith("error: b.json ")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda q: q.append(3), "entry 2 of its questions is damaged"),
        (lambda q: q[1].pop("tokens"), "entry 1 of its questions is damaged"),
        (lambda q: q[0].update(output="#### 8"), "entry 0 of its questions is damaged"),
        (lambda q: q[0].update(output="\ud800"), "entry 0 of its questions is damaged"),
        (lambda q: q[0].update(ms_per_token=float("nan")), "entry 0 of its questions is damaged"),
        (lambda q: q[0]["scores"].pop("vllm"), "entry 0 of its questions is damaged"),
        (lambda q: q[0]["scores"]["vllm"].update(verdict="fine"), "entry 0 of its questions is"),
        (lambda q: q[0].update(tokens=["x"]), "entry 0 of its questions is damaged"),
        (lambda q: q[1].update(index=0), "answers a question twice"),
    ],
)
def test_a_result_file_that_was_edited(
    compared: Command, folder: Path, edit: Callable[[list[Any]], None], said: str
) -> None:
    for name in ("a.json", "b.json"):
        a_run(folder / name, ["#### 7", "none"])
    value = json.loads((folder / "b.json").read_text())
    edit(value["questions"])
    (folder / "b.json").write_text(json.dumps(value))
    ran = compared("--json", "c.json")
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.startswith("error: b.json")
    assert said in ran.error
    assert not (folder / "c.json").exists()
