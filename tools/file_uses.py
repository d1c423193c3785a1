"""What other files use of those that hold norms, so that a rewrite takes nothing from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from normport.codemods.model import RefusedEdit, Site
from normport.tools.neighbours import Neighbours, neighbourhood
from normport.tools.outside import Target, find_uses, unless_read
from normport.tools.parallel import Workers
from normport.tools.sharing import (
    unless_called,
)
from normport.tools.source_file import SourceFile, decided

_PRIVATE = re.compile(rb"\b(?:class|def)[\s\\]+(_(?!_)\w*)")


def note_outside_uses(
    sources: Sequence[SourceFile],
    workers: Workers,
    listed: Neighbours,
) -> None:
    """Tell each file with something to convert which of its names other files use; a norm that
    they use is decided again, since not all of its uses are in its own file."""
    around: dict[tuple[Path, bool], list[tuple[SourceFile, Target]]] = {}
    convertible = [source for source in sources if source.convertible]
    for source, target in zip(convertible, workers.map(_target, convertible), strict=True):
        around.setdefault(neighbourhood(target.path), []).append((source, target))
    for (folder, deep), members in around.items():
        neighbours = listed.around(folder, deep, {source.file.root for source, _ in members})
        found = find_uses([target for _, target in members], neighbours, workers)
        for source, target in members:
            uses, before = found[target.path], source.sites
            followed = {*source.options.shared, *source.options.foreign}
            names = frozenset(uses.names - followed)
            source.options = replace(source.options, outside_uses=names)
            if names & {site.norm for site in source.sites}:
                source.sites = decided(source)
            tops = (source.file.root, folder)
            source.sites = tuple(
                unless_called(unless_read(site, uses, tops), target, neighbours, tops)
                for site in source.sites
            )
            if source.sites != before or _may_keep(source, names):
                source.edited.clear()


def _target(source: SourceFile) -> Target:
    return Target.of(source.file.path.resolve(), source.data, _attributes(source.sites))


def _may_keep(source: SourceFile, names: Collection[str]) -> bool:
    """Whether edits that were laid out may come out differently if ``names`` are to be kept."""
    if not all(name.isascii() for name in names):
        return True  # they can be spelled in several ways
    helpers = {name.decode() for name in _PRIVATE.findall(source.data)}
    return any(
        isinstance(edited, RefusedEdit) or not helpers.union(edited.removed).isdisjoint(names)
        for edited in source.edited.values()
    )


def _attributes(sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    for site in sites:
        if site.verdict == "convert" and site.owner and site.attribute:
            yield site.owner, site.attribute
            yield from site.also
