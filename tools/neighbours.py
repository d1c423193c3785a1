"""Which other files may use what a file defines."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from normport.tools.discover import PythonFile, discover, enclosing_tree, is_skipped
from normport.tools.git import work_tree_top


def neighbourhood(path: Path) -> tuple[Path, bool]:
    """The folder whose files may use those of ``path``, and whether that is all below it.

    path: of a file, with all links resolved.

    That is the git work tree; else the vLLM tree; else the outermost package. A file in none of
    them has its own folder, which may be a home folder or /tmp: all below that is too much. An
    installed package has itself: what else is installed there is not its project.
    """
    top = work_tree_top(path.parent)
    if top is not None and not _is_skipped_below(top, path):
        return top, True
    tree = enclosing_tree(path.parent)
    if tree is not None and not _is_installation(tree):
        return tree, True
    package = path.parent
    while (package.parent / "__init__.py").is_file():
        package = package.parent
    if tree is not None and path.is_relative_to(tree / "vllm"):
        package = tree / "vllm"
    return package, (package / "__init__.py").is_file()


class Neighbours:
    """The Python files of neighbourhoods as ``neighbourhood`` gives them, each listed once.

    looked_at: the files that are looked at themselves.
    """

    def __init__(self, looked_at: Sequence[PythonFile]) -> None:
        self._looked_at = looked_at
        self._listed: dict[tuple[Path, bool], Sequence[Path]] = {}

    @cached_property
    def given(self) -> Mapping[Path, PythonFile]:
        """The files that are looked at, by their paths with all links resolved."""
        return _resolved(self._looked_at)

    def prepare(self) -> None:
        """Do ahead what many files make long: what is nearly always asked for later."""
        for path in {file.root: path for path, file in self.given.items()}.values():
            self.files(*neighbourhood(path))

    def around(
        self, folder: Path, deep: bool, roots: Collection[Path] | None = None
    ) -> Sequence[Path]:
        """The files of one neighbourhood, in order; with those that are looked at (of ``roots``
        alone, if given) where they need not be all below it."""
        found = self.files(folder, deep)
        if deep:
            return found
        given = (p for p, file in self.given.items() if roots is None or file.root in roots)
        return sorted({*found, *given})

    def files(self, folder: Path, deep: bool) -> Sequence[Path]:
        """The files of one neighbourhood, in order."""
        if (folder, deep) not in self._listed:
            self._listed[folder, deep] = sorted(_files_around(folder, deep))
        return self._listed[folder, deep]


def _resolved(files: Sequence[PythonFile]) -> dict[Path, PythonFile]:
    """The files by their paths with all links resolved: folder by folder, since most share one
    and a file that was found below a folder is no link itself."""
    folders: dict[Path, Path] = {}
    found: dict[Path, PythonFile] = {}
    for file in files:
        if file.named:
            found[file.path.resolve()] = file
            continue
        parent = file.path.parent
        if parent not in folders:
            folders[parent] = parent.resolve()
        found[folders[parent] / file.path.name] = file
    return found


def _files_around(folder: Path, deep: bool) -> Sequence[Path]:
    if deep:
        found, _ = discover([folder])
        return [file.path for file in found]
    below = [*folder.glob("*.py"), *_one_down(folder)]
    beside = [path for path in _one_down(folder.parent) if path.parent != folder]
    # A pipe of that name is no source, and reading it might never end.
    return [
        path
        for path in (*below, *(path for path in beside if _is_same_package(folder, path)))
        if path.is_file()
    ]


def _one_down(folder: Path) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if not is_skipped(str(folder), name))
    except OSError:
        return []
    folders = (folder / name for name in names)
    return [path for below in folders if not below.is_symlink() for path in below.glob("*.py")]


def _is_same_package(folder: Path, path: Path) -> bool:
    """Whether a file beside a folder without ``__init__.py`` imports from that folder.

    Folders that lie beside each other are often strangers, with files of the same names.
    """
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return False
    spelled = (f"..{folder.name}", f"{folder.parent.name}.{folder.name}")
    return any(os.fsencode(name) in data for name in spelled)


def _is_skipped_below(top: Path, path: Path) -> bool:
    folders = [folder for folder in path.parents if folder != top and folder.is_relative_to(top)]
    return any(is_skipped(str(folder.parent), folder.name) for folder in folders)


def _is_installation(folder: Path) -> bool:
    return folder.name == "site-packages" or any(folder.glob("*.dist-info"))
