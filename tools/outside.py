"""Which names of a file other files of its tree use, so that a rewrite does not remove them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_IMPORT = re.compile(
    rb"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)", re.MULTILINE
)
_COMMENT = re.compile(rb"#[^\n]*")
_NAME = re.compile(rb"[A-Za-z_*]\w*")


class OutsideUses:
    """Looks names up by module over the sources of one tree, reading every file once.

    Modules are told by their last part alone, so that relative and absolute imports, and a tree
    mounted under another package name, are all seen. That can only keep a name too many.
    """

    def __init__(self, files: Iterable[Path], stems: Iterable[str]) -> None:
        self._found: dict[str, set[tuple[Path, str]]] = {stem: set() for stem in stems}
        words = {stem: stem.encode() for stem in self._found}
        for path in files:
            try:
                data = path.read_bytes()
            except OSError:
                continue  # reported where the file itself is looked at
            present = {stem for stem, word in words.items() if word in data}
            if present:
                self._read(path, data, present)

    def _read(self, path: Path, data: bytes, present: set[str]) -> None:
        for match in _IMPORT.finditer(data):
            stem = match[1].rpartition(b".")[2].decode()
            if stem in present:
                names = _NAME.findall(_COMMENT.sub(b"", match[2]))
                self._found[stem].update((path, name.decode()) for name in names)
        for stem in present:
            attribute = re.compile(rb"\b" + re.escape(stem.encode()) + rb"\.([A-Za-z_]\w*)")
            found = attribute.findall(data)
            self._found[stem].update((path, name.decode()) for name in found)

    def names(self, file: Path) -> frozenset[str]:
        """Names of ``file`` that another file imports or reads as an attribute; ``*`` for all."""
        return frozenset(name for path, name in self._found[module_stem(file)] if path != file)


def module_stem(file: Path) -> str:
    """The last part of the file's module name: the folder's for an ``__init__.py``."""
    return file.parent.name if file.name == "__init__.py" else file.stem
