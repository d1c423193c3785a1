"""A few of the generated and mutated files of ``make fuzz``, and whether it would find a fault."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from fuzz import __main__ as fuzz_main
from fuzz import behavior, generated, mutated
from fuzz.choices import Choices, plainest
from fuzz.commands import Done, FaultError, check_told
from fuzz.mutations import mutate

from normport.tools.tree import SourceTree

SEED = "tests"
OLD = b"""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)
"""


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_generated_files_are_rewritten_once_and_do_the_same(first: int, tmp_path: Path) -> None:
    cases = [generated.make(f"{SEED}:{number}") for number in range(first, first + 25)]
    tally = generated.check_all(cases, tmp_path)
    assert tally.faults == {}
    assert tally.counts.total() == 25
    assert tally.counts["converted"] >= 2


def test_what_the_proof_calls_safe_is_bit_equal(tmp_path: Path) -> None:
    cases = [generated.make(f"{SEED}:{number}") for number in range(6)]
    tally = generated.check_all(cases, tmp_path, proof=True)
    assert tally.faults == {}
    assert tally.counts["converted"] >= 1


@pytest.mark.release
def test_mutated_files_are_left_or_rewritten_whole(
    release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    files = mutated.corpus(release("0.29.0").root)
    assert len(set(files)) > 100
    outcomes = {
        mutated.check(mutated.make(f"{SEED}:{n}", files), tmp_path, process=n == 0)
        for n in range(30)
    }
    assert {"error", "left"} <= outcomes
    assert not list(tmp_path.iterdir())


def test_a_seed_makes_the_same_case_again() -> None:
    assert generated.make("1:2").files == generated.make("1:2").files
    assert generated.make("1:2").files != generated.make("1:3").files
    data = OLD * 5
    assert mutate(Random("1"), data) == mutate(Random("1"), data)


def test_a_failing_case_is_made_plainer() -> None:
    def fails(choices: Choices) -> bool:
        return choices.pick("guilty", ("no", "yes")) == "yes" and choices.pick("b", "xyz") in "xyz"

    seed = next(f"s{n}" for n in range(99) if odd_in_both(f"s{n}"))
    assert plainest(seed, fails, ["b", "guilty"]) == frozenset({"b"})


def odd_in_both(seed: str) -> bool:
    choices = Choices(seed)
    return choices.pick("guilty", ("no", "yes")) == "yes" and choices.pick("b", "xyz") != "x"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rms_norm_eps", "rms_norm_eps * 1.1", "results differ"),
        ("self.weight", "self.scale", "the checkpoint's scale"),
        ("(config.hidden_size)", "(1, config.hidden_size)", "the checkpoint's weight"),
        ("(config.hidden_size)", "(config.hidden_size), False", "trained"),
        (".to(x.dtype)", "", "torch.bfloat16 became"),
        ("return (h", "return 1 / 0 + (h", "fails where the old one ran"),
        ("import torch\n", "import torch\nimport nowhere\n", "fails where the old one ran"),
        ("self.eps =", "next(config.epsilons)\n        self.eps =", "epsilons_left"),
        ("self.eps =", "self.part = nn.Identity()\n        self.eps =", "modules"),
    ],
)
def test_what_behaves_differently_is_found(old: str, new: str, told: str) -> None:
    assert behavior.compare({"model.py": OLD}, {"model.py": OLD}, exact=True) == "same"
    assert old.encode() in OLD
    changed = OLD.replace(old.encode(), new.encode())
    with pytest.raises(FaultError, match=told):
        behavior.compare({"model.py": OLD}, {"model.py": changed}, exact=True)


def test_what_does_not_run_is_no_program() -> None:
    assert behavior.compare({"model.py": b"import nowhere"}, {}, exact=True) == "no program"


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (Done(3, "", ""), "exit status 3"),
        (Done(1, "", "Traceback (most recent call last):\n"), "Python's own words"),
        (Done(2, "", "nothing\n"), "exit status 2 with 0 errors"),
        (Done(0, "", "error: a.py is odd.\n"), "exit status 0 with 1 errors"),
        (Done(2, "", "error: a.py is odd\n"), "no sentence"),
    ],
)
def test_what_must_not_be_said_is_found(done: Done, told: str) -> None:
    with pytest.raises(FaultError, match=told):
        check_told(done)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz", *arguments])
    return fuzz_main.main()


def test_a_failure_is_kept_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = generated.compare

    def broken(*arguments: object, exact: bool) -> str:
        raise FaultError("it is broken")

    monkeypatch.setattr(generated, "compare", broken)
    monkeypatch.setattr(fuzz_main, "plainest", lambda *_: frozenset())  # has a test of its own
    seed = next(f"{n}" for n in range(99) if converts(f"{n}:25", tmp_path))
    options = (f"--seed={seed}", "--cases=1", "--first=25", "--mutants=0", f"--out={tmp_path}")
    assert run_main(monkeypatch, *options) == 1
    assert f"seed {seed}" in capsys.readouterr().out
    kept = tmp_path / f"generated-{seed}-25.json"
    assert json.loads(kept.read_text())["fault"] == "it is broken"
    assert b"Model" in (tmp_path / f"generated-{seed}-25-model.py").read_bytes()
    assert run_main(monkeypatch, f"--replay={kept}") == 1
    monkeypatch.setattr(generated, "compare", real)
    assert run_main(monkeypatch, f"--replay={kept}") == 0


def converts(seed: str, folder: Path) -> bool:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return bool(generated.check_all([generated.make(seed)], work).faults)
