"""The documentation shows what the code derives and what the command answers."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from car_configs import FP8, dense, moe, quantized

from normport.layers.car_rmsnorm.contract import CONTRACT
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


MUSA = """\
import sys
from functools import cache
from typing_extensions import ParamSpec
from vllm.logger import init_logger


class MUSAPlatformBase:
    @classmethod
    def get_pass_manager_cls(cls):
        return "theirs"


class MtmlMUSAPlatform(MUSAPlatformBase):
    @classmethod
    @cache
    def get_device_capability(cls):
        return 31


MUSAPlatform = MtmlMUSAPlatform
"""
"""What the patch is about, in the form that vllm-musa has it."""


def test_the_pages_patch_applies_and_puts_the_mixin_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm_musa").mkdir()
    platform = tmp_path / "vllm_musa" / "platform.py"
    platform.write_text(MUSA)
    patch = block("patch").removeprefix("```diff\n").removesuffix("```\n")
    # Away from any repository, and read as git reads a patch, by its own rules.
    subprocess.run(
        ["git", "apply", "-"],
        input=patch,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        check=True,
    )
    for name in ("vllm", "vllm.logger"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(init_logger=None))
    found = runpy.run_path(str(platform))["MUSAPlatform"]
    assert found.get_pass_manager_cls().endswith("car_rmsnorm.factories.make_pass_manager")
    assert found.stock_pass_manager_cls() == "theirs"
    assert found.get_device_capability() == 31
    assert found.car_rmsnorm_table is CONTRACT


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
