"""What the commands say about options that do not fit, and about what was not done."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_sources import MODEL, REFUSED, SCALE, WEIGHTLESS, Command

from normport.codemods.model import ProofCase, Site
from normport.tools import commands, judge
from normport.tools.findings import Finding, with_lost_comments
from normport.tools.proof import Equivalence

KNOWN_SIZE = WEIGHTLESS.replace(
    "        self.norm = Bare", "        self.proj = nn.Linear(8, 64)\n        self.norm = Bare"
).replace("self.norm(x)", "self.norm(self.proj(x))")

COMMENTED = MODEL.replace(
    "        h = x.float()\n", "        # Upcast first.\n        h = x.float()\n"
)


@pytest.mark.parametrize("name", ["Layer.nrom", "Bare.norm"])
@pytest.mark.parametrize("command", [("scan",), ("rewrite", "--write", "--allow-unproven")])
def test_dim_that_fits_no_site(
    folder: Path, normport: Command, name: str, command: tuple[str, ...]
) -> None:
    (folder / "model.py").write_text(WEIGHTLESS)
    result = normport(*command, "--no-proof", f"--dim={name}=64", "model.py")
    assert (result.status, result.out) == (2, "")
    assert result.error == (
        f"--dim {name}=64 names no weightless norm by the class that holds it and the attribute "
        "there; they are Layer.norm."
    )
    assert (folder / "model.py").read_text() == WEIGHTLESS


def test_dim_where_no_norm_is_weightless(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    result = normport("scan", "--no-proof", "--dim=Layer.first=64", "model.py")
    assert result.status == 2
    assert result.error.endswith("; the files have none.")


def test_dim_that_fits(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(WEIGHTLESS)
    assert "--dim Layer.norm=EXPR" in normport("scan", "--no-proof", "model.py").out
    result = normport("scan", "--no-proof", "--dim=Layer.norm=64", "model.py")
    assert result.status == 1
    assert "to RMSNorm(64, " in result.out


def test_dim_where_the_size_is_known(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(KNOWN_SIZE)
    assert "to RMSNorm(64, " in normport("scan", "--no-proof", "model.py").out
    result = normport("scan", "--no-proof", "--dim=Layer.norm=32", "model.py")
    assert result.status == 2
    assert "the size of Layer.norm is inferred, which makes it RMSNorm(64, " in result.error
    assert result.error.endswith("; drop --dim Layer.norm.")
    assert normport("scan", "--no-proof", "--dim=Layer.norm=64", "model.py").status == 1


def test_help_says_whose_class_a_dim_names(normport: Command) -> None:
    assert "the class that holds it" in " ".join(normport("scan", "--help").out.split())


def test_port_without_torch_says_so_before_anything_else(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "torch" else real(name, package),
    )
    result = normport("port", "nowhere", "--out", "out")
    assert (result.status, result.out) == (2, "")
    assert result.error == (
        f"The proof needs PyTorch, which is not installed for {sys.executable}: install it "
        "(`pip install '.[proof]'` where normport's sources are), or pass --no-proof "
        "--allow-unproven."
    )
    other = normport("port", "nowhere", "--out", "out", "--no-proof")
    assert "nowhere does not exist" in other.error


def test_unsafe_alone_is_told_with_its_option(folder: Path, normport: Command) -> None:
    (folder / "scale.py").write_text(SCALE)
    result = normport("scan", "--no-proof", "scale.py")
    assert "2 not proven: run again without --no-proof." in result.err
    assert "more" not in result.err


def test_lost_comments_are_named_where_the_class_is_used(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(COMMENTED)
    arguments = ("--no-proof", "--allow-unproven", "model.py")
    first, second = normport("rewrite", "--output-format=json", *arguments).json["findings"]
    assert (first["lost_comments"], second["lost_comments"]) == (["# Upcast first."], [])
    text = normport("rewrite", *arguments).out
    assert text.count("    lost with the class: # Upcast first.\n") == 1


def _finding(norm: str, *, applied: bool = True) -> Finding:
    return Finding(
        "m.py", "m.py", 1, 1, "NP101", norm, None, "convert", "T", "safe", None, None, applied
    )


def test_lost_comments_go_to_their_own_class() -> None:
    text = "# above A\nclass A:\n    # in A\n\n\n# above B\nclass B:\n    x = 1  # in B\n"
    findings = [_finding("A", applied=False), _finding("A"), _finding("B"), _finding("B")]
    comments = ["# above A", "# in A", "# above B", "# in B"]
    found = [f.lost_comments for f in with_lost_comments(findings, text, comments)]
    assert found == [(), ("# above A", "# in A"), ("# above B", "# in B"), ()]


def test_refusals_by_proof_and_by_editor_have_their_own_codes() -> None:
    case = ProofCase("", "", "", "none")
    site = Site(1, 1, "NP101", "A", "a", None, "convert", "T", None, proof=case)
    differs = Equivalence("different", {}, "the layers", "it computes something else")
    found = judge.judge(site, differs, "")
    assert (found.verdict, found.code) == ("refuse", "NP301")
    assert judge.judge(site, Equivalence("equal", {}, "the layers"), "").code is None
    refused = _finding("A").refused("A comment would be lost.")
    assert (refused.code, refused.verdict, refused.applied) == ("NP302", "refuse", False)


def test_an_option_value_is_refused_in_plain_words(normport: Command) -> None:
    assert "Value error" not in normport("scan", "--output-format=xml", ".").error


def test_an_error_of_a_stream_names_stdout(
    normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(commands, "run", full)
    assert normport("scan", ".").error == "The standard output: No space left on device."


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["scan", "--strict", "--no-proof", "m.py"], ["--version"]])
def test_a_stdout_that_takes_nothing_is_named(folder: Path, arguments: list[str]) -> None:
    (folder / "m.py").write_text(REFUSED)
    code = "from normport.tools.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "error: The standard output cannot be written (No space left on device); send it "
        "elsewhere.\n"
    )


@pytest.mark.parametrize(
    "typed", ["./nowhere", "no//where", "nowhere/", "./no/../where", "~/nowhere"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("scan", "PATH"),
        ("rewrite", "PATH"),
        ("series", "status", "PATH"),
        ("series", "evidence", "PATH", "probe.json"),
        ("review", "PATH", "--html", "page.html"),
        ("trace", "PATH"),
        ("doctor", "--wheel", "PATH"),
        ("decode-latency", "--model", "m", "--out", "PATH/no/file"),
        ("route", "--tp", "2", "--model-config", "PATH"),
        ("gsm8k", "compare", "PATH", "b.json"),
        ("ab-report", "--out", "out", "--from-table", "PATH"),
    ],
    ids=lambda command: " ".join(command[:2]) if isinstance(command, tuple) else None,
)
def test_a_path_is_shown_as_it_was_typed(
    folder: Path, normport: Command, command: tuple[str, ...], typed: str
) -> None:
    result = normport(*(part.replace("PATH", typed) for part in command))
    assert result.status == 2
    shown = next(part.replace("PATH", typed) for part in command if "PATH" in part)
    assert shown in result.err


@pytest.mark.parametrize(
    "command", [("doctor", "--wheel", ""), ("probe", "--out", ""), ("decode-latency", "--out", "")]
)
def test_an_empty_path_is_no_folder(normport: Command, command: tuple[str, ...]) -> None:
    assert normport(*command).error == "An empty path was given: name a file or a folder."
