"""The documentation shows what the code derives and what the command answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from car_configs import FP8, dense, moe, quantized

from normport.layers.car_rmsnorm.tables import markdown
from normport.tools.cli import run

PAGE = Path(__file__).parents[2] / "docs" / "car-rmsnorm.md"
MODELS = {
    "27B.json": dense(),
    "27B-FP8.json": quantized(dense(), FP8),
    "35B-A3B.json": moe(),
    "35B-A3B-FP8.json": quantized(moe(), FP8),
}


def block(name: str) -> str:
    return PAGE.read_text().split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0]


def test_the_page_shows_the_generated_table() -> None:
    assert block("contract") == markdown()


def test_every_published_field_is_derived() -> None:
    def fields(table: str) -> list[list[str]]:
        lines = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]
        return [[field.strip().replace(", ", ",") for field in line] for line in lines]

    published = fields(block("published").replace("| TP", "| "))
    assert len(published) == 4
    assert published == fields(block("contract"))[:4]


def test_the_page_shows_what_the_command_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, config in MODELS.items():
        (tmp_path / name).write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    shown = block("route")
    commands = [line for line in shown.splitlines() if line.startswith("    $ ")]
    assert len(commands) >= 9
    answers = []
    for command in commands:
        assert run(shlex.split(command.removeprefix("    $ normport "))) == 0
        answers += [command, *("    " + line for line in capsys.readouterr().out.splitlines())]
    assert "\n" + "\n".join(answers) + "\n\n" == shown
