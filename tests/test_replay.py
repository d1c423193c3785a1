"""The status of a series on a checkout, and applying it: clean, obsolete, no-op, conflict."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faults import contents

from normport.tools.errors import UserError
from normport.tools.manifest import NAME, load
from normport.tools.replay import PatchStatus
from normport.tools.series import apply_series, status, write_series
from normport.tools.transaction import digest
from normport.tools.tree import FileChange, Patch, SourceTree

LAYERS, OPS, MODEL = "vllm/layernorm.py", "vllm/_xpu_ops.py", "vllm/muse.py"
TEST = "tests/kernels/test_xpu.py"
PAD = b"".join(b"pad_%d = %d\n" % (n, n) for n in range(12))
BEFORE = {
    LAYERS: PAD + b"\n\nclass Gemma:\n    def forward_native(self): ...\n" + PAD,
    OPS: b"class xpu_ops:\n    pass\n" + PAD,
    MODEL: b"class Local:\n    pass\n\n\nx = Local()\n" + PAD + b"z = 1\n",
}
METHOD = b"\n    def forward_xpu(self): ...\n"
NATIVE = b"    def forward_native(self): ...\n"
AFTER = {
    LAYERS: BEFORE[LAYERS].replace(NATIVE, NATIVE + METHOD),
    OPS: b"def _guard(): ...\n\n\n" + BEFORE[OPS],
    MODEL: BEFORE[MODEL].replace(b"class Local:\n    pass\n\n\nx = Local()", b"x = RMSNorm()"),
    TEST: b"def test(): ...\n",
}
FIRST = Patch(
    "xpu",
    "XPU",
    "Why.",
    (),
    (
        FileChange(LAYERS, BEFORE[LAYERS], AFTER[LAYERS]),
        FileChange(OPS, BEFORE[OPS], AFTER[OPS]),
        FileChange(TEST, None, AFTER[TEST]),
    ),
    "Then.",
)
SECOND = Patch(
    "muse", "Muse", "Why.", (), (FileChange(MODEL, BEFORE[MODEL], AFTER[MODEL]),), "Then."
)
OPTIONAL = Patch(
    "opt",
    "Opt",
    "Why.",
    (),
    (FileChange(MODEL, AFTER[MODEL], AFTER[MODEL].replace(b"RMSNorm()", b"RMSNorm(1)")),),
    "Then.",
)
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.excludesFile=")


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


@pytest.fixture
def series(tmp_path: Path) -> Path:
    tree = SourceTree(tmp_path, "0.29.0", "x", git=False, writable=False)
    write_series(tmp_path / "series", tree, [FIRST, SECOND], [OPTIONAL])
    return tmp_path / "series"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout" / "tests").mkdir(parents=True)
    return fill(tmp_path / "checkout", BEFORE)


def seen(checkout: Path, series: Path) -> list[str]:
    """The statuses, with proof that the checkout was only read."""
    before = contents(checkout)
    statuses = status(checkout, series)
    assert contents(checkout) == before
    assert [entry.file for entry in statuses] == [
        "0001-xpu.patch",
        "0002-muse.patch",
        "optional/opt.patch",
    ]
    return [entry.status for entry in statuses]


def test_on_what_it_was_made_from(checkout: Path, series: Path) -> None:
    assert seen(checkout, series) == ["clean", "clean", "clean"]
    assert status(checkout, series)[0] == PatchStatus(
        "0001-xpu.patch", 1, "XPU", "clean", "It applies."
    )
    assert status(checkout, series)[2].reason == "It applies on top of the series."


def test_on_what_it_ends_in(checkout: Path, series: Path) -> None:
    fill(checkout, AFTER)
    assert seen(checkout, series) == ["obsolete", "obsolete", "clean"]
    assert status(checkout, series)[0].reason == "Every file is already as the patch leaves it."


def test_cumulatively(checkout: Path, series: Path, tmp_path: Path) -> None:
    # Each needs the one before it, in the same file.
    tree = SourceTree(tmp_path, None, "x", git=False, writable=False)
    steps = [BEFORE[MODEL].replace(b"z = 1", b"z = %d" % n) for n in (1, 2, 3)]
    patches = [
        replace(SECOND, name=str(n), changes=(FileChange(MODEL, steps[n], steps[n + 1]),))
        for n in (0, 1)
    ]
    write_series(tmp_path / "steps", tree, patches)
    assert [entry.status for entry in status(checkout, tmp_path / "steps")] == ["clean", "clean"]
    fill(checkout, {MODEL: steps[1]})
    found = [entry.status for entry in status(checkout, tmp_path / "steps")]
    assert found == ["obsolete", "clean"]


def test_on_files_that_moved_on(checkout: Path, series: Path) -> None:
    moved = {LAYERS: b"# new\n" + BEFORE[LAYERS], MODEL: BEFORE[MODEL] + b"# new\n"}
    fill(checkout, moved)
    assert seen(checkout, series) == ["clean", "clean", "clean"]
    how = "It applies, though not to the files it was made from."
    assert status(checkout, series)[0].reason == how


def test_what_is_there_among_other_changes_is_obsolete(checkout: Path, series: Path) -> None:
    fill(checkout, {path: content + b"# new\n" for path, content in AFTER.items()})
    fill(checkout, {TEST: AFTER[TEST]})
    assert seen(checkout, series) == ["obsolete", "obsolete", "clean"]
    assert status(checkout, series)[0].reason == "Its changes are already there."


def test_what_upstream_has_in_its_own_way_is_obsolete(checkout: Path, series: Path) -> None:
    theirs = b"\n    def forward_xpu(self, x, residual=None):\n        return x\n"
    at_the_same_place = BEFORE[LAYERS].replace(NATIVE, NATIVE + theirs)
    elsewhere = BEFORE[LAYERS].replace(NATIVE, theirs + b"\n" * 9 + NATIVE)
    for content in (at_the_same_place, elsewhere):
        fill(checkout, {LAYERS: content})
        assert seen(checkout, series) == ["obsolete", "clean", "clean"]
        assert status(checkout, series)[0].reason == (
            f"The checkout already has its own Gemma.forward_xpu in {LAYERS}."
        )


def test_a_conflict_names_file_and_hunk(checkout: Path, series: Path) -> None:
    fill(checkout, {LAYERS: BEFORE[LAYERS].replace(b"class Gemma:", b"class Other:")})
    assert seen(checkout, series) == ["conflict", "clean", "clean"]
    found = status(checkout, series)[0]
    assert (found.path, found.hunk) == (LAYERS, "@@ -14,6 +14,8 @@ pad_11 = 11")
    assert found.reason == f"{LAYERS} differs at @@ -14,6 +14,8 @@."


def test_a_conflict_says_what_is_gone(checkout: Path, series: Path) -> None:
    fill(checkout, {MODEL: BEFORE[MODEL].replace(b"Local", b"Renamed")})
    found = status(checkout, series)[1]
    assert (found.status, found.path) == ("conflict", MODEL)
    assert found.reason.endswith("@@: it no longer defines Local.")


def test_a_conflict_leaves_the_patches_after_it_their_chance(checkout: Path, series: Path) -> None:
    fill(checkout, {OPS: b"nothing alike\n"})
    assert seen(checkout, series) == ["conflict", "clean", "clean"]
    fill(checkout, {MODEL: b"nothing alike\n"})
    assert seen(checkout, series) == ["conflict", "conflict", "conflict"]


def test_a_missing_file(checkout: Path, series: Path) -> None:
    (checkout / OPS).unlink()
    found = status(checkout, series)[0]
    assert (found.status, found.reason) == ("conflict", f"The checkout has no {OPS}.")


def test_a_file_that_is_in_the_way(checkout: Path, series: Path) -> None:
    fill(checkout, {TEST: b"theirs\n"})
    found = status(checkout, series)[0]
    assert (found.status, found.path) == ("conflict", TEST)
    assert found.reason == f"{TEST} exists already, with another content."


def commit(checkout: Path) -> None:
    for command in ("init --quiet", "add --all", "commit --quiet --message=all"):
        subprocess.run(["git", *IDENTITY, *command.split()], cwd=checkout, check=True)


def am(checkout: Path, series: Path) -> subprocess.CompletedProcess[bytes]:
    patches = sorted(map(str, series.glob("*.patch")))
    return subprocess.run(["git", *IDENTITY, "am", *patches], cwd=checkout, capture_output=True)


def linked(checkout: Path, path: str) -> None:
    """Puts a file or folder elsewhere, with a link to it in its place."""
    (checkout / path).rename(checkout.parent / "elsewhere")
    (checkout / path).symlink_to(checkout.parent / "elsewhere")


def tests_is_a_file(checkout: Path) -> None:
    (checkout / "tests").rmdir()
    (checkout / "tests").write_bytes(b"")


def folder_instead(checkout: Path) -> None:
    (checkout / OPS).unlink()
    (checkout / OPS).mkdir()
    (checkout / OPS / "kept").write_bytes(b"")


def pipe_instead(checkout: Path) -> None:
    (checkout / OPS).unlink()
    os.mkfifo(checkout / OPS)


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        pytest.param(
            lambda top: linked(top, OPS),
            OPS,
            f"{OPS} is a symbolic link, which normport does not follow or replace.",
            id="link",
        ),
        pytest.param(
            lambda top: linked(top, "tests"),
            TEST,
            "tests is a symbolic link, which normport does not follow or replace.",
            id="link to a folder",
        ),
        pytest.param(
            lambda top: (top / TEST).parent.mkdir() or (top / TEST).symlink_to("nowhere"),
            TEST,
            f"{TEST} is a symbolic link, which normport does not follow or replace.",
            id="link that leads nowhere",
        ),
        pytest.param(
            tests_is_a_file,
            TEST,
            f"{TEST} cannot be made because a file stands where its folder should.",
            id="file for a folder",
        ),
        pytest.param(
            folder_instead, OPS, f"{OPS} is a folder where a file is wanted.", id="folder"
        ),
        pytest.param(
            pipe_instead, OPS, f"{OPS} is not a plain file where a file is wanted.", id="pipe"
        ),
    ],
)
def test_what_git_am_would_not_write_over(
    change: Callable[[Path], object], path: str, reason: str, checkout: Path, series: Path
) -> None:
    change(checkout)
    commit(checkout)
    found = status(checkout, series)
    assert [entry.status for entry in found] == ["conflict", "clean", "clean"]
    assert (found[0].path, found[0].reason) == (path, reason)
    for allow_dirty in (False, True):
        with pytest.raises(UserError) as caught:
            apply_series(checkout, series, allow_dirty=allow_dirty)
        assert str(caught.value) == (
            f"0001-xpu.patch does not apply: {reason} No file was changed."
        )
    assert am(checkout, series).returncode != 0


def test_a_linked_file_that_is_as_the_patch_leaves_it(checkout: Path, series: Path) -> None:
    fill(checkout, AFTER)
    linked(checkout, MODEL)
    found = [entry.status for entry in status(checkout, series)]
    assert found == ["obsolete", "obsolete", "conflict"]


@pytest.mark.parametrize("staged", [False, True])
def test_uncommitted_changes_in_a_file_that_a_patch_changes(
    staged: bool, checkout: Path, series: Path
) -> None:
    commit(checkout)
    assert seen(checkout, series) == ["clean", "clean", "clean"]
    fill(checkout, {MODEL: BEFORE[MODEL] + b"# mine\n"})
    if staged:
        subprocess.run(["git", "add", MODEL], cwd=checkout, check=True)
    assert seen(checkout, series) == ["clean", "conflict", "conflict"]
    found = status(checkout, series)[1]
    assert (found.path, found.hunk) == (MODEL, None)
    assert found.reason == (
        f"{MODEL} has uncommitted changes: commit or stash them, or `series apply --allow-dirty`."
    )
    assert am(checkout, series).returncode != 0
    subprocess.run(["git", "am", "--abort"], cwd=checkout, check=True, capture_output=True)
    fill(checkout, {MODEL: BEFORE[MODEL] + b"# mine\n"})
    applied = apply_series(checkout, series, allow_dirty=True)
    assert [entry.status for entry in applied] == ["clean", "clean", "clean"]


def test_uncommitted_changes_that_are_in_no_patchs_way(checkout: Path, series: Path) -> None:
    commit(checkout)
    fill(checkout, {"vllm/other.py": b"mine\n", **{path: AFTER[path] for path in (LAYERS, OPS)}})
    fill(checkout, {TEST: AFTER[TEST]})
    assert seen(checkout, series) == ["obsolete", "clean", "clean"]


def test_a_checkout_that_git_does_not_trust(
    checkout: Path, series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(checkout)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert seen(checkout, series) == ["conflict"] * 3
    reason = status(checkout, series)[0].reason
    assert f"git cannot tell whether {LAYERS} has uncommitted changes" in reason


def test_half_applied(checkout: Path, series: Path) -> None:
    fill(checkout, {LAYERS: AFTER[LAYERS]})
    found = status(checkout, series)[0]
    assert found.status == "conflict"
    assert found.reason == (
        f"Half applied: {LAYERS} is as the patch leaves it, {OPS} is not; put back {LAYERS} as "
        "the release has it and apply the series again."
    )


def test_a_patch_without_a_change_is_a_no_op(checkout: Path, tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, "0.29.0", "x", git=False, writable=False)
    same = FileChange(MODEL, BEFORE[MODEL], BEFORE[MODEL])
    write_series(tmp_path / "series", tree, [replace(SECOND, changes=(same,))])
    (found,) = status(checkout, tmp_path / "series")
    assert (found.status, found.reason) == ("no-op", "The patch holds no change.")


def test_crlf_and_other_encodings(tmp_path: Path) -> None:
    before, after = b"a = '\xe9'\r\nb = 1\r\n", b"a = '\xe9'\r\nb = 2\r\n"
    checkout = fill(tmp_path / "checkout", {MODEL: before})
    tree = SourceTree(checkout, "0.29.0", "x", git=False, writable=True)
    patch = replace(SECOND, changes=(FileChange(MODEL, before, after),))
    write_series(tmp_path / "series", tree, [patch])
    assert [entry.status for entry in apply_series(checkout, tmp_path / "series")] == ["clean"]
    assert (checkout / MODEL).read_bytes() == after


def test_the_users_git_configuration_plays_no_part(
    checkout: Path, series: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[core]\n\tautocrlf = true\n[apply]\n\twhitespace = error\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert seen(checkout, series) == ["clean", "clean", "clean"]


def test_apply(checkout: Path, series: Path) -> None:
    assert [entry.status for entry in apply_series(checkout, series)] == ["clean"] * 3
    assert contents(checkout) == AFTER
    again = apply_series(checkout, series)
    assert [entry.status for entry in again] == ["obsolete", "obsolete", "clean"]
    assert contents(checkout) == AFTER


def test_with_an_optional_patch_on_top(checkout: Path, series: Path) -> None:
    with_optional = {**AFTER, MODEL: OPTIONAL.changes[0].after}
    fill(checkout, with_optional)
    assert seen(checkout, series) == ["obsolete"] * 3
    assert status(checkout, series)[1].reason == (
        "Its changes are already there, with those of a later patch on top."
    )
    apply_series(checkout, series)
    assert contents(checkout) == with_optional
    fill(checkout, {LAYERS: BEFORE[LAYERS], OPS: BEFORE[OPS]})
    (checkout / TEST).unlink()
    assert seen(checkout, series) == ["clean", "obsolete", "obsolete"]
    apply_series(checkout, series)
    assert contents(checkout) == with_optional


def test_patches_on_top_of_each_other_are_all_obsolete(checkout: Path, tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, None, "x", git=False, writable=False)
    steps = [BEFORE[MODEL].replace(b"z = 1", b"z = %d" % n) for n in (1, 2, 3)]
    patches = [
        replace(SECOND, name=str(n), changes=(FileChange(MODEL, steps[n], steps[n + 1]),))
        for n in (0, 1)
    ]
    write_series(tmp_path / "steps", tree, patches)
    fill(checkout, {MODEL: steps[2]})
    found = [entry.status for entry in status(checkout, tmp_path / "steps")]
    assert found == ["obsolete", "obsolete"]


def test_an_installed_vllm_gets_no_tests(tmp_path: Path, series: Path) -> None:
    installed = fill(tmp_path / "site-packages", BEFORE)
    assert [entry.status for entry in status(installed, series)] == ["clean"] * 3
    apply_series(installed, series)
    assert contents(installed) == {path: c for path, c in AFTER.items() if path != TEST}
    assert [entry.status for entry in status(installed, series)][:2] == ["obsolete"] * 2


def test_apply_leaves_out_what_is_obsolete(checkout: Path, series: Path) -> None:
    fill(checkout, {path: AFTER[path] for path in (LAYERS, OPS, TEST)})
    apply_series(checkout, series)
    assert contents(checkout) == AFTER


def test_apply_is_all_or_nothing(checkout: Path, series: Path) -> None:
    fill(checkout, {MODEL: b"nothing alike\n"})
    before = contents(checkout)
    with pytest.raises(UserError) as caught:
        apply_series(checkout, series)
    assert str(caught.value) == (
        f"0002-muse.patch does not apply: {MODEL} differs at @@ -1,8 +1,4 @@: it no longer "
        "defines Local. No file was changed."
    )
    assert contents(checkout) == before


def test_apply_respects_uncommitted_changes(checkout: Path, series: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    with pytest.raises(UserError, match=r"uncommitted changes: .*--allow-dirty"):
        apply_series(checkout, series)
    assert contents(checkout) == BEFORE
    apply_series(checkout, series, allow_dirty=True)
    assert contents(checkout) == AFTER


def test_without_git(checkout: Path, series: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(UserError, match="git is needed for this and was not found: install it"):
        status(checkout, series)


def test_an_edited_or_lost_patch_is_named(checkout: Path, series: Path) -> None:
    patch = series / "0002-muse.patch"
    patch.write_bytes(patch.read_bytes() + b"\n")
    with pytest.raises(UserError, match=r"0002-muse\.patch was edited since normport wrote it"):
        status(checkout, series)
    patch.unlink()
    with pytest.raises(UserError, match=r"0002-muse\.patch cannot be read \(No such file"):
        status(checkout, series)


def test_a_folder_without_a_series(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no manifest\.json: name a folder that"):
        status(checkout, tmp_path / "nowhere")


def test_a_manifest_cannot_reach_out_of_the_checkout(checkout: Path, series: Path) -> None:
    text = (series / NAME).read_text()
    (series / NAME).write_text(text.replace(f'"{MODEL}"', '"../../secret"'))
    with pytest.raises(UserError, match="no path of a file inside the tree"):
        status(checkout, series)


def test_the_series_is_what_the_manifest_says(series: Path) -> None:
    manifest = load(series)
    assert [digest((series / entry.file).read_bytes()) for entry in manifest.patches] == [
        entry.sha256 for entry in manifest.patches
    ]


@pytest.mark.release
def test_a_dispatch_that_the_release_has_of_its_own(
    release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    path = "vllm/model_executor/layers/layernorm.py"
    old, new = (release(version).root for version in ("0.29.0", "0.30.0"))
    before = (old / path).read_bytes()
    native = b"    def forward_native("
    at = before.index(native, before.index(b"class GemmaRMSNorm"))
    after = before[:at] + b"    def forward_xpu(self, x, residual=None): ...\n\n" + before[at:]
    patch = replace(FIRST, changes=(FileChange(path, before, after),))
    write_series(tmp_path / "series", release("0.29.0"), [patch])
    assert [entry.status for entry in status(old, tmp_path / "series")] == ["clean"]
    (found,) = status(new, tmp_path / "series")
    assert found.status == "obsolete"
    assert "GemmaRMSNorm.forward_xpu" in found.reason
