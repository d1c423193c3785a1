"""Finds what constructs given imported classes, without looking at the whole syntax tree.

Most files that a scan parses hold a standard layer and no norm of their own, so this has to cost
next to nothing beside parsing them. It does because a name in code stands in the text too: only
nodes are looked at that span a line with the name.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import SCOPES, bound_names, children, imported_names


def constructions(module: ModuleInfo, wanted: Mapping[str, str]) -> list[tuple[ast.Call, str]]:
    """The calls of the classes that ``wanted`` has by full dotted name, and what it has for each.

    A class counts under a name that an import gives it, if all imports of that name in the file
    say the same and nothing else binds it.
    """
    words = {full.rpartition(".")[2] for full in wanted}
    found = _Named(module, words)
    locals_ = {name for name, fulls in found.imported.items() if fulls & wanted.keys()}
    if not locals_ <= words:
        found = _Named(module, words | locals_)
    result = []
    for call, name in found.calls:
        fulls = found.imported.get(name, set())
        if len(fulls) == 1 and name not in found.bound:
            full = next(iter(fulls))
            if full in wanted:
                result.append((call, wanted[full]))
    return result


class _Named:
    """What the code of a file does with certain names.

    imported: each of the names with every full name that it is imported from.
    bound: those that something else binds, in whatever scope but that of a class.
    calls: the calls of them.
    """

    def __init__(self, module: ModuleInfo, names: Collection[str]) -> None:
        self.imported: dict[str, set[str]] = {}
        self.bound: set[str] = set()
        self.calls: list[tuple[ast.Call, str]] = []
        for node, in_class in _nodes_on(module.tree, _lines_with(module.text, names)):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in names:
                    self.calls.append((node, node.func.id))
                continue
            for local, full in imported_names(node):
                self.imported.setdefault(local, set()).add(full)
            if not in_class:
                self.bound.update(bound_names(node))


def _lines_with(text: str, names: Collection[str]) -> list[int]:
    """The lines, from 1, where a name may stand, in order.

    Python reads some characters beyond ASCII as others, so a line with one may hold any name.
    """
    places = [place for name in names for place in _places(text, name)]
    if not text.isascii():
        places += [match.start() for match in _BEYOND_ASCII.finditer(text)]
    lines: list[int] = []
    line, position = 1, 0
    for place in sorted(places):
        line += text.count("\n", position, place)
        if "\r" in text:
            line += len(_RETURN.findall(text, position, place))
        position = place
        if not lines or lines[-1] != line:
            lines.append(line)
    return lines


def _places(text: str, name: str) -> Iterator[int]:
    place = text.find(name)
    while place >= 0:
        yield place
        place = text.find(name, place + 1)


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_RETURN = re.compile(r"\r(?!\n)")


def _nodes_on(tree: ast.Module, lines: list[int]) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes below ``tree`` that span one of ``lines``, and more, each with whether it stands
    in the body of a class."""
    stack: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while stack:
        node, within, everything = stack.pop()
        if isinstance(node, SCOPES):
            within = isinstance(node, ast.ClassDef)
        # What an f-string holds has no reliable position before Python 3.12.
        everything = everything or isinstance(node, ast.JoinedStr)
        for child in children(node):
            if everything or _spans(child, lines):
                yield child, within
                stack.append((child, within, everything))


def _spans(node: ast.AST, lines: list[int]) -> bool:
    first = getattr(node, "lineno", None)
    if first is None:  # some nodes have no position, their children have
        return True
    for decorator in getattr(node, "decorator_list", ()):
        first = min(first, decorator.lineno)
    index = bisect_left(lines, first)
    return index < len(lines) and lines[index] <= (getattr(node, "end_lineno", None) or first)
