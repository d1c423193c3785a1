"""Where other files construct a norm class whose one finding stands at its definition.

A class that its own file does not construct counts as one site there, however many there are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from normport.codemods.model import Site
from normport.codemods.nodes import spelled, walk
from normport.tools.crossfile import Definition, is_from, parse, shown
from normport.tools.findings import AS_ONE
from normport.tools.outside import has_word

_CLASS = re.compile(rb"[ \t]*class[\s\\]+(\w+)")
_NONE = "No other file is seen to construct it by that name"
_MOST = 4
"""How many files are named."""


def defined_only(data: bytes, sites: Sequence[Site]) -> list[str]:
    """The classes of a file that are refused where they are defined, and nowhere else in it."""
    lines = data.splitlines()
    return [
        site.norm
        for site in sites
        if site.verdict == "refuse" and not site.apart and _is_definition(lines, site)
    ]


def with_places(site: Site, places: Mapping[Path, Sequence[int]], roots: Sequence[Path]) -> Site:
    """The finding at the definition, with the calls of the class in other files.

    places: the lines of the calls, by file. roots: see ``crossfile.importers``.
    """
    told = [f"{shown(path, roots)}:{','.join(map(str, lines))}" for path, lines in places.items()]
    left = len(told) - _MOST
    more = (" and one other file" if left == 1 else f" and {left} other files") if left > 0 else ""
    where = f"Constructed in {', '.join(told[:_MOST])}{more}" if told else _NONE
    return replace(site, reason=f"{site.reason} {where}; {AS_ONE}")


def may_call(definition: Definition, path: Path, data: bytes) -> bool:
    """Whether another file may call the class: a look at its words."""
    words = (definition.name, definition.stem)
    return path != definition.path and all(has_word(data, word) for word in words)


def _is_definition(lines: Sequence[bytes], site: Site) -> bool:
    if site.line > len(lines):
        return False
    match = _CLASS.match(lines[site.line - 1])
    return match is not None and match[1] == site.norm.encode()


def calls(item: tuple[Definition, Path, bytes]) -> list[int]:
    """The lines where a file calls the class by the name that it imports it under, or through the
    module."""
    definition, path, data = item
    tree = parse(data)
    nodes = list(walk(tree)) if tree is not None else []
    names = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and is_from(node, definition, path)
        for alias in node.names
        if alias.name == definition.name
    }
    modules = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name.rpartition(".")[2] == definition.stem
    }
    wanted = {*names, *(f"{module}.{definition.name}" for module in modules)}
    return sorted(
        {
            node.lineno
            for node in nodes
            if isinstance(node, ast.Call) and spelled(node.func) in wanted
        }
    )
