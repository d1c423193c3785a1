"""A norm class that several files construct is converted in all of them, or in none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_sources import MODEL, UNPROVEN, Command
from test_cli_outside import write

from normport.tools.discover import discover
from normport.tools.pipeline import Settings, run
from normport.tools.sharing import grouped, united

OTHER = """\
import torch
from torch import nn

from .model import Layer, OffsetNorm


class Head(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.layer = Layer(config)
        self.last = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x))
"""
PACKAGE = {"pkg/__init__.py": "", "pkg/model.py": MODEL}
BUILD = "self.last = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)"


def findings(normport: Command, *arguments: str) -> dict[tuple[str, int], dict[str, Any]]:
    result = normport("scan", "--no-proof", "--output-format=json", *(arguments or (".",)))
    return {(f["path"].rpartition("/")[2], f["line"]): f for f in result.json["findings"]}


def rewrite(normport: Command) -> int:
    status: int = normport("rewrite", *UNPROVEN, "--write", ".").status
    return status


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("from .model", "from pkg.model"),
        ("OffsetNorm", "OffsetNorm as Local"),
        ("self.last =", "self.last: OffsetNorm ="),
        ("self.last =", 'self.last: "OffsetNorm" ='),
    ],
)
def test_all_files_change_together(folder: Path, normport: Command, old: str, new: str) -> None:
    other = OTHER.replace(old, new, 1) if old else OTHER
    if "Local" in new:
        other = other.replace("= OffsetNorm(", "= Local(")
    write(folder, {**PACKAGE, "pkg/other.py": other})
    found = findings(normport)
    assert {f["verdict"] for f in found.values()} == {"convert"}
    assert len(found) == 3
    assert rewrite(normport) == 0
    texts = [(folder / f"pkg/{name}.py").read_text() for name in ("model", "other")]
    for text in texts:
        compile(text, "m.py", "exec")
        assert " OffsetNorm" not in text
        assert "from vllm.model_executor.layers.layernorm import GemmaRMSNorm\n" in text
    assert texts[1].count("import Layer\n") == 1
    assert "class OffsetNorm" not in texts[0]
    assert rewrite(normport) == 0
    assert [(folder / f"pkg/{name}.py").read_text() for name in ("model", "other")] == texts


def test_a_file_that_only_constructs(folder: Path, normport: Command) -> None:
    """Its own text has no root and no mean; and the defining file constructs nothing."""
    norm = MODEL[: MODEL.index("class Layer")].rstrip() + "\n"
    other = OTHER.replace("Layer, ", "").replace("self.layer = Layer(config)\n", "self.n = 1\n")
    other = other.replace("self.layer(x)", "x")
    write(folder, {"pkg/__init__.py": "", "pkg/model.py": norm, "pkg/other.py": other})
    found = findings(normport)
    assert {key: f["code"] for key, f in found.items()} == {
        ("model.py", 7): "NP219",
        ("other.py", 11): "NP101",
    }
    assert rewrite(normport) == 0
    assert "OffsetNorm" not in (folder / "pkg/other.py").read_text()
    assert (folder / "pkg/model.py").read_text() == norm


def test_the_other_file_must_be_given(folder: Path, normport: Command) -> None:
    write(folder, {**PACKAGE, "pkg/other.py": OTHER})
    found = findings(normport, "pkg/model.py")
    assert {f["code"] for f in found.values()} == {"NP220"}
    (reason,) = {f["reason"] for f in found.values()}
    assert (
        reason
        == "OffsetNorm: other.py constructs it too and is not looked at; name that file as well."
    )
    assert len(findings(normport, "pkg/model.py", "pkg/other.py")) == 3


REFUSED = {
    "star": ("line 4 of pkg/other.py may import it with *", "Layer, OffsetNorm", "*"),
    "string": (
        "a string in line 7 of pkg/other.py names it",
        "class Head",
        'NAMES = ["OffsetNorm"]\n\n\nclass Head',
    ),
    "attribute": (
        "line 11 of pkg/other.py uses `model.OffsetNorm`",
        BUILD,
        BUILD.replace("OffsetNorm(", "model.OffsetNorm("),
    ),
    "under a condition": (
        "line 5 of pkg/other.py imports it under a condition",
        "from .model import Layer, OffsetNorm",
        "if torch:\n    from .model import Layer, OffsetNorm",
    ),
    "not constructed": (
        "pkg/other.py imports it and does not construct it",
        BUILD,
        "self.last = f",
    ),
    "does not parse": ("pkg/other.py names it and does not parse", "def forward(self", "def f(("),
}


@pytest.mark.parametrize(("words", "old", "new"), REFUSED.values(), ids=REFUSED)
def test_a_use_that_is_not_followed_is_named(
    folder: Path, normport: Command, words: str, old: str, new: str
) -> None:
    assert old in OTHER
    write(folder, {**PACKAGE, "pkg/other.py": OTHER.replace(old, new)})
    found = findings(normport)
    assert {f["code"] for (name, _), f in found.items() if name == "model.py"} == {"NP220"}
    assert {f["verdict"] for f in found.values()} == {"refuse"}
    assert words in found["model.py", 22]["reason"]


def test_a_third_file_that_takes_it_from_the_second(folder: Path, normport: Command) -> None:
    third = "from .other import OffsetNorm\n\nX = OffsetNorm(4)\n"
    write(folder, {**PACKAGE, "pkg/other.py": OTHER, "pkg/third.py": third})
    reason = findings(normport)["model.py", 22]["reason"]
    assert "line 1 of pkg/third.py takes it from pkg/other.py" in reason


SPOILED = {
    "another use": ("NP209", "return self.last(self.layer(x))", "return f(self.last, x)"),
    "isinstance": ("NP211", "return self", "assert isinstance(x, OffsetNorm)\n        return self"),
    "an import that is guarded": ("NP302", "OffsetNorm\n", "OffsetNorm  # noqa: F401\n"),
}


@pytest.mark.parametrize(("code", "old", "new"), SPOILED.values(), ids=SPOILED)
def test_one_refusal_keeps_all(
    folder: Path, normport: Command, code: str, old: str, new: str
) -> None:
    other = OTHER.replace(old, new, 1)
    write(folder, {**PACKAGE, "pkg/other.py": other})
    found = findings(normport)
    assert found["other.py", 11]["code"] == code
    assert {f["code"] for (name, _), f in found.items() if name == "model.py"} == {"NP226"}
    assert "line 11 of pkg/other.py is refused: " in found["model.py", 22]["reason"]
    assert rewrite(normport) == 0
    assert (folder / "pkg/model.py").read_text() == MODEL
    assert (folder / "pkg/other.py").read_text() == other


@pytest.mark.parametrize(
    ("line", "kept"),
    [("logger = init_logger(__name__)", False), ("REGISTRY.add(nn)", True), ("x = f()", True)],
)
def test_an_import_with_an_effect_stays(
    folder: Path, normport: Command, line: str, kept: bool
) -> None:
    """The last name of an import goes only from a file that does nothing but define."""
    other = OTHER.replace("Layer, ", "").replace("Layer(config)", "nn.Identity()")
    model = MODEL.replace("\n\nclass Layer", f"\n\n{line}\n\n\nclass Layer")
    write(folder, {**PACKAGE, "pkg/model.py": model, "pkg/other.py": other})
    rewrite(normport)
    assert ("from .model" in (folder / "pkg/other.py").read_text()) == kept
    found = findings(normport)
    assert {f["verdict"] for f in found.values()} == {"refuse" if kept else "done"}
    if kept:
        assert "may have an effect" in found["model.py", 25]["reason"]


def test_calls_that_change_in_a_file_whose_calls_others_make(
    folder: Path, normport: Command
) -> None:
    model = MODEL.replace(
        "def forward(self, x: torch.Tensor)", "def forward(self, x, mask=None)", 1
    )
    model = model.replace("self.first(x)", "self.first(x, mask=None)")
    write(folder, {"model.py": model, "other.py": "from model import Layer\n"})
    assert {f["verdict"] for f in findings(normport).values()} == {"convert"}
    caller = "from model import Layer\n\n\ndef f(layer: Layer, x):\n    return layer.first(x)\n"
    write(folder, {"other.py": caller})
    first = findings(normport)["model.py", 22]
    assert first["code"] == "NP208"
    why = "its calls change, and other.py may hold another one"
    assert first["reason"].startswith(f"OffsetNorm: {why}; look at that file, and ")


def test_files_that_change_together_are_one_patch(folder: Path) -> None:
    write(folder, {**PACKAGE, "pkg/a_user.py": OTHER, "pkg/apart.py": MODEL})
    files, errors = discover([folder])
    settings = Settings(proof=False, accept=frozenset({"unproven"}))
    report = run(files, errors, settings)
    groups = [[one.file.name for one in group] for group in grouped(report.changed)]
    assert groups == [["model.py", "a_user.py"], ["apart.py"]]
    both = united(grouped(report.changed)[0])
    assert both.file.name == "model.py"
    assert len(both.findings) == len(both.sites) == 3
    assert both.removed == ("OffsetNorm", "OffsetNorm")


def test_files_with_attributes_of_the_same_name_have_nothing_to_do_with_each_other(
    folder: Path, normport: Command
) -> None:
    """One file's calls are rewritten with its ``Layer.first``; another one's is refused."""
    called = MODEL.replace("self.second(self.first(x))", "self.second(x=self.first(x=x))")
    read = MODEL.replace("self.second(self.first(x))", "self.second.weight * self.first.eps")
    write(folder, {"pkg/__init__.py": "", "pkg/called.py": called, "pkg/read.py": read})
    verdicts = {(file, f["verdict"]) for (file, _), f in findings(normport).items()}
    assert verdicts == {("called.py", "convert"), ("read.py", "refuse")}
