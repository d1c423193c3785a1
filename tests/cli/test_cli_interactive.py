"""``rewrite --interactive``: what is asked, what each answer does, and what is written."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_sources import MODEL, PLAIN, REFUSED, Command, commit_all

from normport.codemods.model import RefusedEdit
from normport.tools import interactive
from normport.tools.choice import Offer
from normport.tools.findings import Finding
from normport.tools.interactive import Questions

NORMPORT = (sys.executable, "-c", "from normport.tools.cli import main; main()")
OPTIONS = ("rewrite", "--interactive", "--no-proof", "--allow-unproven")
OTHER = MODEL.replace("OffsetNorm", "OtherNorm")


@dataclass(frozen=True)
class Talk:
    status: int
    screen: str


def talk(answers: str, *arguments: str) -> Talk:
    """Run the command on a terminal where ``answers`` are typed ahead."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*NORMPORT, *OPTIONS, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    screen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # as Linux tells that the other side is closed
            part = b""
        if not part:
            break
        screen += part
    os.close(ours)
    return Talk(process.wait(timeout=120), screen.decode().replace("\r\n", "\n"))


@pytest.fixture
def tree(folder: Path) -> Path:
    (folder / "model.py").write_text(MODEL)
    (folder / "other.py").write_text(OTHER)
    return folder


def test_yes_and_no(tree: Path) -> None:
    (tree / "refused.py").write_text(REFUSED)
    done = talk("y\nn\n?\nn\ny\n", ".")
    assert done.status == 1  # what was declined is left
    assert "model.py:22:22 (1 of 2) OffsetNorm: convert it [y,n,a,q,?]? " in done.screen
    assert "NP101: not proven (unproven). Nothing was run (--no-proof)" in done.screen
    assert done.screen.count("    q  leave this site and all that follow") == 1
    assert "-        self.first = OffsetNorm(" in done.screen
    assert "+        self.first = GemmaRMSNorm(" in done.screen
    assert "4 conversions: 2 accepted, 2 declined." in done.screen
    assert "Converted 2 norms in 2 files." in done.screen
    assert "2 more not proven: run again without --no-proof." in done.screen
    model, other = (tree / name for name in ("model.py", "other.py"))
    assert "self.first = GemmaRMSNorm(" in model.read_text()
    assert "self.second = OffsetNorm(" in model.read_text()
    assert "self.first = OtherNorm(" in other.read_text()
    assert "self.second = GemmaRMSNorm(" in other.read_text()


def test_quit_writes_what_was_accepted(tree: Path) -> None:
    done = talk("y\nq\n", ".")
    assert "4 conversions: 1 accepted, 1 declined, 2 not asked about." in done.screen
    assert "Stopped; writing the 1 conversion accepted so far." in done.screen
    assert "Converted 1 norm in 1 file." in done.screen
    assert (tree / "model.py").read_text().count("GemmaRMSNorm(config") == 1
    assert (tree / "other.py").read_text() == OTHER


def test_the_end_of_the_input_is_quit(tree: Path) -> None:
    done = talk("n\n\x04", ".")
    assert "4 conversions: 2 declined, 2 not asked about." in done.screen
    assert "Nothing was written." in done.screen
    assert (tree / "model.py").read_text() == MODEL


def test_interrupt_writes_nothing(tree: Path) -> None:
    """Ctrl-C at the second question; the first was answered with yes."""
    code = (
        "import sys; from normport.tools import interactive; from normport.tools.cli import run\n"
        "class Answers:\n"
        "    given = ['y']\n"
        "    isatty = staticmethod(lambda: True)\n"
        "    def readline(self):\n"
        "        if not self.given: raise KeyboardInterrupt\n"
        "        return self.given.pop()\n"
        "sys.stdin, interactive.check_terminal = Answers(), lambda: None\n"
        f"sys.exit(run([*{OPTIONS!r}, '.']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "Interrupted: nothing was written.\n"
    assert (tree / "model.py").read_text() == MODEL


class Answers:
    """Stands for a terminal on which each question is answered with the next line."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)

    def readline(self) -> str:
        return self.lines.pop(0) if self.lines else ""


@pytest.fixture
def answer(normport: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process; the first argument holds the answers."""
    monkeypatch.setattr(interactive, "check_terminal", lambda: None)

    def command(answers: str, *arguments: str) -> object:
        monkeypatch.setattr(sys, "stdin", Answers(answers.splitlines(keepends=True)))
        return normport(*OPTIONS, *arguments)

    return command


def test_all_the_rest(tree: Path, answer: Command) -> None:
    result = answer("n\na\n", ".")
    assert result.out.count("convert it") == 2
    assert result.status == 1
    assert "4 conversions: 3 accepted, 1 declined." in result.err
    assert "Converted 3 norms in 2 files." in result.err
    assert "class OtherNorm" not in (tree / "other.py").read_text()


def test_the_last_use_takes_the_class_along(tree: Path, answer: Command) -> None:
    result = answer("y\ny\n", "model.py")
    assert result.status == 0
    first, second = result.out.split("convert it")[:2]
    assert "-class OffsetNorm(" not in first
    assert "-class OffsetNorm(" in second


def test_what_was_accepted_and_waits_for_another_is_told(folder: Path, answer: Command) -> None:
    """A class that two files construct is converted in both or in neither."""
    defined, _, _ = MODEL.partition("class Layer")
    layer = MODEL.partition(defined)[2]
    (folder / "norms.py").write_text(defined)
    for name in ("a.py", "b.py"):
        (folder / name).write_text(
            f"from torch import nn\n\nfrom norms import OffsetNorm\n\n\n{layer}"
        )
    result = answer("y\ny\nn\nn\n", ".")
    assert "4 conversions: 2 accepted, 2 declined." in result.err
    assert (
        "2 of the accepted would change what was not accepted as well, and is left." in result.err
    )
    assert "Nothing was written." in result.err


def test_nothing_to_ask(folder: Path, answer: Command) -> None:
    (folder / "plain.py").write_text(PLAIN)
    result = answer("", ".")
    assert (result.status, result.out) == (0, "")
    assert result.err.endswith("Nothing was written.\n")


def test_ignored_and_deselected_sites_are_not_asked_about(tree: Path, answer: Command) -> None:
    text = MODEL.replace("rms_norm_eps)\n", "rms_norm_eps)  # normport: ignore\n", 1)
    (tree / "model.py").write_text(text)
    assert answer("n\n", "model.py").out.count("convert it") == 1
    assert "convert it" not in answer("", "--ignore=NP1", ".").out


def test_uncommitted_changes_are_told_before_the_first_question(
    tree: Path, answer: Command
) -> None:
    (tree / "other.py").write_text(PLAIN)
    commit_all(tree)
    (tree / "other.py").write_text(OTHER)
    result = answer("y\n", ".")
    assert (result.status, result.out) == (2, "")
    assert "other.py has uncommitted changes" in result.error
    assert answer("y\nq\n", "--allow-dirty", ".").status == 1
    assert (tree / "model.py").read_text() != MODEL


def test_bad_input_asks_nothing(tree: Path, answer: Command) -> None:
    (tree / "broken.py").write_text("x = rms_norm(\n")
    result = answer("y\n", ".")
    assert (result.status, result.out) == (2, "")
    assert "Nothing was written, because of the errors above." in result.err
    assert (tree / "model.py").read_text() == MODEL


def test_a_file_that_changes_meanwhile_is_left(
    tree: Path, answer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Answers):
        def readline(self) -> str:
            (tree / "other.py").write_text(PLAIN)
            return super().readline()

    monkeypatch.setitem(globals(), "Answers", Slow)
    result = answer("a\n", ".")
    assert result.status == 2
    assert "other.py is neither as normport read it nor as it would leave it" in result.err
    assert (tree / "model.py").read_text() == MODEL


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "is none: look at the changes with --diff, then make them with --write."),
        (("--diff",), "--interactive asks; leave out --diff and --output-format."),
        (("--output-format=json",), "--interactive asks; leave out --diff and --output-format."),
    ],
)
def test_where_nobody_can_answer(
    tree: Path, normport: Command, options: tuple[str, ...], said: str
) -> None:
    result = normport(*OPTIONS, *options, ".")
    assert (result.status, result.out) == (2, "")
    assert said in result.error
    assert (tree / "model.py").read_text() == MODEL


def test_a_site_that_cannot_go_alone_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(numbers: object) -> bytes:
        if numbers == [1]:
            raise RefusedEdit("a comment would be lost")
        return b"x = 2\n\x1b[2J"

    finding = Finding(
        "m.py", "m.py", 1, 1, "NP101", "N", None, "convert", "T", "safe", None, None, True, ("# c",)
    )
    monkeypatch.setattr(sys, "stdin", Answers(["n\n", "y\n"]))
    questions = Questions()
    offer = Offer("m.py", b"x = 1\n", {0: finding, 1: finding}, edit)  # type: ignore[arg-type]
    assert questions.choose(offer) == []
    assert questions.closing(0) == [
        "2 conversions: 1 declined, 1 not to be had without others.",
    ]
    out = capsys.readouterr().out
    assert "m.py:1:1 stays: not without the others (a comment would be lost)." in out
    assert "^[[2J" in out
    assert "Lost with the class: # c" in out
