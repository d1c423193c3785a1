"""What a set of edits leaves without a use: dead definitions, their helpers, their imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import libcst as cst

from normport.codemods import ordering
from normport.codemods.effects import is_quiet
from normport.codemods.parsed import Parsed, Span, TopLevel, bound_name


@dataclass(frozen=True)
class Leftovers:
    """definitions: to remove, in source order. imports: local names nothing uses any more."""

    definitions: tuple[TopLevel, ...]
    imports: frozenset[str]


def find_leftovers(
    parsed: Parsed,
    dead: Iterable[str],
    replaced: list[Span],
    new_names: frozenset[str],
    imported: frozenset[str],
    keep: frozenset[str],
) -> Leftovers:
    """What goes once the ``replaced`` expressions have gone.

    A definition goes if it is in ``dead``, or is a private helper that only what goes used and
    that does nothing where it is defined, and nothing that stays names it: no code, no forward
    reference, no word of a string other than a docstring. Nothing goes where the file looks names
    up while it runs. ``new_names`` are named by the new text; those that are ``imported`` mean
    the import. Names in ``keep`` are used by other files.
    """
    if parsed.looks_names_up:
        return Leftovers((), frozenset())
    definitions = _definitions(parsed)
    planned = {name for name in dead if name in definitions} - keep
    helpers = {
        name
        for name, top in definitions.items()
        if name.startswith("_")
        and not name.startswith("__")
        and top.definition is not None
        and not top.definition.decorators
        and not parsed.has_effect(name)
    } - keep
    going = _closed(
        parsed,
        {name: definitions[name] for name in planned | helpers},
        replaced,
        (new_names - imported) | parsed.exported,
    )
    while True:
        needed = _needed_only_by(parsed, going, planned, replaced)
        # What is not needed stays, and so does all that it names.
        going = _closed(parsed, {name: definitions[name] for name in needed}, replaced, frozenset())
        if going == needed:
            break
    removed = tuple(sorted((definitions[name] for name in going), key=lambda top: top.first))
    gone = [*replaced, *(top.span for top in removed)]
    mentioned = {
        name
        for words, span in parsed.mentions
        if not any(outer.covers(span) for outer in gone)
        for name in words
    }
    unused = frozenset(
        name
        for name, uses in parsed.uses.items()
        if name not in new_names | parsed.exported | keep | mentioned
        and all(any(span.covers(use.span) for span in gone) for use in uses)
    )
    return Leftovers(removed, unused)


def _definitions(parsed: Parsed) -> dict[str, TopLevel]:
    """The classes and functions at the top level whose name nothing else binds."""
    found = {top.definition.name.value: top for top in parsed.top if top.definition is not None}
    return {name: top for name, top in found.items() if len(parsed.namespace.bindings(name)) == 1}


def _closed(
    parsed: Parsed,
    candidates: Mapping[str, TopLevel],
    replaced: list[Span],
    named: frozenset[str],
) -> set[str]:
    """The largest set of candidates that nothing outside the set and ``replaced`` names."""
    going = set(candidates) - named
    while True:
        gone = [*replaced, *(candidates[name].span for name in going)]

        def stays(span: Span, gone: list[Span] = gone) -> bool:
            return not any(outer.covers(span) for outer in gone)

        held = {
            name
            for name in going
            if any(stays(use.span) for use in parsed.uses.get(name, ()))
            or any(name in words and stays(span) for words, span in parsed.mentions)
        }
        if not held:
            return going
        going -= held


def _needed_only_by(
    parsed: Parsed, going: set[str], planned: set[str], replaced: list[Span]
) -> set[str]:
    """Of the set, the planned ones and the helpers that these or the replaced text used."""
    definitions = _definitions(parsed)
    result = going & planned
    while True:
        gone = [*replaced, *(definitions[name].span for name in result)]
        more = {
            name
            for name in going - result
            if any(span.covers(use.span) for use in parsed.uses.get(name, ()) for span in gone)
        }
        if not more:
            return result
        result |= more


def removable_aliases(
    parsed: Parsed, unused: frozenset[str], dropped: Iterable[str] = ()
) -> dict[int, list[cst.ImportAlias]]:
    """Which aliases of which top-level import (by its index in ``parsed.top``) may go.

    An import may register or patch something, so only those of quiet modules go, which
    have no effect that the rest of the file lacks; a relative import's module is not known.
    ``__future__`` imports, star imports, ``import x as x`` (a declared re-export), imports
    under a condition or ``try``, and names that something else binds too stay.
    dropped: names that go whatever they are imported from.
    """
    found: dict[int, list[cst.ImportAlias]] = {}
    for index, top in enumerate(parsed.top):
        node = top.imports
        if node is None or isinstance(node.names, cst.ImportStar) or _is_future(node):
            continue
        for alias in node.names:
            name = bound_name(alias)
            redundant = alias.evaluated_alias == alias.evaluated_name
            bindings = parsed.namespace.bindings(name)
            quiet = name in dropped or _is_quiet(node, alias)
            if name in unused and quiet and not redundant and len(bindings) == 1:
                found.setdefault(index, []).append(alias)
    return found


def _is_quiet(node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> bool:
    if isinstance(node, cst.Import):
        return is_quiet(alias.evaluated_name)
    return not node.relative and is_quiet(ordering.module_name(node))


def _is_future(node: cst.Import | cst.ImportFrom) -> bool:
    return (
        isinstance(node, cst.ImportFrom)
        and isinstance(node.module, cst.Name)
        and node.module.value == "__future__"
        and not node.relative
    )
