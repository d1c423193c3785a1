"""Which Python files an argument stands for, and what their paths are relative to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from normport.tools.findings import FileError

MARKERS = (Path("vllm/model_executor/layers/layernorm.py"), Path("vllm/__init__.py"))
"""The files by which a vLLM tree is told: the standard norm layers, and the package itself."""

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


@dataclass(frozen=True)
class PythonFile:
    """One file to look at.

    root: what its reported path is relative to. In a vLLM tree that is the folder that holds
        ``vllm/``; otherwise the argument itself, or the folder of an argument that is a file.
    tree: the vLLM tree it lies in, if any.
    named: the user gave this very file, so it is parsed even if it cannot hold a norm.
    source: the content where it is not the one on the disk.
    """

    path: Path
    root: Path
    tree: Path | None
    named: bool
    source: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def relative(self) -> str:
        """The path that reports give, with ``/``."""
        return self.path.relative_to(self.root).as_posix()

    def read(self) -> bytes:
        """The content; OSError when it cannot be read."""
        return self.path.read_bytes() if self.source is None else self.source


def enclosing_tree(path: Path) -> Path | None:
    """The folder that holds ``vllm/`` for a path in, or at the top of, a vLLM tree."""
    for folder in (path, *path.parents):
        if _is_tree(folder):
            return folder
    return None


def argument_root(argument: Path) -> Path:
    """What the paths of an argument's files are relative to; see ``PythonFile.root``."""
    path = Path(os.path.abspath(argument))  # keeps links, unlike resolve()
    return enclosing_tree(path) or (path.parent if path.is_file() else path)


def shown_path(path: Path, root: Path) -> str:
    """The path as it is best shown, and as ``git apply`` in the current folder understands it.

    Relative to the current folder when the file lies below it, unless the file's root is a vLLM
    tree or a git work tree of its own further down; then, and elsewhere, relative to the root.
    """
    here = Path.cwd()
    own_top = root != here and root.is_relative_to(here) and _is_top(root)
    if path.is_relative_to(here) and not own_top:
        return path.relative_to(here).as_posix()
    return path.relative_to(root).as_posix()


def _is_top(folder: Path) -> bool:
    return (folder / ".git").exists() or _is_tree(folder)


def _is_tree(folder: Path) -> bool:
    return all((folder / marker).is_file() for marker in MARKERS)


def discover(arguments: Sequence[Path]) -> tuple[list[PythonFile], list[FileError]]:
    """All Python files below ``arguments``, each once, and one error per unusable argument."""
    files: dict[Path, PythonFile] = {}
    errors: list[FileError] = []
    for argument in arguments:
        path = Path(os.path.abspath(argument))
        tree, root = enclosing_tree(path), argument_root(argument)
        if path.is_file():
            files[path] = PythonFile(path, root, tree, named=True)
        elif path.is_dir():
            below = [PythonFile(found, root, tree, named=False) for found in _walk(path, errors)]
            if not below:
                message = f"{argument} holds no Python file; name a folder with Python sources."
                errors.append(FileError(os.fspath(argument), message))
            for file in below:
                files.setdefault(file.path, file)
        elif path.exists():
            message = f"{argument} is neither a plain file nor a folder; name Python sources."
            errors.append(FileError(os.fspath(argument), message))
        elif path.is_symlink():
            message = f"{argument} is a symbolic link that leads nowhere; check the path."
            errors.append(FileError(os.fspath(argument), message))
        else:
            message = f"{argument} does not exist; check the path."
            errors.append(FileError(os.fspath(argument), message))
    return list(files.values()), errors


def is_skipped(parent: str, name: str) -> bool:
    """Whether the folder ``name`` of ``parent`` holds nothing of the project around it."""
    if name.startswith(".") or name in SKIPPED:
        return True
    return os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))


def _walk(top: Path, errors: list[FileError]) -> Iterator[Path]:
    """The files of a folder by name, then those of each folder in it."""
    pending = [os.fspath(top)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            message = f"{error.filename} cannot be read ({error.strerror}); check its permissions."
            errors.append(FileError(str(error.filename), message))
            continue
        # A link's target is looked at where it lies; through the link it would be seen twice.
        # A pipe or a device of that name is no source, and reading it might never end.
        for entry in entries:
            if entry.name.endswith(".py") and _is(entry.is_file):
                yield Path(entry.path)
        below = [entry for entry in entries if _is(entry.is_dir)]
        pending += [entry.path for entry in reversed(below) if not is_skipped(folder, entry.name)]


def _is(kind: Callable[..., bool]) -> bool:
    """Whether an entry itself is of a kind; not where that cannot be found out."""
    try:
        return kind(follow_symlinks=False)
    except OSError:
        return False
