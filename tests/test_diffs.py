"""Diffs that git takes, byte for byte, cut where a reader would cut them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from normport.tools.diffs import git_diff, line_counts
from normport.tools.git import blob_hash
from normport.tools.tree import FileChange


def applied(folder: Path, change: FileChange, diff: bytes) -> bytes:
    """What git makes of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    if change.before is not None:
        (folder / change.path).write_bytes(change.before)
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    result = subprocess.run(command, cwd=folder, input=diff, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    return (folder / change.path).read_bytes()


def gits_own(folder: Path, changes: list[FileChange]) -> bytes:
    """What ``git diff`` prints."""
    folder.mkdir()
    options = ["-c", "core.autocrlf=false", "-c", "diff.noprefix=false"]

    def git(*arguments: str) -> bytes:
        command = ["git", *options, *arguments]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout

    git("init", "--quiet")
    for change in changes:
        if change.before is not None:
            (folder / change.path).write_bytes(change.before)
            git("add", change.path)
    for change in changes:
        (folder / change.path).write_bytes(change.after)
        git("add", "--intent-to-add", change.path)
    return git("diff", "--full-index", "--no-color", "--no-ext-diff", "--patience")


def test_the_dialect_is_gits(tmp_path: Path) -> None:
    start = b"import a\n\n\nclass A(Base):  # " + b"long " * 30 + b"\n    def f(self):\n"
    body = b"".join(b"        line_%d = %d\n" % (n, n) for n in range(40))
    before = start + body + b"\n\ndef last(): ..."
    after = before.replace(b"line_30 = 30", b"line_30 = 31").replace(b"import a\n", b"")
    changes = [
        FileChange("a.py", before, after),
        FileChange("b.py", b"x = 1", b"x = 2\n"),
        FileChange("c.py", None, b"x = 1\r\n"),
    ]
    assert git_diff(changes) == gits_own(tmp_path / "git", changes)


def test_the_hashes_are_gits(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\n\xff")
    command = ["git", "hash-object", "--no-filters", "x"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == blob_hash(b"a\r\n\xff")


def test_no_change_is_no_diff() -> None:
    assert git_diff([FileChange("a", b"x", b"x")]) == b""
    assert git_diff([]) == b""


def test_files_keep_their_order() -> None:
    changes = [FileChange(name, b"1\n", b"2\n") for name in ("z.py", "a.py")]
    diff = git_diff(changes)
    assert diff.index(b"z.py") < diff.index(b"a.py")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\nb", b"a\nc"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nb"),
        (b"x = '\xe9'\n", b"x = '\xe8'\n"),
        (b"a\x0c\nb\x0bc\x1c\n", b"a\x0c\nb\x0bd\x1c\n"),
        ("a = 'é\u2028'\n".encode(), "a = 'è\u2028'\n".encode()),
        (b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"),
        (b"a\n", b""),
        (b"", b"a\n"),
        (None, b"a\n"),
        (None, b"a"),
        (None, b""),
        (b"-- a\n", b"++ b\n"),
    ],
)
def test_git_gets_the_same_bytes(before: bytes | None, after: bytes, tmp_path: Path) -> None:
    change = FileChange("file.py", before, after)
    assert applied(tmp_path / "r", change, git_diff([change])) == after


@pytest.mark.parametrize("name", ["my file.py", 'a"b.py', "a\tb.py", "a\\b.py", "é.py"])
def test_odd_names(name: str, tmp_path: Path) -> None:
    for change in (FileChange(name, b"1\n", b"2\n"), FileChange(name, None, b"2\n")):
        folder = tmp_path / str(change.before is None)
        assert applied(folder, change, git_diff([change])) == b"2\n"


def test_random_edits(tmp_path: Path) -> None:
    rng = random.Random(7)
    lines = [*(b"\n",) * 3, b"a\n", b"  b\n", b"class X:\n", b"    def f():\n", b"\r\n", b"\xff\n"]
    for number in range(60):
        before = rng.choices(lines, k=rng.randint(0, 40))
        after = list(before)
        for _ in range(rng.randint(1, 6)):
            at = rng.randint(0, len(after))
            if rng.random() < 0.5:
                after[at:at] = rng.choices(lines, k=rng.randint(1, 5))
            else:
                del after[at : at + rng.randint(1, 5)]
        end = rng.choice([b"", b"no newline"])
        change = FileChange("x.py", b"".join(before), b"".join(after) + end)
        diff = git_diff([change])
        if change.before == change.after:
            assert diff == b""
            continue
        assert applied(tmp_path / str(number), change, diff) == change.after
        body = [line for line in diff.split(b"\n")[4:] if line]
        added = sum(line.startswith(b"+") for line in body)
        removed = sum(line.startswith(b"-") for line in body)
        assert line_counts(change) == (added, removed)


def test_a_removed_class_is_cut_at_its_first_line() -> None:
    other = b"class %c:\n    def f(self):\n        return 1\n\n\n"
    before = b"import x\n\n\n" + b"".join(other % letter for letter in b"ABC")
    after = before.replace(other % ord("B"), b"")
    lines = git_diff([FileChange("a", before, after)]).splitlines()[4:]
    removed = [line[1:] for line in lines if line.startswith(b"-")]
    assert removed == [b"class B:", b"    def f(self):", b"        return 1", b"", b""]
