"""Which names of a file the files around it import, for a tool that is given one file at a time."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from normport.codemods.hints import has_word

_SKIPPED = frozenset({"node_modules", "venv", "build", "dist", "__pycache__", "site-packages"})


def imported_elsewhere(path: Path, source: str) -> frozenset[str]:
    """The classes and functions of the file at ``path`` that another file of its package, or of
    its repository, may import; those of a file that is nowhere on the disk are nobody's."""
    if not path.is_file():
        return frozenset()
    path = path.resolve()
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = {node.name for node in ast.parse(source).body if isinstance(node, kinds)}
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    word = re.escape(os.fsencode(stem))
    imports = re.compile(
        rb"(?<!\w)" + word + rb"[\s\\]*import\b|\bimport\b[^=:]*(?<!\w)" + word + rb"(?!\w)"
        rb"|\bfrom[\s\\]*\.+[\s\\]*import\b|\bimport_module\b|\b__import__\b"
    )
    found: set[str] = set()
    for other in _around(path):
        try:
            data = other.read_bytes()
        except OSError:
            continue
        named = path.name == "__init__.py" or has_word(data, os.fsencode(stem))
        if other == path or not named or not imports.search(data):
            continue
        star = re.search(rb"\bimport[\s\\]*\*", data)
        found |= names if star else {n for n in names if has_word(data, n.encode())}
    return frozenset(found)


def _around(path: Path) -> Iterator[Path]:
    """The Python files of the repository, else of the outermost package, else of the folder."""
    top = path.parent
    while (top / "__init__.py").is_file() and top.parent != top:
        top = top.parent
    repository = next((one for one in path.parents if (one / ".git").exists()), None)
    whole = repository is not None or top != path.parent
    for folder, folders, files in os.walk(repository or top):
        folders[:] = [
            one
            for one in sorted(folders)
            if whole and not one.startswith(".") and one not in _SKIPPED
        ]
        yield from (Path(folder) / one for one in sorted(files) if one.endswith((".py", ".pyi")))
