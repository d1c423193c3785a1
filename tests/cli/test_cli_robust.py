"""Closed streams, names that no encoding holds, odd files, and several roots at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_sources import MODEL, PLAIN, Command
from faults import acting_at, no_space

from normport.tools import manifest
from normport.tools.errors import UserError
from normport.tools.tree import FileChange
from normport.tools.workspace import apply_everywhere

NORMPORT = (sys.executable, "-c", "from normport.tools.cli import main; main()")
WEIRD = os.fsdecode(b"we\xffird.py")
ASCII = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"},
)


def shell(
    redirection: str, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a shell does with ``redirection``."""
    script = f'exec "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", script, "sh", *NORMPORT, *arguments],
        capture_output=True,
        env={**os.environ, **(env or {})},
        timeout=120,
    )


# Streams


@pytest.mark.parametrize(
    "arguments",
    [
        ("scan", "--no-proof", "model.py"),
        ("rewrite", "--no-proof", "--allow-unproven", "--diff", "."),
    ],
)
def test_closed_stdout(folder: Path, arguments: Sequence[str]) -> None:
    (folder / "model.py").write_text(MODEL)
    done = shell("<&- >&-", *arguments)
    assert done.returncode == 2
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: Standard output is closed, so the result cannot be printed: leave it open or send "
        "it to /dev/null."
    ]
    assert b"Traceback" not in done.stderr


def test_closed_stdout_of_a_text() -> None:
    done = shell(">&-", "--version")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: Standard output is closed")


def test_closed_stdout_with_nothing_to_print(folder: Path) -> None:
    (folder / "plain.py").write_text(PLAIN)
    done = shell(">&-", "scan", "--no-proof", "plain.py")
    assert (done.returncode, done.stderr.splitlines()[0][:7]) == (0, b"1 file,")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_stderr_that_takes_nothing_changes_nothing(folder: Path, redirection: str) -> None:
    (folder / "model.py").write_text(MODEL)
    arguments = ("scan", "--no-proof", "--output-format=json", "model.py")
    expected = shell("", *arguments)
    done = shell(redirection, *arguments)
    assert expected.returncode == 1
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert shell(redirection, "scan", "missing.py").returncode == 2


def test_closed_streams_do_not_end_in_files(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)
    arguments = ("rewrite", "--no-proof", "--allow-unproven", "--write", "model.py")
    assert shell(">&- 2>&-", *arguments).returncode == 0
    assert "OffsetNorm" not in (folder / "model.py").read_text()
    assert [path.name for path in folder.iterdir()] == ["model.py"]


# Names


@pytest.mark.parametrize("env", ASCII)
def test_names_that_cannot_be_encoded(folder: Path, env: dict[str, str]) -> None:
    names = (WEIRD, "wé.py", "模型.py")
    for name in names:
        (folder / name).write_text(MODEL)
    # Each form under one of the environments, text under both.
    forms = ("text", "json", "github", "sarif") if env is ASCII[0] else ("text",)
    for form in forms:
        done = shell("", "scan", "--no-proof", f"--output-format={form}", ".", env=env)
        assert done.returncode == 1, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"NP101" in done.stdout
        if form in ("json", "sarif"):
            json.loads(done.stdout)
    diff = shell("", "rewrite", "--no-proof", "--allow-unproven", "--diff", ".", env=env)
    for name in names:
        assert b"--- a/" + os.fsencode(name) + b"\n" in diff.stdout
    subprocess.run(["git", "apply", "--check"], input=diff.stdout, cwd=folder, check=True)
    done = shell("", "rewrite", "--no-proof", "--allow-unproven", "--write", ".", env=env)
    assert done.returncode == 0, done.stderr
    assert not any("OffsetNorm" in (folder / name).read_text() for name in names)


def test_an_escape_stands_for_what_the_stream_lacks(folder: Path) -> None:
    (folder / "wé.py").write_text(MODEL)
    done = shell("", "rewrite", "--no-proof", ".", env={"PYTHONIOENCODING": "ascii:strict"})
    assert done.stdout.startswith(rb"w\xe9.py:")


def test_error_about_a_name_that_is_no_utf8(folder: Path) -> None:
    (folder / WEIRD).write_text("x = rms_norm(\n")
    done = shell("", "scan", "--no-proof", "--output-format=sarif", ".")
    assert done.returncode == 2
    assert rb"we\udcffird.py does not parse" in done.stderr
    assert b"we%FFird.py" in done.stdout


# What is no plain file


def test_pipes_and_sockets_are_skipped(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    os.mkfifo(folder / "pipe.py")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
        result = normport("scan", "--no-proof", "--output-format=json", ".")
        assert result.status == 1
        assert {finding["path"] for finding in result.json["findings"]} == {"model.py"}
        for name in ("pipe.py", "socket.py"):
            result = normport("scan", "--no-proof", name)
            assert result.status == 2
            assert (
                f"{name} is neither a plain file nor a folder; name Python sources." in result.err
            )
    assert normport("scan", "--no-proof", "model.py").status == 1  # its neighbours are looked at


def test_loop_of_links(folder: Path, normport: Command) -> None:
    (folder / "loop").symlink_to("loop")
    for arguments in (("scan", "loop"), ("rewrite", "--write", "loop")):
        result = normport(*arguments)
        assert result.status == 2
        assert "error: loop is a symbolic link that leads nowhere; check the path." in result.err
    assert normport("backport", "loop").error == (
        "loop is a symbolic link that leads nowhere: check the path."
    )
    assert normport("port", "loop", "--out=series").status == 2


def test_home_of_nobody(folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "~nosuchuser/x"
    assert "does not exist" in normport("backport", nobody).error
    assert "~nosuchuser/x does not exist" in normport("scan", nobody).err
    told = "~nosuchuser/x names a user who has no home here: check the path."
    assert normport("port", ".", "--out", nobody).error == told
    assert normport("series", "status", ".", "--series", nobody).error == told
    monkeypatch.setenv("NORMPORT_CACHE", nobody)
    result = normport("backport", "vllm==0.29.0")
    assert result.status == 2
    assert result.error.startswith("NORMPORT_CACHE is ~nosuchuser/x, but ")
    assert not any(folder.iterdir())


@pytest.mark.parametrize("arguments", [("scan", ""), ("port", ".", "--out", "")])
def test_empty_path(folder: Path, normport: Command, arguments: Sequence[str]) -> None:
    result = normport(*arguments)
    assert result.status == 2
    assert result.error == "An empty path was given: name a file or a folder."


# Records nested without end


def test_nested_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema": ' + "[" * 100_000)
    with pytest.raises(UserError, match="is not a manifest that normport wrote"):
        manifest.load(folder)


def test_nested_journal(folder: Path, normport: Command) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / ".normport-journal").write_text('{"schema": ' + "[" * 100_000)
    result = normport("rewrite", "--no-proof", "--allow-unproven", "--write", ".")
    assert result.status == 2
    assert "is not a journal that this normport wrote" in result.err
    assert (folder / "model.py").read_text() == MODEL


# Several roots


@pytest.fixture
def roots(folder: Path) -> tuple[Path, Path]:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(MODEL)
    return folder / "one", folder / "two"


WRITE = ("rewrite", "--no-proof", "--allow-unproven", "--write")


def test_roots_are_written_together(roots: tuple[Path, Path], normport: Command) -> None:
    assert normport(*WRITE, *roots).status == 0
    assert all("OffsetNorm" not in (root / "model.py").read_text() for root in roots)


def test_a_root_that_cannot_be_locked_keeps_all_from_being_written(
    roots: tuple[Path, Path], normport: Command
) -> None:
    (roots[1] / ".normport.lock").mkdir()
    result = normport(*WRITE, *roots)
    assert result.status == 2
    assert "no file was changed" in result.err
    assert all((root / "model.py").read_text() == MODEL for root in roots)


def test_a_dirty_root_keeps_all_from_being_written(
    roots: tuple[Path, Path], normport: Command
) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=roots[1], check=True)
    result = normport(*WRITE, *roots)
    assert result.status == 2
    assert "no file was changed" in result.err
    assert all((root / "model.py").read_text() == MODEL for root in roots)
    assert [path.name for path in roots[0].iterdir()] == ["model.py"]


def test_one_tree_by_two_paths(folder: Path, normport: Command) -> None:
    (folder / "one").mkdir()
    (folder / "one/model.py").write_text(MODEL)
    (folder / "link").symlink_to("one")
    assert normport(*WRITE, "one", "link").status == 0
    assert "OffsetNorm" not in (folder / "one/model.py").read_text()


def test_no_root_changes_when_any_call_fails(roots: tuple[Path, Path]) -> None:
    before, after = MODEL.encode(), PLAIN.encode()
    changes = {root: [FileChange("model.py", before, after)] for root in roots}
    failures = 0
    for at in range(1, 1000):
        with acting_at(at, no_space) as counter:
            try:
                apply_everywhere(changes)
            except UserError as error:
                failures += 1
                told = str(error)
            else:
                told = ""
        held = [(root / "model.py").read_bytes() for root in roots]
        if told and "completes the change" not in told:
            assert held == [before, before], f"call {at}: {told}"
            continue
        # All is changed; at most a journal is left, with which the next run tidies up.
        assert held == [after, after], f"call {at}: {told}"
        if counter.count < at:
            break
        apply_everywhere(changes)
        for root in roots:
            assert [path.name for path in root.iterdir()] == ["model.py"]
            (root / "model.py").write_bytes(before)
    assert failures > 10
