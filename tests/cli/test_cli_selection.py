"""Which rules and which files a run is about: options, and ``[tool.normport]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_sources import MODEL, REFUSED, SCALE, WEIGHTLESS, Command

from normport.tools import judge
from normport.tools.proof import Equivalence
from normport.tools.selection import Selection

WRITE = ("rewrite", "--no-proof", "--allow-unproven", "--write")


@pytest.fixture
def tree(folder: Path) -> Path:
    (folder / "model.py").write_text(MODEL)
    (folder / "scale.py").write_text(SCALE)
    (folder / "sub").mkdir()
    (folder / "sub" / "refused.py").write_text(REFUSED)
    return folder


@pytest.fixture
def refused(tree: Path) -> Path:
    """The same files, with nothing to edit in them."""
    for name in ("model.py", "scale.py"):
        (tree / name).write_text(REFUSED)
    return tree


def codes(normport: Command, *arguments: str) -> set[str]:
    result = normport("scan", "--no-proof", "--output-format=json", *arguments)
    assert result.status in (0, 1), result.err
    return {finding["code"] for finding in result.json["findings"]}


def files(normport: Command, *arguments: str) -> set[str]:
    result = normport("scan", "--no-proof", "--output-format=json", *arguments)
    return {finding["path"] for finding in result.json["findings"]}


def configure(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.normport]\n{text}\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"NP101", "NP103", "NP201"}),
        (("--select=NP1",), {"NP101", "NP103"}),
        (("--select=NP10",), {"NP101", "NP103"}),
        (("--select=np101,NP2",), {"NP101", "NP201"}),
        (("--select=NP101", "--select=NP103"), {"NP101", "NP103"}),
        (("--ignore=NP1",), {"NP201"}),
        (("--select=NP101", "--ignore=NP1"), {"NP101"}),
        (("--select=NP1", "--ignore=NP103"), {"NP101"}),
        (("--select=NP101", "--ignore=NP101"), set()),
        (("--select=ALL", "--ignore=NP"), set()),
    ],
)
def test_rules(tree: Path, normport: Command, arguments: Sequence[str], expected: set[str]) -> None:
    assert codes(normport, *arguments, ".") == expected


def test_the_longer_prefix_wins() -> None:
    assert Selection(("NP1", "NP201"), ("NP", "NP10")).keeps("NP201")
    assert not Selection(("NP1",), ("NP10",)).keeps("NP101")
    assert Selection(("NP1",), ("NP10",)).keeps("NP110")
    assert not Selection(("NP1",)).keeps("NP201")


@pytest.mark.parametrize("code", ["NP999", "E501", "N", "", "NP101 NP102"])
def test_no_rule(tree: Path, normport: Command, code: str) -> None:
    for option in ("--select", "--ignore"):
        error = normport("scan", f"{option}={code}", ".").error
        assert error.startswith(f"{option}: `{code}` is no rule's code")
    configure(tree, f'select = ["{code}"]')
    assert "[tool.normport] select: `" in normport("scan", ".").error


def test_what_is_deselected_is_not_converted(tree: Path, normport: Command) -> None:
    assert normport(*WRITE, "--ignore=NP101", ".").status == 0
    assert (tree / "model.py").read_text() == MODEL
    assert "ScaleNorm" not in (tree / "scale.py").read_text()
    assert normport("scan", "--no-proof", "--ignore=NP101", ".").status == 0
    assert normport("rewrite", "--no-proof", "--select=NP2", "--diff", ".").out == ""


def test_a_proof_that_fails_is_deselected_by_its_own_code(
    tree: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = Equivalence("different", {}, "the layers", "it computes something else")
    monkeypatch.setattr(judge, "prove", lambda cases, _: [different] * len(cases))
    arguments = ("scan", "--output-format=json", "model.py")
    for option, expected in (("--select=NP1", []), ("--select=NP3", ["NP301", "NP301"])):
        found = normport(*arguments, option).json["findings"]
        assert [finding["code"] for finding in found] == expected


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("sub/", {"model.py", "scale.py"}),
        ("sub", {"model.py", "scale.py"}),
        ("/sub/refused.py", {"model.py", "scale.py"}),
        ("refused.py", {"model.py", "scale.py"}),
        ("s*.py", {"model.py", "sub/refused.py"}),
        ("**/*.py", set()),
        ("/refused.py", {"model.py", "scale.py", "sub/refused.py"}),
    ],
)
def test_excluded_files(refused: Path, normport: Command, pattern: str, left: set[str]) -> None:
    assert files(normport, f"--exclude={pattern}", ".") == left
    configure(refused, f'exclude = ["{pattern}"]')
    assert files(normport, ".") == left


def test_a_pattern_can_take_files_back(refused: Path, normport: Command) -> None:
    assert files(normport, "--exclude=*.py", "--exclude=!model.py", ".") == {"model.py"}


def test_a_pattern_for_files_elsewhere(
    refused: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(refused / "sub")
    assert files(normport, "--exclude=s*.py", "..") == {"model.py", "sub/refused.py"}


def test_a_named_file_is_excluded_by_force_only(refused: Path, normport: Command) -> None:
    configure(refused, 'exclude = ["model.py"]')
    assert files(normport, "model.py", "scale.py") == {"model.py", "scale.py"}
    assert files(normport, "--force-exclude", "model.py", "scale.py") == {"scale.py"}
    result = normport("scan", "--force-exclude", "model.py")
    assert (result.status, result.out) == (0, "")


def test_what_exclusion_empties_is_told(refused: Path, normport: Command) -> None:
    """Else the folder looks as though there were nothing in it."""
    err = normport("scan", "--exclude=sub", ".", "sub").err
    assert "note: --exclude leaves out 1 Python file below sub, all there are.\n" in err
    assert "leaves out" not in normport("scan", "--exclude=sub", ".").err
    configure(refused, 'exclude = ["*.py"]')
    where = "note: pyproject.toml, [tool.normport] exclude leaves out"
    err = normport("scan", ".").err
    assert f"{where} 3 Python files below ., all there are.\n0 files, 0 norms" in err
    assert f"{where} model.py." in normport("scan", "--force-exclude", "model.py").err
    two = normport("scan", "--force-exclude", "model.py", "scale.py").err
    assert f"{where} 2 named files." in two


def test_a_pattern_that_is_none(refused: Path, normport: Command) -> None:
    error = normport("scan", "--exclude=a[", "--exclude=!", ".").error
    assert error.startswith("--exclude: `!` is no pattern that a .gitignore takes; write ")


def test_configuration_is_found_above_each_argument(
    tree: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tree, 'ignore = ["NP2"]')
    configure(tree / "sub", 'select = ["NP2"]')
    (tree / "sub" / "model.py").write_text(MODEL)
    assert codes(normport, ".") == {"NP101", "NP103"}
    assert codes(normport, "sub") == {"NP201"}
    assert files(normport, "sub", ".") == {"refused.py", "model.py", "scale.py"}
    (tree / "sub" / "pyproject.toml").write_text("[tool.other]\n# normport\n")
    assert codes(normport, "sub") == {"NP101"}
    monkeypatch.chdir(tree.parent)
    assert codes(normport, str(tree / "sub")) == {"NP101"}


def test_the_command_line_overrides(tree: Path, normport: Command) -> None:
    configure(tree, 'select = ["NP2"]\nignore = ["NP103"]\nexclude = ["sub"]')
    assert codes(normport, ".") == set()
    assert codes(normport, "--exclude=nothing", ".") == {"NP201"}
    assert codes(normport, "--select=NP1", ".") == {"NP101", "NP103"}
    configure(tree, 'ignore = ["NP103"]')
    assert codes(normport, "--ignore=NP2", ".") == {"NP101"}


@pytest.mark.parametrize(
    ("dims", "size"),
    [
        ('"Layer.norm" = "config.width"', "config.width"),
        ('Layer.norm = "config.width"', "config.width"),
        ('"Layer.norm" = 48', "48"),
    ],
)
def test_sizes(folder: Path, normport: Command, dims: str, size: str) -> None:
    (folder / "model.py").write_text(WEIGHTLESS)
    # Other files than those of this run may need the other size.
    configure(folder, f"dims = {{ {dims}, Other.norm = 8 }}")
    assert f"to RMSNorm({size}, " in normport("scan", "--no-proof", ".").out
    assert "to RMSNorm(7, " in normport("scan", "--no-proof", "--dim=Layer.norm=7", ".").out


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ('"Layer.nrom" = 8', "Layer.nrom = 8 names no weightless norm by the class that holds it"),
        ('"Known.norm" = 9', "Known.norm = 9: the size of Known.norm is inferred, which makes it "),
    ],
)
def test_sizes_of_no_use(folder: Path, normport: Command, dims: str, said: str) -> None:
    """As with --dim; unless other files, which this run leaves out, may need them."""
    known = WEIGHTLESS.replace("class Layer", "class Known").replace(
        "self.norm = Bare(", "self.proj = nn.Linear(8, 64)\n        self.norm = Bare("
    )
    (folder / "model.py").write_text(WEIGHTLESS)
    (folder / "known.py").write_text(known.replace("self.norm(x)", "self.norm(self.proj(x))"))
    (folder / "plain.py").write_text(MODEL)
    configure(folder, f"dims = {{ {dims} }}")
    result = normport("scan", "--no-proof", ".")
    assert (result.status, result.out) == (2, "")
    assert f"pyproject.toml, [tool.normport] dims: {said}" in result.error
    assert normport("scan", "--no-proof", "plain.py").status == 1


def test_sizes_for_a_class_that_no_file_has(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(WEIGHTLESS)
    configure(folder, 'dims = { "Layer.norm" = 8, "Other.norm" = 8 }')
    told = "dims: no file with a norm in it has a class Other."
    assert told in normport("scan", "--no-proof", ".").err
    assert told not in normport("scan", "--no-proof", "model.py").err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selct = []", "has the key `selct`, which normport does not know; the keys are select,"),
        ('select = "NP1"', 'select is no list of strings; write for example select = ["NP101"].'),
        ("ignore = [1]", "ignore is no list of strings"),
        ("exclude = 3", 'exclude is no list of strings; write for example exclude = ["tests/"].'),
        ("dims = []", "dims is no table of sizes"),
        ('dims = {"A.b" = true}', "dims is no table of sizes"),
        ('dims = {"A.b.c" = 3}', "`A.b.c` is not CLASS.attribute"),
        ('dims = {"A.b" = "3 +"}', "is not a Python expression"),
        ("select = [", "pyproject.toml is no valid TOML ("),
        ("x = " + "[" * 5000, "pyproject.toml is "),
    ],
)
def test_configuration_that_is_wrong(tree: Path, normport: Command, text: str, said: str) -> None:
    configure(tree, text)
    for arguments in (("scan", "."), ("rewrite", "--write", "model.py")):
        result = normport(*arguments)
        assert (result.status, result.out) == (2, "")
        assert result.error.startswith("pyproject.toml")
        assert said in result.error
    assert (tree / "model.py").read_text() == MODEL


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[tool]\nnormport = 3\n", "tool.normport is no table; write [tool.normport] on a line."),
        (b"tool = 'normport'\n", "tool is no table, so nothing can be set in [tool.normport];"),
        (b"tool = 3\n", "tool is no table, so nothing can be set in [tool.normport];"),
        (b"  'tool' = []\n", "tool is no table, so nothing can be set in [tool.normport];"),
        (b"[[tool]]\nx = 1\n", "tool is no table, so nothing can be set in [tool.normport];"),
        (b"[tool]\nnormport = []\n", "tool.normport is no table;"),
        (b"[[tool.normport]]\nignore = []\n", "tool.normport is no table;"),
        (b"[tool]\nnormport = ''\n", "tool.normport is no table;"),
        (b"tool = {ruff = {fix = true}}\n", ""),
        (b"[other]\ntool = 3\n", ""),
        (b"# normport \xff\n", "is not UTF-8"),
        (b"this is no TOML\n", ""),
    ],
)
def test_odd_files(tree: Path, normport: Command, content: bytes, said: str) -> None:
    (tree / "pyproject.toml").write_bytes(content)
    result = normport("scan", "--no-proof", "model.py")
    assert result.status == (2 if said else 1)
    assert said in result.err
    (tree / "pyproject.toml").unlink()
    (tree / "pyproject.toml").mkdir()
    assert normport("scan", "--no-proof", "model.py").status == 1
