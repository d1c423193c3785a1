"""GSM8K prompts and verdicts against the real lm-evaluation-harness, its own task object.

    pip install lm_eval==0.4.13
    python -m pytest -W default tests/evidence/check_harness.py

Not collected with the other tests, because nothing else needs the package. No data set is fetched:
the task is given the records made here.
"""

from __future__ import annotations

import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from datasets import Dataset, DatasetDict
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from normport.tools.gsm8k.data import Problems, Record
from normport.tools.gsm8k.prompts import HARNESS_SEED, STOPS, Style, prompts
from normport.tools.gsm8k.scoring import HARNESS_INVALID, score

OUTPUTS = 4000
SHOTS = 5

PARTS = [
    *("#### ", "####", "#### -", "$", "\u20ac", ",", ".", "..", "-", "\u2212", " ", "\n", "\r\n"),
    *("%", "x", "A", "[invalid]", "answer is ", "\u0663", "\u00b2", "\uff11", "\\boxed{", "}"),
    *("0", "1", "7", "18", "1,000", "3.50", "007", "+", "e5", "_", "\t", "\u00a0", "\u2028"),
    *("\u0130", "$$", "-$5", "#### $80", "5.", ".5", "Question:"),
]
"""What outputs are put together from: all that the patterns look at, and what looks like it."""


def records(count: int, start: int) -> list[dict[str, str]]:
    return [
        {"question": f"How many are {n} and {n}? ", "answer": f"{n} + {n}\n#### {2 * n:,}"}
        for n in range(start, start + count)
    ]


TRAIN, TEST = records(200, 400), records(60, 1000)


class Task(ConfigurableTask):  # type: ignore[misc]
    """The harness's task with the records above."""

    def download(self, *_: object, **__: object) -> None:
        self.dataset = DatasetDict(train=Dataset.from_list(TRAIN), test=Dataset.from_list(TEST))


@pytest.fixture(scope="module")
def task() -> Any:
    folder = Path(lm_eval.tasks.__file__).parent
    made = Task(config=yaml.safe_load((folder / "gsm8k" / "gsm8k.yaml").read_text()))
    made.set_fewshot_seed(seed=HARNESS_SEED)
    return made


def test_version(task: Any) -> None:
    assert version("lm_eval") == "0.4.13"
    assert task.VERSION == 3.0
    assert task.config.num_fewshot == SHOTS


def test_prompts_and_stops(task: Any) -> None:
    train, test = (tuple(Record(**each) for each in part) for part in (TRAIN, TEST))
    ours = prompts(Problems(test, train, "test", "train"), Style.harness, SHOTS, len(test))
    assert [each.prompt for each in ours] == [task.fewshot_context(each, SHOTS) for each in TEST]
    assert tuple(task.config.generation_kwargs["until"]) == STOPS[Style.harness]


def test_verdicts(task: Any) -> None:
    draw = random.Random(7)
    seen = set()
    for _ in range(OUTPUTS):
        output = "".join(draw.choices(PARTS, k=draw.randint(0, 9)))
        # Mostly a reference that may agree with it.
        number = draw.choice([*(one.answer for one in score(output, "#### 1").values()), "18"])
        answer = "work\n#### " + draw.choice([number, f"{number}.", f"${number}", f"{number}\n"])
        asked = {"question": "q", "answer": answer}
        request = Instance(request_type="generate_until", doc=asked, arguments=("", {}), idx=0)
        request.resps = [output]
        ours = score(output, answer)
        for part in task._filters:
            part.apply([request])
            taken = request.filtered_resps[part.name]
            right = bool(task.process_results(asked, [taken])["exact_match"])
            invalid = taken == HARNESS_INVALID and not right
            verdict = "correct" if right else "invalid" if invalid else "wrong"
            assert (ours[part.name].answer, ours[part.name].verdict) == (taken, verdict), output
            seen.add((part.name, verdict))
    assert len(seen) == 6
