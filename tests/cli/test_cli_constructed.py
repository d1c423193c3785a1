"""A refused class counts as one site where it is defined; its constructions elsewhere are told."""

from __future__ import annotations

from pathlib import Path

from cli_sources import REFUSED, Command

ALONE, _, _ = REFUSED.partition("\n\n\nclass Layer")
USER = """\
from torch import nn

from norms import {name}{alias}


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first = {local}(config.size)
        self.second = {local}(config.size)
"""


def test_where_other_files_construct_it(folder: Path, normport: Command) -> None:
    name = ALONE.partition("(nn.Module)")[0].rpartition("class ")[2]
    (folder / "norms.py").write_text(ALONE + "\n")
    (folder / "one.py").write_text(USER.format(name=name, alias="", local=name))
    (folder / "two.py").write_text(USER.format(name=name, alias=" as N", local="N"))
    (folder / "none.py").write_text(f"from norms import {name}\n\nALL = [{name}]\n")
    (folder / "other.py").write_text(
        USER.replace("norms", "elsewhere").format(name=name, alias="", local=name)
    )
    (finding,) = normport("scan", "--no-proof", "--output-format=json", ".").json["findings"]
    assert (finding["path"], finding["code"]) == ("norms.py", "NP201")
    told = " Constructed in one.py:9,10, two.py:9,10; it counts as one site here."
    assert finding["reason"].endswith(told)
    (folder / "norms.py").rename(folder / "unused.py")
    (finding,) = normport("scan", "--no-proof", "--output-format=json", ".").json["findings"]
    none = " No other file is seen to construct it by that name; it counts as one site here."
    assert finding["reason"].endswith(none)


def test_where_it_is_constructed_through_its_module(folder: Path, normport: Command) -> None:
    name = ALONE.partition("(nn.Module)")[0].rpartition("class ")[2]
    (folder / "norms.py").write_text(ALONE + "\n")
    (folder / "one.py").write_text(f"import norms\n\nONE = norms.{name}(8)\n")
    (folder / "two.py").write_text(f"import norms as n\n\nTWO = [n.{name}(8)]\n")
    (finding,) = normport("scan", "--no-proof", "--output-format=json", ".").json["findings"]
    assert "Constructed in one.py:3, two.py:3; it counts as one site here." in finding["reason"]
