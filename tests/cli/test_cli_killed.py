"""``rewrite --write`` that dies, meets somebody else's edit or another run: nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_sources import MODEL, Command
from faults import acting_at, die, in_child

from normport.tools import commands, locks
from normport.tools.cli import run
from normport.tools.errors import UserError
from normport.tools.findings import Report
from normport.tools.options import OutputFormat
from normport.tools.pipeline import Settings
from normport.tools.workspace import recover, was_interrupted

WRITE = ("rewrite", "--no-proof", "--allow-unproven", "--write")
FILES = ("one/a.py", "one/sub/b.py", "two/c.py")


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the kernel has; only a power failure would."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def tree(folder: Path) -> Path:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MODEL.replace("OffsetNorm", f"Norm{name[-4]}"))
    return folder


def held(folder: Path) -> dict[str, bytes]:
    """Every file, those with a leading dot included."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture
def both(tree: Path, normport: Command, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, bytes]]:
    """What the files hold before and after; runs of the command on them need no analysis then."""
    before = held(tree)
    reports: list[Report] = []
    real = commands.run

    def noted(files: object, errors: object, settings: Settings) -> Report:
        if reports and all((tree / name).read_bytes() == before[name] for name in FILES):
            return reports[0]
        reports.append(real(files, errors, settings))
        return reports[-1]

    monkeypatch.setattr(commands, "run", noted)
    assert normport(*WRITE, "one", "two").status == 0
    after = held(tree)
    assert all(before[name] != after[name] for name in FILES)
    assert sorted(after) == sorted(FILES)
    restore(tree, before)
    return [before, after]


def restore(tree: Path, files: dict[str, bytes]) -> None:
    for name in held(tree):
        (tree / name).unlink()
    for name, data in files.items():
        (tree / name).write_bytes(data)


def killed_at(at: int) -> int:
    """The wait status of a run that is killed before its ``at``-th changing call."""

    def task() -> None:
        with acting_at(at, die):
            assert write("one", "two") == 0

    return in_child(task)[0]


def write(*roots: str) -> int:
    """The exit status of the command for its options: reading them takes half of a run."""
    request = commands.Request(
        [Path(root) for root in roots], no_proof=True, allow_unproven=True, write=True
    )
    return commands.rewrite_command(request, OutputFormat.text)


def test_killed_at_any_call_a_rerun_completes(tree: Path, both: list[dict[str, bytes]]) -> None:
    before, after = both
    changed = set()
    for at in range(1, 500):
        status = killed_at(at)
        left = held(tree)
        for name in FILES:
            assert left[name] in (before[name], after[name])
        changed.add(sum(left[name] == after[name] for name in FILES))
        assert write("one", "two") == 0
        assert held(tree) == after, f"call {at}"
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        restore(tree, before)
    assert os.WEXITSTATUS(status) == 0
    assert changed == {0, 1, 2, 3}


def test_killed_at_any_call_all_roots_are_recovered_alike(
    tree: Path, both: list[dict[str, bytes]]
) -> None:
    before, after = both
    outcomes = set()
    for at in range(1, 500):
        status = killed_at(at)
        root = ("one", "two")[at % 2]
        interrupted = was_interrupted(tree / root)
        outcome = recover(tree / root)
        left = {name: data for name, data in held(tree).items() if "normport" not in name}
        assert left in (before, after), f"call {at}"
        if interrupted:
            assert left == (after if outcome == "completed" else before)
            outcomes.add(outcome)
        if os.WIFEXITED(status):
            break
        restore(tree, before)
        for folder in (tree / "one", tree / "two"):
            assert recover(folder) is None
    assert outcomes == {"completed", "taken back"}


def test_killed_while_it_recovers(tree: Path, both: list[dict[str, bytes]]) -> None:
    before, after = both
    half = next(at for at in range(1, 500) if killed_at(at) and is_half_done(tree, both))
    restore(tree, before)
    for at in range(1, 500):
        killed_at(half)

        def task(at: int = at) -> None:
            with acting_at(at, die):
                recover(tree / "one")

        status, _ = in_child(task)
        recover(tree / "two")
        recover(tree / "one")
        left = {name: data for name, data in held(tree).items() if "normport" not in name}
        assert left == after, f"call {at}"
        restore(tree, before)
        if os.WIFEXITED(status):
            break
    assert os.WEXITSTATUS(status) == 0
    assert at > 5


def is_half_done(tree: Path, both: list[dict[str, bytes]]) -> bool:
    """Whether a killed run has changed one file of three; all are as before if it has not."""
    before, after = both
    left = held(tree)
    found = sum(left[name] == after[name] for name in FILES) == 1
    if not found:
        restore(tree, before)
    return found


def refused_write(*roots: str) -> str | None:
    """The error that the command ends in, which makes its exit status 2."""
    try:
        write(*roots)
    except UserError as error:
        return str(error)
    return None


MINE = b"mine = True\n"


def write_into(path: Path) -> None:
    path.write_bytes(MINE)


def save_anew(path: Path) -> None:
    path.with_name("saved").write_bytes(MINE)
    os.rename(path.with_name("saved"), path)


def make_link(path: Path) -> None:
    path.unlink()
    path.with_name("elsewhere").write_bytes(MINE)
    path.symlink_to("elsewhere")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(MINE)


def move_parent(path: Path) -> None:
    """The file's folder becomes a link to another one."""
    other = path.parent.with_name("other")
    shutil.rmtree(other, ignore_errors=True)
    path.parent.rename(other)
    path.parent.symlink_to(other)


@pytest.mark.parametrize("edit", [write_into, save_anew, make_link, make_folder, move_parent])
def test_an_edit_meanwhile_is_kept(
    tree: Path,
    both: list[dict[str, bytes]],
    edit: Callable[[Path], None],
) -> None:
    before, after = both
    path = tree / "one/sub/b.py"
    refused = 0
    for at in range(1, 500):
        calls: list[str] = []
        with acting_at(at, partial(_edit_once, edit, path, calls)) as counter:
            told = refused_write("one", "two")
        if not calls:
            break
        renaming = calls == ["replace"] and told is None
        if edit is move_parent:
            assert (path.parent.resolve() / "b.py").read_bytes() in (
                before["one/sub/b.py"],
                after["one/sub/b.py"],
            )
        elif not renaming:  # what is saved between the last look and the rename is not seen
            mine = next(p for p in (path / "inside", path) if p.exists())
            assert mine.read_bytes() == MINE, f"call {at}, {calls}"
        if told is not None:
            refused += 1
            assert "no file was changed" in told
            others = [(tree / name).read_bytes() for name in FILES if "/sub/" not in name]
            assert others == [before[name] for name in FILES if "/sub/" not in name], f"call {at}"
            assert not [name for name in held(tree) if "normport" in name]
        _clean(tree, before)
    assert counter.count < at
    assert refused > 10


def _edit_once(edit: Callable[[Path], None], path: Path, calls: list[str], name: str) -> None:
    calls.append(name)
    edit(path)


def _clean(tree: Path, before: dict[str, bytes]) -> None:
    for entry in list(tree.iterdir()):
        shutil.rmtree(entry)
    for name, data in before.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)


def test_a_folder_and_one_in_it_are_not_written_at_once(
    tree: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(tree)
    with locks.folders_locked([tree / "one/sub"]):
        status, text = in_child(lambda: run([*WRITE, "."]))
    assert (status, text) == (0, "2")
    assert held(tree) == before
    assert normport(*WRITE, "one/sub").status == 0
    assert normport(*WRITE, ".").status == 0
    assert sorted(held(tree)) == sorted(FILES)


def test_two_processes_at_once(tree: Path) -> None:
    """Each ends with 0 or 2, and then one more run finds nothing left to do."""
    from fuzz.commands import COMMAND

    running = [
        subprocess.Popen([*COMMAND, *WRITE, *roots], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        for roots in (["one", "two"], ["."], ["two", "one/sub"])
    ]
    ended = [(process.communicate()[1].decode(), process.returncode) for process in running]
    assert {status for _, status in ended} <= {0, 2}
    assert all(("error: " in err) == (status == 2) for err, status in ended)
    assert run([*WRITE, "."]) == 0
    left = held(tree)
    assert sorted(left) == sorted(FILES)
    assert not any(b"class Norm" in data for data in left.values())


def test_a_lock_that_a_killed_run_left_goes(tree: Path, normport: Command) -> None:
    assert normport(*WRITE, "one").status == 0
    (tree / "one/.normport.lock").touch()
    assert normport(*WRITE, "one").status == 0
    assert sorted(held(tree)) == sorted(FILES)
