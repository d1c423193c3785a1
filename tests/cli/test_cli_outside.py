"""What other files use of a file is found, however they write it, and wherever they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_sources import MODEL, SCALE, UNPROVEN, Command, commit_all

from normport.tools.discover import MARKERS

IMPORT = "from ..models.model import OffsetNorm\n"


def write(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


@pytest.fixture
def codes(normport: Command) -> Callable[..., set[str]]:
    """The codes of the findings in the arguments."""

    def scan(*arguments: str | Path) -> set[str]:
        result = normport("scan", "--no-proof", "--output-format=json", *arguments)
        return {finding["code"] for finding in result.json["findings"]}

    return scan


@pytest.mark.parametrize(
    "other",
    [
        "import model as m\n\n\ndef make():\n    return m.OffsetNorm(64)\n",
        "from model import (\n    Layer,  # the layer (old)\n    OffsetNorm,\n)\n",
        "import sys; from model import OffsetNorm\n",
        "import sys\n\nif sys: from model import OffsetNorm as O\n",
        "from model \\\n    import OffsetNorm\n",
        'import importlib\n\nX = importlib.import_module("model").OffsetNorm\n',
        'import importlib\n\nX = getattr(importlib.import_module("model"), "OffsetNorm")\n',
        'PATHS = {"norm": "model:OffsetNorm"}\n',
        "from model import *\n",
        "from model import\\\n    *\n",
        "import model as m\n\n\nclass OffsetNorm(m.OffsetNorm):\n    pass\n",
        "if 1: import model; X = model. OffsetNorm\n",
    ],
)
@pytest.mark.parametrize("argument", [".", "model.py"])
def test_any_form_of_use_counts(
    folder: Path, codes: Callable[..., set[str]], other: str, argument: str
) -> None:
    write(folder, {"model.py": MODEL, "other.py": other})
    assert codes(argument) == {"NP220"}


@pytest.mark.parametrize(
    "other",
    [
        "from model import Layer\n",
        "from models import OffsetNorm\n",
        "from model import OffsetNormal\n",
        "from elsewhere import *\n",
        '"""A model of its own."""\n\n\nclass OffsetNorm:\n    pass\n',
    ],
)
def test_other_names_do_not_count(folder: Path, codes: Callable[..., set[str]], other: str) -> None:
    write(folder, {"model.py": MODEL, "other.py": other})
    assert codes(".") == {"NP101"}


def test_package_may_be_meant_without_its_name(
    folder: Path, codes: Callable[..., set[str]]
) -> None:
    write(folder, {"pack/__init__.py": MODEL, "pack/other.py": "from . import OffsetNorm\n"})
    assert codes("pack") == {"NP220"}


def test_tests_of_the_same_checkout(folder: Path, codes: Callable[..., set[str]]) -> None:
    write(folder, {marker.as_posix(): "" for marker in MARKERS})
    write(folder, {"vllm/models/model.py": MODEL})
    assert codes("vllm") == {"NP101"}
    write(folder, {"tests/test_model.py": "from vllm.models.model import OffsetNorm\n"})
    assert codes("vllm") == {"NP220"}


def test_installed_package_is_looked_at_alone(folder: Path, codes: Callable[..., set[str]]) -> None:
    write(folder, {marker.as_posix(): "" for marker in MARKERS})
    write(folder, {"vllm/models/model.py": MODEL, "vllm-0.29.0.dist-info/RECORD": ""})
    write(folder, {"apart/other.py": "from vllm.models.model import OffsetNorm\n"})
    assert codes("vllm") == {"NP101"}
    write(folder, {"vllm/other/other.py": IMPORT})
    assert codes("vllm/models") == {"NP220"}


def test_git_work_tree(folder: Path, codes: Callable[..., set[str]]) -> None:
    write(folder, {"pkg/models/model.py": MODEL, ".hidden/other.py": IMPORT})
    commit_all(folder)
    assert codes("pkg/models") == {"NP101"}
    write(folder, {"far/away/other.py": "from pkg.models.model import OffsetNorm\n"})
    assert codes("pkg/models") == codes("pkg/models/model.py") == {"NP220"}


@pytest.mark.parametrize("argument", ["pkg/models", "pkg/models/model.py"])
@pytest.mark.parametrize("inits", [(), ("pkg/__init__.py", "pkg/models/__init__.py")])
def test_package_above_the_argument(
    folder: Path, codes: Callable[..., set[str]], argument: str, inits: tuple[str, ...]
) -> None:
    write(folder, {"pkg/models/model.py": MODEL, "pkg/other/other.py": IMPORT})
    write(folder, dict.fromkeys(inits, ""))
    assert codes(argument) == {"NP220"}


def test_folder_beside_that_is_no_package_with_it(
    folder: Path, codes: Callable[..., set[str]]
) -> None:
    write(folder, {"one/model.py": MODEL, "two/model.py": MODEL})
    write(folder, {"two/other.py": "from model import OffsetNorm\n"})
    assert codes("one") == {"NP101"}


def test_import_that_another_file_takes_stays(folder: Path, normport: Command) -> None:
    extra = "import torch\nimport math\n"
    text = MODEL.replace("import torch\n", extra).replace("1e-6", "math.exp(-14)")
    write(folder, {"model.py": text, "other.py": "import torch\nimport math\nimport model\n"})
    assert normport("rewrite", *UNPROVEN, "--write", "model.py").status == 0
    assert "OffsetNorm" not in (folder / "model.py").read_text().replace("GemmaRMSNorm", "")
    assert "import math" not in (folder / "model.py").read_text()
    write(folder, {"model.py": text, "other.py": "from model import Layer, math\n"})
    assert normport("rewrite", *UNPROVEN, "--write", "model.py").status == 0
    assert "import math" in (folder / "model.py").read_text()


def findings(normport: Command) -> list[Any]:
    found: list[Any] = normport("scan", "--no-proof", "--output-format=json", ".").json["findings"]
    return found


@pytest.mark.parametrize(
    ("use", "quoted"),
    [
        ("self.first(x) * self.first.eps", "self.first.eps"),
        ("x * self.first.weight", "self.first.weight"),
        ("self.first(x, x)", "self.first(x, x)"),
        ("self.first(*x)", "self.first(*x)"),
        ("self.first(x, out=x)", "self.first(x, out=x)"),
        ("f(self.first)", "f(self.first)"),
        ("self.first == x", "self.first"),
    ],
)
def test_attribute_read_by_another_file(
    folder: Path, normport: Command, use: str, quoted: str
) -> None:
    sub = f"class Sub(Layer):\n    def forward(self, x):\n        return {use}\n"
    write(folder, {"model.py": MODEL, "other.py": "from model import Layer\n\n\n" + sub})
    first, second = findings(normport)
    assert (first["code"], first["verdict"], first["target"]) == ("NP214", "refuse", None)
    where = "is used in line 6 of other.py, another file"
    told = "do without it there, or leave the class."
    assert first["reason"] == f"OffsetNorm: `{quoted}` {where}; {told}"
    assert second["verdict"] == "convert"
    assert normport("rewrite", *UNPROVEN, "--write", "model.py").status == 0
    left = (folder / "model.py").read_text()
    assert "self.first = OffsetNorm(" in left
    assert "self.second = GemmaRMSNorm(" in left


@pytest.mark.parametrize(
    "body",
    [
        "self.first(x)",
        "self.first is not None",
        "setattr(self, 'x', 1)",
        "torch.first.eps",
        "'.first.eps'",
    ],
)
def test_attribute_that_is_only_called(folder: Path, normport: Command, body: str) -> None:
    sub = f"class Sub(Layer):\n    def forward(self, x):\n        return {body}\n"
    write(folder, {"model.py": SCALE, "other.py": f"import torch\nfrom model import Layer\n{sub}"})
    assert {finding["verdict"] for finding in findings(normport)} == {"convert"}


def test_attribute_that_is_set(folder: Path, normport: Command) -> None:
    other = "from model import Layer\n\n\ndef strip(layer: Layer):\n    layer.first = None\n"
    write(folder, {"model.py": MODEL, "other.py": other})
    assert {finding["verdict"] for finding in findings(normport)} == {"convert"}


def test_file_that_does_not_parse_counts_as_a_use(folder: Path, normport: Command) -> None:
    write(folder, {"model.py": MODEL, "other.py": "from model import Layer\nLayer.first(\n"})
    first, second = findings(normport)
    assert first["code"] == "NP214"
    assert "other.py, which names Layer, does not parse" in first["reason"]
    assert second["verdict"] == "convert"


HOLDER = (
    MODEL
    + """

class Model(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(config)])


class Other(nn.Module):
    pass
"""
)
MTP = "from .model import {0}\n\n\nclass Mtp({0}):\n    def forward(self, x):\n        {1}\n"


@pytest.mark.parametrize(
    "statement",
    [
        "return self.layers[0].first.eps",
        "return self.layers[0].first(x, x)",
        "for layer in self.layers: x = layer.first.weight * x",
    ],
)
def test_a_file_reads_through_what_holds_the_owner(
    folder: Path, codes: Callable[..., set[str]], statement: str
) -> None:
    """It need not name the class whose attribute it reads."""
    other = MTP.format("Model", statement)
    write(folder, {"model.py": HOLDER, "mtp.py": other})
    assert codes("model.py") == {"NP214", "NP101"}  # only the one that is read


@pytest.mark.parametrize(
    "other",
    [
        MTP.format("Other", "return self.layers[0].first.eps"),
        MTP.format("Model", "return self.layers[0].first(x)"),
        MTP.format("Model", "self.first = x; return self.first.eps"),
        MTP.format("Model", "return x.first.eps").replace(".model", ".elsewhere"),
    ],
)
def test_a_file_that_does_not_reach_the_owner(
    folder: Path, codes: Callable[..., set[str]], other: str
) -> None:
    write(folder, {"model.py": HOLDER, "mtp.py": other})
    assert codes("model.py") == {"NP101"}
