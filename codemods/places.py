"""The functions and classes of a file, wherever they stand, and which of them take a root."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from weakref import ref

from normport.codemods.hints import LENGTHS, MEANS, RMS_NORM, Hint
from normport.codemods.module_info import ModuleInfo

# Each begins with plain characters, and one after the other they are found faster than as one.
_ROOTS = (
    re.compile(rb"sqrt(?<!math\.sqrt)"),
    re.compile(rb"\*\*\s*\(?\s*-?\s*\(?\s*(?:0*\.5|5e-1|1(?:\.0?)?\s*/\s*2)"),
    re.compile(rb"pow\w*\s*\((?:[^\n]*,)?\s*(?:\w+\s*=\s*)?0?\.5"),
    re.compile(rb"-\s*0?\.5\b"),
    re.compile(rb"rms_?norm\s*\("),
)
_LENGTHS = Hint(LENGTHS)
_AVERAGES = Hint(MEANS)
# With the length of a vector the root is that; the size's may stand in the constructor.
_LENGTH = re.compile(rb"(?:\.norm|vector_norm|normalize)\s*\(")
_MEAN = Hint(
    {
        **MEANS,
        "rms": RMS_NORM,
        "mean": r"mean(?:(?<=\bmean)|(?<=nanmean))\b",
        "sum": r"sum(?:(?<=\bsum)|(?<=nansum)|(?<=einsum))\b",
        "square": "",
        "rsqrt": "",
        "**": r"\*\*\s*2",
    }
)
# The most frequent statements of those that hold no others.
_PLAIN = (ast.Assign, ast.Expr, ast.Return, ast.AnnAssign, ast.Assert, ast.Import, ast.ImportFrom)
_WORD = re.compile(r"\w+")

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Place:
    """A function or class.

    around: the place in whose body it stands, None for the file. Held weakly: a circle of places
        would keep the file's whole tree in memory, and a scan collects no circles.
    conditional: it stands below an ``if``, ``try``, ``with`` or loop.
    direct: a line of its own, outside of what is nested in it, may take a root.
    """

    node: Node
    around: ref[Place] | None
    conditional: bool
    direct: bool = False
    inner: list[Place] = field(default_factory=list)

    @property
    def outer(self) -> Place | None:
        """The place in whose body it stands, None for the file."""
        return None if self.around is None else self.around()

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def owner(self) -> Place | None:
        """The class whose method it is."""
        outer = self.outer
        return outer if outer is not None and outer.is_class else None

    @property
    def name(self) -> str:
        """``Class.method`` for a method, else the bare name."""
        return f"{self.owner.name}.{self.node.name}" if self.owner else self.node.name

    @property
    def bound(self) -> bool:
        """Whether its first parameter is the object or the class."""
        names = {last(d) for d in self.node.decorator_list}
        return self.owner is not None and "staticmethod" not in names

    def outward(self) -> Iterator[Place]:
        """The place itself, then what it stands in."""
        current: Place | None = self
        while current is not None:
            yield current
            current = current.outer


class Places:
    """All places of ``module`` in order, and what they name of each other."""

    def __init__(self, module: ModuleInfo) -> None:
        self.module = module
        self.all: list[Place] = []
        self.loose = False
        self._texts: dict[Place, str] = {}
        self._words: dict[Place, set[str]] = {}
        self.lengths = _LENGTHS.found_in(module.text)
        if _MEAN.found_in(module.text):
            self._hinted = _hinted(module, (*_ROOTS, _LENGTH) if self.lengths else _ROOTS)
            self._collect(module.tree.body, None, False)
            self._mark()

    def _collect(self, body: list[ast.stmt], outer: Place | None, conditional: bool) -> None:
        for statement in body:
            if isinstance(statement, Node):
                place = Place(statement, None if outer is None else ref(outer), conditional)
                self.all.append(place)
                if outer is not None:
                    outer.inner.append(place)
                self._collect(statement.body, place, False)
                continue
            if isinstance(statement, _PLAIN):
                continue
            for name in ("body", "orelse", "finalbody"):
                self._collect(getattr(statement, name, []), outer, True)
            for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
                self._collect(part.body, outer, True)

    def _mark(self) -> None:
        """Give every hinted line to the innermost function that it stands in."""
        owner: dict[int, Place] = {}
        for place in self.all:  # outer before inner, so that the inner one stays
            end = place.node.end_lineno or 0
            for line in self._hinted:
                if place.node.lineno <= line <= end:
                    owner[line] = place
        for place in owner.values():
            text = self.module.respelled(self.text(place))
            place.direct = _MEAN.found_in(text) or self._names_one(place, self._means)
        self.loose = any(line not in owner for line in self._hinted)

    @cached_property
    def functions(self) -> list[Place]:
        return [place for place in self.all if not place.is_class]

    @cached_property
    def classes(self) -> list[Place]:
        return [place for place in self.all if place.is_class]

    @cached_property
    def by_name(self) -> dict[str, list[Place]]:
        """Functions and methods by their own name."""
        found: dict[str, list[Place]] = {}
        for place in self.functions:
            found.setdefault(place.node.name, []).append(place)
        return found

    def text(self, place: Place) -> str:
        """The source of ``place``, decorators left out."""
        if place not in self._texts:
            self._texts[place] = self.module.segment(place.node)
        return self._texts[place]

    def words(self, place: Place) -> set[str]:
        """Every word in the source of ``place``: more than it names, but never less."""
        if place not in self._words:
            self._words[place] = set(_WORD.findall(self.text(place)))
        return self._words[place]

    @cached_property
    def rooted(self) -> frozenset[str]:
        """Names of the functions and methods that take a root, or call one that does."""
        names = {place.node.name for place in self.functions if place.direct}
        pending = [place for place in self.functions if not place.direct]
        grown = bool(names)
        while grown:
            more = [place for place in pending if self._names_one(place, names)]
            pending = [place for place in pending if place not in more]
            names |= {place.node.name for place in more}
            grown = bool(more)
        return frozenset(names)

    @cached_property
    def _means(self) -> frozenset[str]:
        """Names of the functions and methods that take a mean and no root."""
        text = self.module.respelled
        rooted = set(self._hinted)
        return frozenset(
            place.node.name
            for place in self.functions
            if _AVERAGES.found_in(text(self.text(place)))
            and rooted.isdisjoint(range(place.node.lineno, (place.node.end_lineno or 0) + 1))
        )

    @cached_property
    def followed(self) -> frozenset[str]:
        """Names of the functions that are read where they are called: those that take a root, and
        those whose mean may be what a root is taken of."""
        if not self.rooted:
            return self.rooted
        named = set().union(*(self.words(place) for place in self.functions if place.direct))
        return self.rooted | (self._means & named)

    def _names_one(self, place: Place, names: Collection[str]) -> bool:
        text = self.text(place)
        return any(name in text for name in names) and not self.words(place).isdisjoint(names)

    def reached(self, place: Place) -> set[str]:
        """Names of the file's functions that ``place`` names, directly or through others."""
        found: set[str] = set()
        queue = [place]
        while queue:
            for name in self.words(queue.pop()) & set(self.by_name) - found:
                found.add(name)
                queue += self.by_name[name]
        return found


def _hinted(module: ModuleInfo, roots: Sequence[re.Pattern[bytes]]) -> list[int]:
    """The lines that may take a root."""
    text = module.respelled(module.text)
    source = text.encode()
    lines = module.lines if text is module.text else source.splitlines(keepends=True)
    starts = [0, *accumulate(len(line) for line in lines)]
    found = {
        bisect_right(starts, match.start()) for root in roots for match in root.finditer(source)
    }
    return sorted(found)


def last(node: ast.expr) -> str:
    """The last part of a dotted name, of the function where it is called."""
    if isinstance(node, ast.Call):
        return last(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
