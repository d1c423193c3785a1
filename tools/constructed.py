"""Where other files construct a norm class whose one finding stands at its definition.

A class that its own file does not construct counts as one site there, however many there are.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from normport.codemods.analyze import decode
from normport.codemods.model import Site
from normport.tools.crossfile import Definition, Importer, NotFollowedError, shown

_CLASS = re.compile(rb"[ \t]*class[\s\\]+(\w+)")
_NONE = "No other file is seen to construct it"
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
    site: Site, definition: Definition, users: Callable[[], list[Importer]], roots: Sequence[Path]
) -> Site:
    """The finding at the definition, with what constructs the class elsewhere."""
    try:
        found = users()
    except NotFollowedError as problem:
        told = f"How often other files construct it is not counted ({problem})"
    else:
        places = [
            f"{shown(user.path, roots)}:{','.join(map(str, lines))}"
            for user in found
            if (lines := _lines(user))
        ]
        more = f" and {len(places) - _MOST} other files" if len(places) > _MOST else ""
        told = f"Constructed in {', '.join(places[:_MOST])}{more}" if places else _NONE
    return replace(site, reason=f"{site.reason} {told}; it counts as one site here.")


def _is_definition(lines: Sequence[bytes], site: Site) -> bool:
    if site.line > len(lines):
        return False
    match = _CLASS.match(lines[site.line - 1])
    return match is not None and match[1] == site.norm.encode()


def _lines(user: Importer) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(decode(user.source))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == user.local]
    return sorted({call.lineno for call in named})
