"""What the other files of a tree use of a file, so that a rewrite takes nothing from them.

What counts as a use is deliberately coarse: a file that names both the module and one of its
names uses that name, wherever the two words stand. An import can be written in too many ways (over
several lines, through an alias, with importlib, in a string) to tell the uses exactly, and the
only cost of one too many is a class that stays.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from normport.codemods.analyze import decode
from normport.codemods.model import Site
from normport.tools.foreign import Reading, imported_from, may_import, readings

_DEFINITION = re.compile(rb"\b(?:class|def)[ \t]+([A-Za-z_]\w*)")
_STAR = re.compile(rb"\bimport[\s\\]*\*")


@dataclass(frozen=True)
class Target:
    """A file whose names others may use.

    path: with all links resolved.
    defined, imported: the names that it defines, and those that it binds by importing.
    attributes: (class, attribute) for each attribute that is to become another object.
    """

    path: Path
    defined: frozenset[str]
    imported: frozenset[str]
    attributes: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, path: Path, source: bytes, attributes: Iterable[tuple[str, str]]) -> Target:
        """For a file that parses."""
        defined: set[str] = set()
        imported: set[str] = set()
        for node in ast.walk(ast.parse(decode(source))):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    defined.add(node.name)
                case ast.Name(ctx=ast.Store()):
                    defined.add(node.id)
                case ast.Import() | ast.ImportFrom():
                    bound = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
                    imported.update(bound)
        return cls(path, frozenset(defined), frozenset(imported), frozenset(attributes))

    @property
    def stem(self) -> str:
        """The last part of the module's name: the folder's for an ``__init__.py``.

        Modules are told by it alone, so that relative and absolute imports, and a tree mounted
        under another package name, are all seen.
        """
        return self.path.parent.name if self._is_package else self.path.stem

    @property
    def _is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def is_named_by(self, path: Path, data: bytes) -> bool:
        """Whether the file at ``path`` can mean this module: a package's own files need no name
        for it, ``from . import`` will do."""
        if self._is_package and path.is_relative_to(self.path.parent):
            return True
        return has_word(data, self.stem)


@dataclass
class Uses:
    """What was found for one target: names, and readings by (class, attribute)."""

    names: set[str] = field(default_factory=set)
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)


def find_uses(targets: Iterable[Target], files: Iterable[Path]) -> Mapping[Path, Uses]:
    """The uses of each target in ``files``, by its path. Every file is read once.

    A file that cannot be read is passed over: it is reported where it is looked at itself.
    """
    targets = list(targets)
    found = {target.path: Uses() for target in targets}
    for path in files:
        try:
            data = path.read_bytes()
        except OSError:
            continue
        for target in targets:
            if path != target.path and target.is_named_by(path, data):
                _look(target, path, data, found[target.path])
    return found


def _look(target: Target, path: Path, data: bytes, uses: Uses) -> None:
    words = {name for name in target.defined | target.imported if has_word(data, name)}
    # Nearly every file has a torch of its own, and models have classes of the same names, so that
    # for those the words alone tell nothing.
    own = target.imported | {name.decode() for name in _DEFINITION.findall(data)}
    uses.names |= words - own
    star = _STAR.search(data) is not None
    if star:
        uses.names |= target.defined
    if star or words & own:
        every = target.imported | target.defined
        uses.names |= imported_from(data, target.stem, words & own, every)
    for owner, attribute in sorted(target.attributes - set(uses.readings)):
        if owner in own and not may_import(data, target.stem):
            continue  # its own class of that name
        if has_word(data, owner) and has_word(data, attribute):
            reading = readings(path, data, target.stem, attribute)
            if reading is not None:
                uses.readings[owner, attribute] = reading


def has_word(data: bytes, word: str) -> bool:
    """Whether ``word`` stands in ``data`` as a whole identifier.

    Python reads some identifiers beyond ASCII as one that are spelled differently, so for those
    the answer is always yes.
    """
    if not word.isascii():
        return True
    spelled = os.fsencode(word)
    return spelled in data and bool(re.search(rb"(?<!\w)" + re.escape(spelled) + rb"(?!\w)", data))


def unless_read(site: Site, uses: Uses, roots: Sequence[Path]) -> Site:
    """The site, refused when another file does more with its attribute than to call it.

    roots: folders that the other file's path may be given relative to, the best first.
    """
    held = ((site.owner or "", site.attribute or ""), *site.also)
    reading = next((uses.readings[pair] for pair in held if pair in uses.readings), None)
    if site.verdict != "convert" or reading is None:
        return site
    root = next((root for root in roots if reading.path.is_relative_to(root)), reading.path.parent)
    other = reading.path.relative_to(root).as_posix()
    why = f"{other}, which names {site.owner}, does not parse, so its uses are not seen"
    if reading.line is not None:
        why = f"`{reading.text}` is used in line {reading.line} of {other}, another file"
    return replace(
        site,
        code="NP214",
        verdict="refuse",
        target=None,
        reason=f"{site.norm}: {why}.",
        edits=(),
        imports={},
        proof=None,
    )
