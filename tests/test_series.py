"""The patch series: `git am` applies it, it is the same every time, and it replaces its former."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from faults import acting_at, contents, die, in_child, no_space

from normport.tools.errors import UserError
from normport.tools.mailbox import diff_of, format_patch
from normport.tools.series import Obsolete, load_manifest, write_series
from normport.tools.tree import FileChange, Patch, SourceTree

LAYERS = "vllm/layernorm.py"
MODEL = "vllm/muse.py"
BEFORE = {
    LAYERS: b"class GemmaRMSNorm:\n    def forward_native(self, x):\n        return x\n",
    MODEL: b"import torch\n\n\nclass Local:\n    pass\n\n\nx = Local()\ny = '\xe9'",
}
DISPATCHED = BEFORE[LAYERS] + b"\n    def forward_xpu(self, x):\n        return x\n"
PORTED = b"import torch\n\n\nx = RMSNorm()\ny = '\xe9'"
BACKPORT = Patch(
    "xpu-dispatch",
    "[XPU] Dispatch GemmaRMSNorm",
    "The layer falls to native.\n\nWith this it does not, which is worth a line that is longer "
    "than seventy-two characters.\n\n- a list stays\n- as it is",
    (("Signed-off-by", "NAME <ADDRESS>"),),
    (
        FileChange(LAYERS, BEFORE[LAYERS], DISPATCHED),
        FileChange("tests/kernels/test_xpu.py", None, b"def test(): ...\r\n"),
    ),
    "vLLM 0.30.0 has it.",
)
REWRITE = Patch(
    "muse-standard-norms",
    "MuseGlimmer: standard norms, naïvely",
    "Each is bit-equal: é.",
    (("Proof-bfloat16", "max 0 ulp\nover 168 cases"), ("Proof-float32", "max 0 ulp")),
    (FileChange(MODEL, BEFORE[MODEL], PORTED),),
    "The model is converted upstream.",
)
OPTIONAL = Patch(
    "rounded weight!",
    "Round",
    "Faster.",
    (),
    (FileChange(MODEL, PORTED, PORTED.replace(b"()", b"(1)")),),
    "Never.",
)


@dataclass(frozen=True)
class Ulps:
    max_ulp: int


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "core.autocrlf=false")
    command = ["git", *identity, *arguments]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    result = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def fill(root: Path, files: dict[str, bytes] = BEFORE) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def repository(root: Path, files: dict[str, bytes] = BEFORE) -> Path:
    fill(root, files)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=base")
    return root


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the kernel has; only a power failure would."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    root = fill(tmp_path / "tree")
    return SourceTree(root, "0.29.0", "vllm==0.29.0", git=False, writable=False, wheel_sha256="ab")


def write(out: Path, tree: SourceTree, **changed: object) -> None:
    arguments = {
        "patches": [BACKPORT, REWRITE],
        "optional": [OPTIONAL],
        "evidence": {"muse-standard-norms": {"bfloat16": Ulps(0)}, "rows": [1, 7]},
        "obsolete": [Obsolete("other", "It is there.")],
        **changed,
    }
    write_series(out, tree, **arguments)  # type: ignore[arg-type]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_git_am_applies_it(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree)
    root = repository(tmp_path / "checkout")
    git(root, "am", *sorted(map(str, out.glob("*.patch"))))
    assert contents(root) == {
        LAYERS: DISPATCHED,
        MODEL: PORTED,
        "tests/kernels/test_xpu.py": b"def test(): ...\r\n",
    }
    log = git(root, "log", "--reverse", "--format=%an <%ae>%n%ad%n%B%n===", "HEAD~2..HEAD")
    blank_hash = sha256(BEFORE[MODEL])
    assert log == (
        "normport <normport@localhost>\nMon Sep 17 00:00:00 2001 +0000\n"
        "Dispatch GemmaRMSNorm\n\nThe layer falls to native.\n\n"
        "With this it does not, which is worth a line that is longer than\n"
        "seventy-two characters.\n\n- a list stays\n- as it is\n\n"
        f"Base-sha256: {LAYERS} {sha256(BEFORE[LAYERS])}\nSigned-off-by: NAME <ADDRESS>\n\n===\n"
        "normport <normport@localhost>\nMon Sep 17 00:00:00 2001 +0000\n"
        "MuseGlimmer: standard norms, naïvely\n\nEach is bit-equal: é.\n\n"
        "Proof-bfloat16: max 0 ulp over 168 cases\nProof-float32: max 0 ulp\n"
        f"Base-sha256: {MODEL} {blank_hash}\n\n===\n"
    )
    git(root, "am", str(out / "optional/rounded-weight.patch"))
    assert contents(root)[MODEL] == PORTED.replace(b"()", b"(1)")


def test_git_reads_the_trailers(tree: SourceTree, tmp_path: Path) -> None:
    write(tmp_path / "out", tree)
    root = repository(tmp_path / "checkout")
    git(root, "am", *sorted(map(str, (tmp_path / "out").glob("*.patch"))))
    trailers = git(root, "log", "-1", "--format=%(trailers:key=Proof-bfloat16,valueonly)")
    assert trailers.strip() == "max 0 ulp over 168 cases"


def test_git_am_falls_back_to_a_merge(tree: SourceTree, tmp_path: Path) -> None:
    # The blob hashes in the index lines are what makes --3way possible.
    write(tmp_path / "out", tree)
    root = repository(tmp_path / "checkout")
    git(root, "rm", "--quiet", "--cached", MODEL)
    fill(root, {MODEL: b"# moved\n" * 9 + BEFORE[MODEL].replace(b"import torch", b"import jax")})
    git(root, "add", MODEL)
    git(root, "commit", "--quiet", "--message=moved")
    git(root, "am", "--3way", *sorted(map(str, (tmp_path / "out").glob("*.patch"))))
    assert contents(root)[MODEL] == b"# moved\n" * 9 + PORTED.replace(b"torch", b"jax")


def test_the_mail_is_as_format_patch_writes_it(tree: SourceTree, tmp_path: Path) -> None:
    plain = replace(REWRITE, subject="Convert", why="Because.")
    change = replace(plain.changes[0], before=b"a\nb\nc\n", after=b"a\nB\n")
    mail = format_patch(replace(plain, changes=(change,)), number=2, total=12)
    root = repository(tmp_path / "checkout", {MODEL: b"a\nb\nc\n"})
    fill(root, {MODEL: b"a\nB\n"})
    message = "Convert\n\nBecause.\n\nProof-bfloat16: max 0 ulp over 168 cases\n"
    git(root, "commit", "--quiet", "--all", "--message", message + "Proof-float32: max 0 ulp")
    options = ["--stdout", "--zero-commit", "--full-index", "--signature=normport", "-1"]
    author = "From: normport <normport@localhost>\nDate: Mon, 17 Sep 2001 00:00:00 +0000\n"
    gits = git(root, "format-patch", *options).splitlines(keepends=True)
    assert mail.decode() == "".join([gits[0], author, *gits[3:]]).replace("[PATCH]", "[PATCH 2/12]")


def test_the_base_commit_of_a_checkout(tmp_path: Path) -> None:
    root = repository(tmp_path / "checkout")
    tree = SourceTree(root, "0.29.0", "x", git=True, writable=True)
    write(tmp_path / "out", tree)
    head = git(root, "rev-parse", "HEAD").strip()
    first, second = sorted((tmp_path / "out").glob("*.patch"))
    assert f"\nbase-commit: {head}\n--".encode() in first.read_bytes()
    assert b"base-commit" not in second.read_bytes()
    assert b"Base-sha256" not in first.read_bytes() + second.read_bytes()
    assert load_manifest(tmp_path / "out").base_commit == head
    git(root, "am", str(first), str(second))
    assert contents(root)[MODEL] == PORTED


def test_a_checkout_with_uncommitted_changes_has_no_base_commit(tmp_path: Path) -> None:
    root = repository(tmp_path / "checkout")
    git(root, "rm", "--quiet", "--cached", MODEL)
    git(root, "commit", "--quiet", "--message=without")
    write(tmp_path / "out", SourceTree(root, "0.29.0", "x", git=True, writable=True))
    assert load_manifest(tmp_path / "out").base_commit is None
    assert (
        b"Base-sha256: vllm/muse.py"
        in (tmp_path / "out/0002-muse-standard-norms.patch").read_bytes()
    )


def test_the_manifest(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree)
    manifest = json.loads((out / "manifest.json").read_bytes())
    patches = manifest.pop("patches")
    (optional,) = manifest.pop("optional")
    assert manifest == {
        "schema": 1,
        "release": "0.29.0",
        "wheel_sha256": "ab",
        "base_commit": None,
        "obsolete": [{"name": "other", "reason": "It is there."}],
        "evidence": {"rows": [1, 7]},
    }
    assert patches[0]["files"] == [
        {
            "path": LAYERS,
            "before": sha256(BEFORE[LAYERS]),
            "after": sha256(DISPATCHED),
            "adds": ["GemmaRMSNorm.forward_xpu"],
            "removes": [],
        },
        {
            "path": "tests/kernels/test_xpu.py",
            "before": None,
            "after": sha256(b"def test(): ...\r\n"),
            "adds": [],
            "removes": [],
        },
    ]
    assert patches[1] == {
        "file": "0002-muse-standard-norms.patch",
        "order": 2,
        "subject": REWRITE.subject,
        "reason": REWRITE.why,
        "droppable": REWRITE.droppable,
        "sha256": sha256((out / "0002-muse-standard-norms.patch").read_bytes()),
        "files": [
            {
                "path": MODEL,
                "before": sha256(BEFORE[MODEL]),
                "after": sha256(PORTED),
                "adds": [],
                # The é is Latin-1 without a declaration: this file does not parse.
                "removes": [],
            }
        ],
        "evidence": {"bfloat16": {"max_ulp": 0}},
    }
    assert (optional["file"], optional["order"]) == ("optional/rounded-weight.patch", None)
    read = load_manifest(out)
    assert read.patches[0].files[0].adds == ("GemmaRMSNorm.forward_xpu",)
    assert read.to_json() == (out / "manifest.json").read_bytes()


def test_the_same_bytes_again(
    tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "one", tree)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.chdir(tmp_path)
    moved = replace(tree, root=fill(tmp_path / "elsewhere"))
    write(Path("two"), moved)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert not any(b"/tmp" in content for content in contents(tmp_path / "one").values())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")}
    write(tmp_path / "one", tree)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")} == before


def test_a_former_series_goes_and_other_files_stay(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree)
    (out / "README.md").write_text("mine")
    write(out, tree, patches=[REWRITE], optional=[])
    assert sorted(contents(out)) == ["0001-muse-standard-norms.patch", "README.md", "manifest.json"]
    assert not (out / "optional").exists()
    assert b"Subject: [PATCH] " in (out / "0001-muse-standard-norms.patch").read_bytes()
    assert (out / "README.md").read_text() == "mine"


def test_an_empty_series_is_only_a_manifest(tree: SourceTree, tmp_path: Path) -> None:
    write(tmp_path / "out", tree, patches=[], optional=[])
    assert list(contents(tmp_path / "out")) == ["manifest.json"]


@pytest.mark.parametrize("name", ["0001-theirs.patch", "optional/theirs.patch"])
def test_foreign_patches_are_refused(name: str, tree: SourceTree, tmp_path: Path) -> None:
    out = fill(tmp_path / "out", {name: b"theirs"})
    with pytest.raises(UserError) as caught:
        write(out, tree)
    expected = f"{out} holds {name}, which is not ours: move it away or name another folder."
    assert str(caught.value) == expected
    assert contents(out) == {name: b"theirs"}


def test_an_edited_patch_is_refused(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree)
    with (out / "0001-xpu-dispatch.patch").open("ab") as file:
        file.write(b"x")
    before = contents(out)
    with pytest.raises(UserError, match=r"holds 0001-xpu-dispatch\.patch, which was edited since"):
        write(out, tree, patches=[])
    assert contents(out) == before


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"{", "is not a manifest that normport wrote"),
        (b"[]", "is not a manifest that normport wrote"),
        (b'{"schema": 1}', "is not a manifest that normport wrote"),
        (b'{"schema": 2}', "has schema 2 where this normport knows 1"),
        (None, "holds no manifest.json: name a folder that `normport port` wrote"),
    ],
)
def test_a_manifest_that_cannot_be_used(
    manifest: bytes | None, message: str, tree: SourceTree, tmp_path: Path
) -> None:
    out = fill(tmp_path / "out", {} if manifest is None else {"manifest.json": manifest})
    with pytest.raises(UserError, match=message):
        load_manifest(out)
    if manifest is not None:
        with pytest.raises(UserError, match=message):
            write(out, tree)
        assert contents(out) == {"manifest.json": manifest}


def test_a_manifest_cannot_name_files_elsewhere(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree)
    text = (out / "manifest.json").read_text()
    for name in ("../x.patch", "/x.patch", "sub/x.patch", "optional/../../x.patch"):
        (out / "manifest.json").write_text(text.replace("0001-xpu-dispatch.patch", name))
        with pytest.raises(UserError, match="is not a manifest that normport wrote"):
            load_manifest(out)


def test_a_failure_leaves_the_old_series(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, tree, patches=[REWRITE], optional=[])
    old = contents(out)
    write(tmp_path / "new", tree)
    new = contents(tmp_path / "new")
    seen = set()
    for at in range(1, 200):
        with acting_at(at, no_space) as counter, suppress(UserError):
            write(out, tree)
        if counter.count < at:
            break
        state = {path: c for path, c in contents(out).items() if "normport" not in path}
        assert state in (old, new)
        seen.add(state == new)
        write(out, tree, patches=[REWRITE], optional=[])
        assert contents(out) == old
    assert contents(out) == new
    assert seen == {True, False}


def test_killed_at_any_call_the_next_run_writes_it(tree: SourceTree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(tmp_path / "new", tree)
    new = contents(tmp_path / "new")
    for at in range(1, 200):

        def task(at: int = at) -> None:
            with acting_at(at, die):
                write(out, tree)

        status, _ = in_child(task)
        if os.WIFEXITED(status):
            break
        write(out, tree)
        assert contents(out) == new
        write(out, tree, patches=[REWRITE], optional=[])
    assert os.WEXITSTATUS(status) == 0
    assert contents(out) == new


def test_a_new_folder_that_cannot_be_filled_goes_again(tree: SourceTree, tmp_path: Path) -> None:
    with pytest.raises(UserError), acting_at(12, no_space):
        write(tmp_path / "a/b/out", tree)
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made(tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "file/out"):
        with pytest.raises(UserError, match=rf"^The folder .*/{name} cannot be made \("):
            write(tmp_path / name, tree)


def test_patches_that_do_not_follow_are_a_mistake_of_the_caller(
    tree: SourceTree, tmp_path: Path
) -> None:
    for bad in (
        {"patches": [REWRITE, replace(REWRITE, name="again")]},
        {"optional": [replace(OPTIONAL, changes=REWRITE.changes)]},
        {"patches": [BACKPORT, replace(REWRITE, subject="two\nlines")]},
        {"patches": [BACKPORT, replace(REWRITE, why="Text.\n\n--- a line\n")]},
        {"patches": [BACKPORT, replace(REWRITE, why="Text.\n\nFrom me\n")]},
        {"optional": [OPTIONAL, OPTIONAL]},
    ):
        with pytest.raises(ValueError, match=r".+"):
            write(tmp_path / "out", tree, **bad)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", [b"a\r\n", b"= \xff =3D\r\n", b"From me\n", b"-- \n", b"\x00\n"])
def test_the_diff_in_a_mail_is_found_again(line: bytes, tmp_path: Path) -> None:
    patch = replace(REWRITE, changes=(FileChange("x.py", b"1\n" + line, line * 2 + b"end"),))
    diff = diff_of(format_patch(patch))
    fill(tmp_path, {"x.py": b"1\n" + line})
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, cwd=tmp_path, input=diff, check=True, capture_output=True)
    assert (tmp_path / "x.py").read_bytes() == line * 2 + b"end"


@pytest.mark.release
def test_git_am_on_the_real_sources(release: Callable[[str], SourceTree], tmp_path: Path) -> None:
    tree = release("0.29.0")
    paths = [
        "vllm/model_executor/layers/layernorm.py",
        "vllm/model_executor/models/muse_glimmer.py",
    ]
    files = {path: (tree.root / path).read_bytes() for path in paths}
    changed = {
        paths[0]: files[paths[0]].replace(b"    def forward_native(", b"    def forward_xpu(", 1),
        paths[1]: files[paths[1]].replace(b"MuseGlimmerRMSNorm", b"LocalNorm"),
    }
    patches = [
        replace(REWRITE, name=str(n), changes=(FileChange(path, files[path], changed[path]),))
        for n, path in enumerate(paths)
    ]
    write_series(tmp_path / "out", tree, patches)
    root = repository(tmp_path / "checkout", files)
    git(root, "am", *sorted(map(str, (tmp_path / "out").glob("*.patch"))))
    assert contents(root) == changed
    assert load_manifest(tmp_path / "out").wheel_sha256 == tree.wheel_sha256
