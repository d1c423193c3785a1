"""What the other files of a tree use of a file, so that a rewrite takes nothing from them.

What counts as a use is deliberately coarse: a file that names both the module and one of its
names uses that name, wherever the two words stand. An import can be written in too many ways (over
several lines, through an alias, with importlib, in a string) to tell the uses exactly, and the
only cost of one too many is a class that stays.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from normport.codemods import hints
from normport.codemods.analyze import decode
from normport.codemods.model import Site
from normport.codemods.nodes import index, walk
from normport.tools.foreign import OtherFile, Reading
from normport.tools.parallel import Workers

_DEFINITION = re.compile(rb"\b(?:class|def)[ \t]+([A-Za-z_]\w*)")
_STAR = re.compile(rb"\bimport[\s\\]*\*")


@dataclass(frozen=True)
class Target:
    """A file whose names others may use.

    path: with all links resolved.
    defined, imported: the names that it defines, and those that it binds by importing.
    attributes: (class, attribute) for each attribute that is to become another object.
    holders: (class, other) for each other definition that leads to a class of these.
    """

    path: Path
    defined: frozenset[str]
    imported: frozenset[str]
    attributes: frozenset[tuple[str, str]]
    holders: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, path: Path, source: bytes, attributes: Iterable[tuple[str, str]]) -> Target:
        """For a file that parses."""
        defined: set[str] = set()
        imported: set[str] = set()
        parents, _ = index(ast.parse(decode(source)))
        for node in parents:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    defined.add(node.name)
                case ast.Name(ctx=ast.Store()):
                    defined.add(node.id)
                case ast.Import() | ast.ImportFrom():
                    bound = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
                    imported.update(bound)
        pairs = frozenset(attributes)
        holders = _holders(parents, {owner for owner, _ in pairs})
        return cls(path, frozenset(defined), frozenset(imported), pairs, holders)

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


def _holders(nodes: Iterable[ast.AST], owners: Collection[str]) -> frozenset[tuple[str, str]]:
    """For each class of ``owners`` the classes and functions that name it, or one that does."""
    naming: dict[str, set[str]] = {}
    for node in nodes if owners else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            named = {part.id for part in walk(node) if isinstance(part, ast.Name)}
            for name in named - {node.name}:
                naming.setdefault(name, set()).add(node.name)
    found: set[tuple[str, str]] = set()
    for owner in owners:
        queue = [owner]
        while queue:
            for name in naming.get(queue.pop(), ()):
                if (owner, name) not in found:
                    found.add((owner, name))
                    queue.append(name)
    return frozenset(found)


@dataclass
class Uses:
    """What was found for one target: names, and readings by (class, attribute)."""

    names: set[str] = field(default_factory=set)
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)

    def add(self, other: Uses) -> None:
        """Take in those of another file; of two readings of one attribute the first stays."""
        self.names |= other.names
        self.readings = {**other.readings, **self.readings}


def find_uses(
    targets: Sequence[Target], files: Sequence[Path], workers: Workers
) -> Mapping[Path, Uses]:
    """The uses of each target in ``files``, by its path. Every file is read once.

    A file that cannot be read is passed over: it is reported where it is looked at itself.
    """
    found = {target.path: Uses() for target in targets}
    for uses in workers.map(partial(_look, targets=targets), files):
        for path, more in uses.items():
            found[path].add(more)
    return found


def _look(path: Path, targets: Sequence[Target]) -> Mapping[Path, Uses]:
    """What one file uses of the targets, by their path."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    named = [t for t in targets if path != t.path and t.is_named_by(path, data)]
    if not named:
        return {}
    file = OtherFile(path, data)
    # Nearly every file has a torch of its own, and models have classes of the same names, so that
    # for those the words alone tell nothing.
    defined = {name.decode() for name in _DEFINITION.findall(data)}
    star = _STAR.search(data) is not None
    return {target.path: _uses(target, file, defined, star) for target in named}


def _uses(target: Target, file: OtherFile, defined: Collection[str], star: bool) -> Uses:
    uses = Uses()
    words = {name for name in target.defined | target.imported if has_word(file.data, name)}
    own = target.imported.union(defined)
    uses.names |= words - own
    if star:
        uses.names |= target.defined
    if star or words & own:
        every = target.imported | target.defined
        uses.names |= file.imported_from(target.stem, words & own, every)
    for owner, attribute in sorted(target.attributes):
        if owner in own and not file.may_import(target.stem):
            continue  # its own class of that name
        if not has_word(file.data, attribute):
            continue
        # What a file takes may lead to the class without a word of it.
        direct = has_word(file.data, owner)
        if direct or (
            any(has_word(file.data, other) for holder, other in target.holders if holder == owner)
            and file.may_import(target.stem)
        ):
            reading = file.reading(target.stem, attribute, direct)
            if reading is not None:
                uses.readings[owner, attribute] = reading
    return uses


def has_word(data: bytes, word: str) -> bool:
    """Whether ``word`` stands in ``data`` as a whole identifier.

    Python reads some identifiers beyond ASCII as one that are spelled differently, so for those
    the answer is always yes.
    """
    return not word.isascii() or hints.has_word(data, word.encode())


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
    why = f"{other}, which names {site.owner}, does not parse, so its uses are not seen; correct it"
    if reading.line is not None:
        what = f"`{reading.text}` is used in line {reading.line} of {other}, another file"
        why = f"{what}; do without it there, or leave the class"
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
