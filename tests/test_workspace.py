"""Changing a checkout: all files or none, whatever fails and wherever the process dies."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from faults import acting_at, contents, die, in_child, no_space

from normport.tools import workspace
from normport.tools.errors import UserError
from normport.tools.tree import FileChange
from normport.tools.workspace import apply_changes, journal_path, read_source, recover

BEFORE = {"vllm/a.py": b"a = 1\r\n", "vllm/b.py": b"b = '\xe9'", "vllm/sub/c.py": b"c = 1\n"}
CHANGES = [
    FileChange("vllm/a.py", BEFORE["vllm/a.py"], b"a = 2\r\n"),
    FileChange("vllm/sub/c.py", BEFORE["vllm/sub/c.py"], b""),
    FileChange("tests/kernels/test_new.py", None, b"new = '\xff'"),
    FileChange("vllm/b.py", BEFORE["vllm/b.py"], b"b = '\xe8'\n\x0c"),
]
AFTER = {**BEFORE, **{change.path: change.after for change in CHANGES}}


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def failure(task: Callable[[], None]) -> str | None:
    """The message of the UserError that ``task`` ends in."""
    try:
        task()
    except UserError as error:
        return str(error)
    return None


def fill(root: Path, *, repository: bool = False) -> Path:
    for path, content in BEFORE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    if repository:
        git(root, "init", "--quiet")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message=base")
    return root


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the kernel has; only a power failure would."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    return fill(root)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    return fill(root, repository=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of a given kind, where the machine lets us."""
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("this machine does not let the tests mount a file system")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", str(point)], check=True)


def test_all_files_are_written_byte_for_byte(tree: Path) -> None:
    apply_changes(tree, CHANGES)
    assert contents(tree) == AFTER


def test_the_second_run_changes_nothing(tree: Path) -> None:
    apply_changes(tree, CHANGES)
    before = {path: (tree / path).stat() for path in AFTER}
    apply_changes(tree, CHANGES)
    after = {path: (tree / path).stat() for path in AFTER}
    assert all(after[path].st_ino == before[path].st_ino for path in AFTER)
    assert all(after[path].st_mtime_ns == before[path].st_mtime_ns for path in AFTER)
    assert contents(tree) == AFTER


def test_a_file_keeps_its_mode_and_a_new_one_gets_the_usual(tree: Path) -> None:
    (tree / "vllm/a.py").chmod(0o751)
    umask = os.umask(0o022)
    try:
        apply_changes(tree, CHANGES)
    finally:
        os.umask(umask)
    assert (tree / "vllm/a.py").stat().st_mode & 0o7777 == 0o751
    assert (tree / "tests/kernels/test_new.py").stat().st_mode & 0o7777 == 0o644


def test_a_hard_link_elsewhere_keeps_the_old_content(tree: Path, tmp_path: Path) -> None:
    # Package managers link installed files to their cache.
    os.link(tree / "vllm/a.py", tmp_path / "cached.py")
    apply_changes(tree, CHANGES)
    assert (tmp_path / "cached.py").read_bytes() == BEFORE["vllm/a.py"]
    assert contents(tree) == AFTER


def test_patches_of_one_file_are_written_as_one(tree: Path) -> None:
    first = FileChange("vllm/a.py", BEFORE["vllm/a.py"], b"a = 2\n")
    second = FileChange("vllm/a.py", b"a = 2\n", b"a = 3\n")
    apply_changes(tree, [first, second])
    assert contents(tree) == {**BEFORE, "vllm/a.py": b"a = 3\n"}


def test_changes_that_do_not_follow_are_a_mistake_of_the_caller(tree: Path) -> None:
    twice = FileChange("vllm/a.py", BEFORE["vllm/a.py"], b"a = 2\n")
    with pytest.raises(ValueError, match=r"vllm/a\.py"):
        apply_changes(tree, [twice, FileChange("vllm/a.py", b"a = 4\n", b"")])
    assert contents(tree) == BEFORE


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.py", "vllm/../../x.py", ".git/config", "", "a//b.py", "./a.py"]
)
def test_paths_out_of_the_tree_are_refused(tree: Path, path: str) -> None:
    with pytest.raises(UserError, match="no path of a file inside the tree"):
        apply_changes(tree, [*CHANGES, FileChange(path, None, b"")])
    assert contents(tree) == BEFORE


@pytest.mark.parametrize("repository", [False, True])
def test_any_failing_call_leaves_every_file_as_it_was(tmp_path: Path, repository: bool) -> None:
    base = fill(tmp_path / "base", repository=repository)
    outcomes = set()
    for at in range(1, 500):
        root = shutil.copytree(base, tmp_path / str(at))
        with acting_at(at, no_space) as counter:
            message = failure(partial(apply_changes, root, CHANGES, allow_dirty=True))
        left = {p: c for p, c in contents(root).items() if not p.endswith("normport.lock")}
        if message is None:
            assert left == AFTER
        elif "no file was changed" in message:
            assert left == BEFORE
            assert not (root / "tests").exists()
            outcomes.add("nothing")
        else:
            # Every file is written; only our own leftovers could not be removed.
            assert left.items() >= AFTER.items()
            assert workspace.was_interrupted(root)
            assert recover(root) == "completed"
            outcomes.add("completed later")
        assert message is None or "(No space left on device)" in message
        if counter.count < at:
            break
        apply_changes(root, CHANGES, allow_dirty=True)
        assert contents(root) == AFTER
    assert counter.count < at
    assert outcomes == {"nothing", "completed later"}


def test_a_disk_that_stays_full_is_made_good_by_the_next_run(tmp_path: Path) -> None:
    outcomes = set()
    for at in range(1, 500):
        root = tmp_path / str(at)
        root.mkdir()
        fill(root)
        with acting_at(at, no_space, lasting=True) as counter:
            message = failure(partial(apply_changes, root, CHANGES))
        for path, after in AFTER.items():
            assert contents(root).get(path) in (BEFORE.get(path), after)
        assert message is None or "(No space left on device)" in message
        outcomes.add(recover(root))
        left = {p: c for p, c in contents(root).items() if "normport" not in p}
        assert left in (BEFORE, AFTER)
        apply_changes(root, CHANGES)
        assert contents(root) == AFTER
        if counter.count < at:
            break
    assert counter.count < at
    assert outcomes == {None, "taken back", "completed"}


@pytest.mark.parametrize("repository", [False, True])
def test_killed_at_any_call_the_next_run_completes_it(tmp_path: Path, repository: bool) -> None:
    base = fill(tmp_path / "base", repository=repository)
    states = set()
    for at in range(1, 500):
        root = shutil.copytree(base, tmp_path / str(at))

        def task(root: Path = root, at: int = at) -> None:
            with acting_at(at, die):
                apply_changes(root, CHANGES, allow_dirty=True)

        status, _ = in_child(task)
        left = contents(root)
        # No file is ever seen half written.
        for path, after in AFTER.items():
            assert left.get(path) in (BEFORE.get(path), after)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert left == AFTER
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        changed = sum(left.get(path) == AFTER[path] for path in AFTER)
        states.add(changed)
        apply_changes(root, CHANGES, allow_dirty=True)
        assert contents(root) == AFTER
    assert os.WIFEXITED(status)
    # It died before the first, between any two, and after the last of the four renames.
    assert states == {0, 1, 2, 3, 4}


def killed_after(root: Path, renames: int) -> None:
    """A run that dies when it has changed ``renames`` of the files (the journal is one more)."""

    def task() -> None:
        real, done = os.replace, 0

        def replace(source: Path, target: Path) -> None:
            nonlocal done
            if done == renames + 1:
                die("replace")
            real(source, target)
            done += 1

        os.replace = replace  # type: ignore[assignment]
        apply_changes(root, CHANGES, allow_dirty=True)

    status, _ = in_child(task)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_recover_completes_and_says_so(checkout: Path) -> None:
    killed_after(checkout, 2)
    assert workspace.was_interrupted(checkout)
    assert journal_path(checkout).parent == checkout / ".git"
    assert recover(checkout) == "completed"
    assert contents(checkout) == AFTER
    assert recover(checkout) is None


def test_a_run_that_died_before_its_files_were_complete_is_taken_back(tree: Path) -> None:
    killed_after(tree, 0)
    (tree / "vllm/.b.py.normport-new").write_bytes(b"half")
    assert recover(tree) == "taken back"
    assert contents(tree) == BEFORE
    assert not (tree / "tests").exists()


def test_an_interrupted_run_is_completed_before_the_next_one_plans(checkout: Path) -> None:
    # The second run read the half changed tree, and so only knows the rest of the changes.
    killed_after(checkout, 2)
    apply_changes(checkout, CHANGES[2:])
    assert contents(checkout) == AFTER


def test_somebody_elses_edit_after_an_interrupted_run_is_kept(tree: Path) -> None:
    killed_after(tree, 2)
    (tree / "vllm/b.py").write_bytes(b"mine\n")
    (tree / ".normport.lock").unlink()
    state = contents(tree)
    with pytest.raises(UserError, match=r"^vllm/b\.py was changed by somebody else"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == state


def test_a_half_patched_checkout_is_refused_by_name(tree: Path) -> None:
    (tree / "vllm/sub/c.py").write_bytes(b"c = 7\n")
    state = contents(tree)
    with pytest.raises(UserError, match=r"^vllm/sub/c\.py is neither as normport read it nor"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == state


def test_a_file_that_should_be_new_is_refused_when_it_exists(tree: Path) -> None:
    (tree / "tests/kernels").mkdir(parents=True)
    (tree / "tests/kernels/test_new.py").write_bytes(b"theirs\n")
    with pytest.raises(UserError, match=r"^tests/kernels/test_new\.py is neither"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == {**BEFORE, "tests/kernels/test_new.py": b"theirs\n"}


def test_a_file_that_is_gone_is_refused(tree: Path) -> None:
    (tree / "vllm/a.py").unlink()
    with pytest.raises(UserError, match=r"^vllm/a\.py is neither"):
        apply_changes(tree, CHANGES)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 2}', b'{"schema": 1, "entries": [{}], "folders": []}'],
)
def test_a_damaged_journal_is_named(tree: Path, content: bytes) -> None:
    journal_path(tree).write_bytes(content)
    with pytest.raises(UserError, match=r"normport-journal is not a journal that this normport"):
        apply_changes(tree, CHANGES)
    journal_path(tree).unlink()
    assert contents(tree) == BEFORE


def test_a_journal_cannot_reach_out_of_the_tree(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_bytes(b"x")
    entry = {"path": "../outside.py", "before": None, "after": None}
    journal = {"schema": 1, "entries": [entry], "folders": []}
    journal_path(tree).write_text(json.dumps(journal))
    with pytest.raises(UserError, match="no path of a file inside the tree"):
        recover(tree)
    assert outside.read_bytes() == b"x"


def test_uncommitted_changes_are_refused_unless_allowed(checkout: Path) -> None:
    (checkout / "vllm/a.py").write_bytes(b"a = 5\n")
    changes = [FileChange("vllm/a.py", b"a = 5\n", b"a = 2\n"), *CHANGES[1:]]
    with pytest.raises(UserError, match=r"^vllm/a\.py has uncommitted changes: .*--allow-dirty"):
        apply_changes(checkout, changes)
    assert contents(checkout) == {**BEFORE, "vllm/a.py": b"a = 5\n"}
    apply_changes(checkout, changes, allow_dirty=True)
    assert contents(checkout)["vllm/a.py"] == b"a = 2\n"


def test_staged_and_untracked_files_are_uncommitted_too(checkout: Path) -> None:
    (checkout / "vllm/a.py").write_bytes(b"a = 5\n")
    git(checkout, "add", "vllm/a.py")
    (checkout / "vllm/u.py").write_bytes(b"u\n")
    changes = [
        FileChange("vllm/a.py", b"a = 5\n", b"a = 2\n"),
        FileChange("vllm/u.py", b"u\n", b"v\n"),
    ]
    with pytest.raises(UserError, match=r"^vllm/a\.py and 1 more has uncommitted changes"):
        apply_changes(checkout, changes)


def test_changes_in_other_files_do_not_matter(checkout: Path) -> None:
    (checkout / "vllm/other.py").write_bytes(b"x")
    apply_changes(checkout, CHANGES)
    assert contents(checkout) == {**AFTER, "vllm/other.py": b"x"}


def test_a_tree_below_the_top_of_a_repository_is_checked_too(tmp_path: Path) -> None:
    root = tmp_path / "third_party" / "vllm"
    root.mkdir(parents=True)
    fill(root)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=base")
    (root / "vllm/a.py").write_bytes(b"a = 5\n")
    with pytest.raises(UserError, match=r"^vllm/a\.py has uncommitted changes"):
        apply_changes(root, [FileChange("vllm/a.py", b"a = 5\n", b"a = 2\n")])


def test_files_that_git_ignores_are_nobodys_uncommitted_work(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    root = tmp_path / ".venv"
    root.mkdir()
    apply_changes(fill(root), CHANGES)
    assert contents(root) == AFTER


def test_a_repository_that_git_cannot_read_is_no_clean_one(tree: Path) -> None:
    (tree / ".git").mkdir()
    with pytest.raises(UserError, match=r"git cannot tell whether .* has uncommitted changes"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == BEFORE


def test_without_git_uncommitted_changes_cannot_be_told(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(UserError, match="git is needed for this and was not found"):
        apply_changes(checkout, CHANGES)
    assert contents(checkout) == BEFORE
    apply_changes(checkout, CHANGES, allow_dirty=True)
    assert contents(checkout) == AFTER


def test_git_variables_of_a_hook_do_not_lead_elsewhere(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    apply_changes(checkout, CHANGES)
    assert contents(checkout) == AFTER


def test_a_linked_work_tree_has_its_own_journal(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    linked = tmp_path / "linked"
    killed_after(linked, 1)
    assert checkout / ".git/worktrees" in journal_path(linked).parents
    assert recover(checkout) is None
    assert recover(linked) == "completed"
    assert contents(linked) == {**AFTER}


def test_links_are_neither_followed_nor_replaced(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.py").write_bytes(BEFORE["vllm/sub/c.py"])
    (outside / "a.py").write_bytes(BEFORE["vllm/a.py"])
    (tree / "vllm/a.py").unlink()
    (tree / "vllm/a.py").symlink_to(outside / "a.py")
    with pytest.raises(UserError, match=r"^vllm/a\.py is a symbolic link"):
        apply_changes(tree, CHANGES)
    (tree / "vllm/sub/c.py").unlink()
    (tree / "vllm/sub").rmdir()
    (tree / "vllm/sub").symlink_to(outside)
    with pytest.raises(UserError, match=r"^vllm/sub is a symbolic link"):
        apply_changes(tree, CHANGES[1:])
    assert (outside / "a.py").read_bytes() == BEFORE["vllm/a.py"]
    assert (outside / "c.py").read_bytes() == BEFORE["vllm/sub/c.py"]
    assert sorted(path.name for path in outside.iterdir()) == ["a.py", "c.py"]


def test_a_dangling_link_is_no_missing_file(tree: Path, tmp_path: Path) -> None:
    (tree / "new.py").symlink_to(tmp_path / "nothing.py")
    with pytest.raises(UserError, match=r"^new\.py is a symbolic link"):
        apply_changes(tree, [FileChange("new.py", None, b"x")])
    assert not (tmp_path / "nothing.py").exists()


def test_a_root_that_is_a_link_is_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    apply_changes(tmp_path / "link", CHANGES)
    assert contents(tree) == AFTER


def test_a_folder_where_a_file_is_wanted(tree: Path) -> None:
    (tree / "tests/kernels/test_new.py").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^tests/kernels/test_new\.py is a folder"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == BEFORE


def test_a_pipe_where_a_file_is_wanted(tree: Path) -> None:
    (tree / "vllm/a.py").unlink()
    os.mkfifo(tree / "vllm/a.py")
    with pytest.raises(UserError, match=r"^vllm/a\.py is not a plain file"):
        apply_changes(tree, CHANGES)


def test_a_file_where_a_folder_is_wanted(tree: Path) -> None:
    (tree / "tests").write_bytes(b"")
    with pytest.raises(UserError, match=r"^tests/kernels/test_new\.py cannot be made because"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == {**BEFORE, "tests": b""}


def as_nobody(task: Callable[[], None]) -> str:
    """The message of the UserError that ``task`` ends in without the rights of root."""

    def run() -> str:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return failure(task) or "it went through"

    status, text = in_child(run)
    assert status == 0
    return text


def open_to_all(tmp_path: Path) -> None:
    """pytest's folders are closed to other users."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)


@pytest.mark.parametrize("kind", ["tree", "checkout"])
def test_a_checkout_without_write_permission(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root: Path = request.getfixturevalue(kind)
    open_to_all(tmp_path)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    try:
        message = as_nobody(lambda: apply_changes(root, CHANGES, allow_dirty=True))
    finally:
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
    assert message == (
        f"{root} cannot be written (Permission denied): no file was changed; make it writable, or "
        "work on a copy of it."
    )
    assert contents(root) == BEFORE


def test_one_folder_without_write_permission(tree: Path, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    for path in (tree, *tree.rglob("*")):
        os.chmod(path, 0o777)
    (tree / "vllm/sub").chmod(0o555)
    message = as_nobody(lambda: apply_changes(tree, CHANGES))
    (tree / "vllm/sub").chmod(0o755)
    assert message == (
        f"vllm/sub/c.py in {tree} cannot be written (Permission denied): no file was changed."
    )
    assert contents(tree) == BEFORE


def test_write_protected_and_unreadable_files(tree: Path, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    for path in (tree, *tree.rglob("*")):
        os.chmod(path, 0o777)
    (tree / "vllm/b.py").chmod(0o444)
    message = as_nobody(lambda: apply_changes(tree, CHANGES))
    assert message == (
        "vllm/b.py is write-protected: no file was changed; make it writable, or work on a copy of "
        "the tree."
    )
    (tree / "vllm/b.py").chmod(0o222)
    message = as_nobody(lambda: apply_changes(tree, CHANGES))
    assert message == "vllm/b.py cannot be read (Permission denied): no file was changed."
    message = as_nobody(lambda: print(read_source(tree / "vllm/b.py", "vllm/b.py")))
    assert message == "vllm/b.py cannot be read (Permission denied): check its permissions."
    assert contents(tree) == BEFORE


def test_a_read_only_file_system(mounted: Callable[[str], Path]) -> None:
    root = fill(mounted("size=1m"))
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
    with pytest.raises(UserError) as caught:
        apply_changes(root, CHANGES)
    expected = (
        f"{root} cannot be written (Read-only file system): no file was changed; make it "
        "writable, or work on a copy of it."
    )
    assert str(caught.value) == expected
    assert contents(root) == BEFORE


def test_a_full_disk(mounted: Callable[[str], Path]) -> None:
    root = fill(mounted("size=64k"))
    large = FileChange("vllm/b.py", BEFORE["vllm/b.py"], b"#" * 100_000)
    with pytest.raises(UserError) as caught:
        apply_changes(root, [*CHANGES[:3], large])
    expected = (
        f"vllm/b.py in {root} cannot be written (No space left on device): no file was changed."
    )
    assert str(caught.value) == expected
    assert contents(root) == BEFORE
    apply_changes(root, CHANGES)
    assert contents(root) == AFTER


def test_a_file_size_limit(tree: Path) -> None:
    large = FileChange("vllm/b.py", BEFORE["vllm/b.py"], b"#" * 100_000)

    def task() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(UserError) as caught:
            apply_changes(tree, [*CHANGES[:3], large])
        return str(caught.value)

    status, text = in_child(task)
    assert status == 0
    assert text == f"vllm/b.py in {tree} cannot be written (File too large): no file was changed."
    assert contents(tree) == BEFORE


def test_a_file_system_without_hard_links(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    real, count = os.replace, 0

    def replace(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UserError, match=r"Input/output error\): no file was changed"):
        apply_changes(tree, CHANGES)
    assert contents(tree) == BEFORE
    apply_changes(tree, CHANGES)
    assert contents(tree) == AFTER


def test_control_c_leaves_every_file_as_it_was(tree: Path) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    for at in range(2, 30):
        with pytest.raises(KeyboardInterrupt), acting_at(at, interrupt):
            apply_changes(tree, CHANGES)
        recover(tree)
        assert contents(tree) == BEFORE


@pytest.mark.parametrize("kind", ["tree", "checkout"])
def test_two_runs_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(kind)

    def second() -> str:
        with pytest.raises(UserError) as caught:
            apply_changes(root, CHANGES)
        return str(caught.value)

    with workspace.locked(root):
        status, text = in_child(second)
    assert status == 0
    assert text == f"Another normport run is changing {root}: wait until it ends, then run again."
    assert contents(root) == BEFORE
    apply_changes(root, CHANGES)
    assert contents(root) == AFTER


def test_a_lock_file_that_was_removed_in_between_is_no_lock(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The run before us ends between our open and our lock.
    import fcntl

    real, calls = fcntl.flock, 0

    def flock(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tree / ".normport.lock").unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with workspace.locked(tree):
        assert (tree / ".normport.lock").exists()
    assert calls == 2
    assert contents(tree) == BEFORE


def test_a_lock_of_a_killed_run_holds_nobody_up(tree: Path) -> None:
    (tree / ".normport.lock").write_bytes(b"")
    apply_changes(tree, CHANGES)
    assert contents(tree) == AFTER


def test_no_tree_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere cannot be written \(No such file"):
        apply_changes(tmp_path / "nowhere", CHANGES)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x = 1\r\n",
        "é = 1\n".encode(),
        b"\xef\xbb\xbfx = 1\n",
        b"# coding: latin-1\nx = '\xe9'\n",
        b"#!/usr/bin/python\n# -*- coding: cp1252 -*-\nx = '\x80'\n",
    ],
)
def test_read_source_gives_the_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_bytes(content)
    assert read_source(tmp_path / "a.py") == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = 1\n\ny = '\xe9'\n", "a.py is not UTF-8 (line 3): save it as UTF-8 or declare"),
        (b"x = '\xe9'\n", "a.py cannot be decoded (invalid or missing encoding declaration"),
        (b"# coding: ascii\n\n\n'\xe9'", "a.py is not ascii (line 4): save it as UTF-8 or"),
        (b"# coding: klingon\n", "a.py cannot be decoded (unknown encoding: klingon): save it"),
        (b"# coding: rot13\n", "a.py cannot be decoded ('rot13' is not a text encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "a.py cannot be decoded (encoding problem: utf-8)"),
    ],
)
def test_read_source_names_a_wrong_encoding(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.py").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_source(tmp_path / "a.py", "a.py")
    assert str(caught.value).startswith(message)


def test_read_source_names_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^gone\.py does not exist: name a Python file"):
        read_source(tmp_path / "gone.py", "gone.py")
    with pytest.raises(UserError, match=r"^here is a folder where a Python file is wanted"):
        read_source(tmp_path, "here")
