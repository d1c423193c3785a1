"""The path ``-``: source from stdin, as editors and formatters do it."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path

import pytest
from cli_sources import BROKEN, MODEL, PLAIN, SCALE, Command, commit_all, git

from normport.tools.options import path_argument

UNPROVEN = ("--no-proof", "--allow-unproven")


class Stdin:
    """Stands for ``sys.stdin``."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.fixture
def piped(normport: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command with the first argument on stdin."""

    def command(source: str | bytes, *arguments: str) -> object:
        content = source.encode() if isinstance(source, str) else source
        monkeypatch.setattr(sys, "stdin", Stdin(content))
        return normport(*arguments)

    return command


def test_scan(folder: Path, piped: Command) -> None:
    result = piped(MODEL, "scan", "--no-proof", "-")
    assert result.status == 1
    assert "<stdin>:22  OffsetNorm  " in result.out
    found = piped(MODEL, "scan", "--no-proof", "--output-format=json", "-").json["findings"]
    assert [finding["path"] for finding in found] == ["<stdin>"] * 2
    for form, place in (("sarif", '"uri": "%3Cstdin%3E"'), ("github", "file=<stdin>,line=22")):
        assert place in piped(MODEL, "scan", "--no-proof", f"--output-format={form}", "-").out


def test_write_prints_the_new_source(folder: Path, piped: Command) -> None:
    result = piped(MODEL, "rewrite", *UNPROVEN, "--write", "-")
    assert result.status == 0
    assert result.out.count("GemmaRMSNorm(config.hidden_size") == 2
    assert "class OffsetNorm" not in result.out
    assert "Converted 2 norms in 1 file." in result.err
    assert not any(folder.iterdir())
    again = piped(result.out, "rewrite", *UNPROVEN, "--write", "-")
    assert (again.status, again.out) == (0, result.out)


@pytest.mark.parametrize("source", [PLAIN, "", MODEL, PLAIN.replace("\n", "\r\n")])
def test_write_prints_also_what_does_not_change(piped: Command, source: str) -> None:
    result = piped(source, "rewrite", "--no-proof", "--write", "-")
    assert result.out == source
    assert result.status == (1 if source == MODEL else 0)


def test_write_prints_what_is_excluded_as_it_is(folder: Path, piped: Command) -> None:
    options = (*UNPROVEN, "--stdin-filename=sub/model.py", "--exclude=sub/", "--force-exclude")
    result = piped(MODEL, "rewrite", *options, "--write", "-")
    assert (result.status, result.out) == (0, MODEL)


def test_diff(folder: Path, piped: Command) -> None:
    result = piped(MODEL, "rewrite", *UNPROVEN, "--diff", "-")
    assert result.status == 1
    assert result.out.startswith("diff --git a/<stdin> b/<stdin>\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "model.py").write_text(MODEL)
    commit_all(folder)
    named = ("--stdin-filename=sub/model.py", "-")
    result = piped(MODEL, "rewrite", *UNPROVEN, "--diff", *named)
    git(folder, "apply", "-", stdin=result.out)
    assert "GemmaRMSNorm(" in (folder / "sub" / "model.py").read_text()


def test_a_name_brings_its_surroundings(folder: Path, piped: Command) -> None:
    """The configuration above it, and the uses that other files make of it."""
    (folder / "sub").mkdir()
    (folder / "sub" / "other.py").write_text("from .model import OffsetNorm\n")
    (folder / "sub" / "pyproject.toml").write_text("[tool.normport]\nignore = ['NP103']\n")
    arguments = ("scan", "--no-proof", "--output-format=json", "--stdin-filename=sub/model.py", "-")
    found = piped(MODEL, *arguments).json["findings"]
    assert {(finding["path"], finding["code"]) for finding in found} == {("model.py", "NP220")}
    assert piped(SCALE, *arguments).json["findings"] == []
    assert len(piped(SCALE, *arguments[:3], "-").json["findings"]) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BROKEN.encode(), "<stdin> does not parse as Python in line"),
        (b"x = '\xff'\n", "<stdin> is not UTF-8 (byte 0xff in line 1); save it as UTF-8."),
    ],
)
def test_bad_input(folder: Path, piped: Command, content: bytes, said: str) -> None:
    for arguments in (("scan", "-"), ("rewrite", "--diff", "-"), ("rewrite", "--write", "-")):
        result = piped(content, *arguments)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("scan", "-", "model.py"), "`-` reads one source from stdin: give it alone"),
        (("scan", "--stdin-filename=a.py", "model.py"), "give `-` as the path."),
        (("rewrite", "--write", "--output-format=json", "-"), "leave out --output-format."),
        (("rewrite", "--interactive", "-"), "--interactive reads answers from stdin; name a file"),
        (("scan", "--stdin-filename=", "-"), "An empty path was given"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path, piped: Command, arguments: tuple[str, ...], said: str
) -> None:
    result = piped(MODEL, *arguments)
    assert (result.status, result.out) == (2, "")
    assert said in result.error


def test_a_file_of_that_name(folder: Path, normport: Command) -> None:
    assert path_argument("-") == Path("-")
    (folder / "-").write_text(MODEL)
    assert "-:22  OffsetNorm" in normport("scan", "--no-proof", "./-").out


def test_stdin_that_gives_nothing(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.RawIOBase):
        def read(self, _: int = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    stdin = Stdin(b"")
    stdin.buffer = Broken()  # type: ignore[assignment]
    told = {
        "Standard input cannot be read (Input/output error); pipe a source into it.": stdin,
        "Standard input is closed, so no source can be read: leave it open.": None,
    }
    for said, stream in told.items():
        monkeypatch.setattr(sys, "stdin", stream)
        assert normport("rewrite", "--write", "-").error == said
