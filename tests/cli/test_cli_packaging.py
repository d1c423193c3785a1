"""What is installed: every package of ours, nothing else, and no torch for the base."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("codemods", "layers", "kernels", "tools")


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {
        ".".join(("normport", *file.parent.relative_to(ROOT).parts))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == found


def test_base_install_asks_for_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [need for need in project["dependencies"] if "torch" in need]
    assert [need for need in project["optional-dependencies"]["proof"] if "torch" in need]


def test_codemods_import_neither_torch_nor_vllm_and_layers_no_libcst() -> None:
    code = (
        "import sys\n"
        "import normport.codemods.analyze, normport.codemods.edit\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, normport.layers\nassert 'libcst' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
