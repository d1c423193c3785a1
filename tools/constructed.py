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


def with_places(
    site: Site, definition: Definition, around: Mapping[Path, bytes], roots: Sequence[Path]
) -> Site:
    """The finding at the definition, with the calls of the class in other files.

    around: what the files hold that may import it. roots: see ``crossfile.importers``.
    """
    places = [
        f"{shown(path, roots)}:{','.join(map(str, lines))}"
        for path, data in around.items()
        if path != definition.path and (lines := _lines(definition, path, data))
    ]
    left = len(places) - _MOST
    more = (" and one other file" if left == 1 else f" and {left} other files") if left > 0 else ""
    told = f"Constructed in {', '.join(places[:_MOST])}{more}" if places else _NONE
    return replace(site, reason=f"{site.reason} {told}; {AS_ONE}")


def _is_definition(lines: Sequence[bytes], site: Site) -> bool:
    if site.line > len(lines):
        return False
    match = _CLASS.match(lines[site.line - 1])
    return match is not None and match[1] == site.norm.encode()


def _lines(definition: Definition, path: Path, data: bytes) -> list[int]:
    """Where a file calls the class by the name that it imports it under, or through the module."""
    if not (has_word(data, definition.name) and has_word(data, definition.stem)):
        return []
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
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return sorted({call.lineno for call in calls if spelled(call.func) in wanted})
