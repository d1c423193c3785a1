"""Puts the edits of several sites together."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from normport.codemods.effects import has_effect
from normport.codemods.model import Edit, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk
from normport.codemods.renaming import renamed


def merged_edits(sites: Sequence[Site], more: Iterable[Edit] = ()) -> tuple[Edit, ...]:
    """All edits in order; an expression that two sites want to read differently is left.

    An edit inside the expression of another one becomes part of that one. more: further edits.
    """
    by_place: dict[tuple[int, int, str], set[Edit]] = {}
    for edit in (*(edit for site in sites for edit in site.edits), *more):
        by_place.setdefault((edit.line, edit.column, edit.old), set()).add(edit)
    edits = [found.pop() for _, found in sorted(by_place.items()) if len(found) == 1]
    return tuple(_flat(edits))


def _flat(edits: Sequence[Edit]) -> Iterable[Edit]:
    """``edits`` with each one that lies inside another carried out on the other's new text."""
    ordered = sorted(edits, key=lambda edit: (edit.line, edit.column, -len(edit.old)))
    result: list[Edit] = []
    for edit in ordered:
        outer = next((o for o in reversed(result) if _covers(o, edit)), None)
        if outer is None:
            result.append(edit)
        elif outer.new.count(edit.old) == 1:
            new = outer.new.replace(edit.old, edit.new)
            result[result.index(outer)] = replace(outer, new=new)
        else:
            # The editor says which expression it is.
            result.append(edit)
    return result


def _covers(outer: Edit, inner: Edit) -> bool:
    lines = outer.old.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    last = outer.line + len(lines) - 1
    end = len(lines[-1]) + (outer.column if len(lines) == 1 else 1)
    starts_after = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts_after and (inner.line, inner.column) < (last, end)


def annotation_edits(module: ModuleInfo, name: str, layers: Collection[str]) -> list[Edit]:
    """Edits of the annotations that name a class which loses its last construction.

    layers: what its instances become; two of them have no name in common.
    """
    if len(layers) != 1:
        return []
    inside = set(walk(module.classes[name])) if name in module.classes else set()
    nodes = [node for node in module.annotated if node not in inside]
    return renamed(module, nodes, name, next(iter(layers)))


def helpers(module: ModuleInfo, name: str) -> list[str]:
    """Module-level functions and classes that the class reaches, directly or through others.

    What only annotations name is no part of what it does, and what may have an effect of its own
    where it is defined stays.
    """
    found: list[str] = []
    queue: list[ast.AST] = [module.classes[name]]
    while queue:
        for part in walk(queue.pop()):
            if not isinstance(part, ast.Name) or part.id in (name, *found):
                continue
            helper = module.functions.get(part.id) or module.classes.get(part.id)
            if helper is None or part in module.annotated or has_effect(module, helper):
                continue
            found.append(part.id)
            queue.append(helper)
    return found


def with_word(site: Site, word: str | None) -> Site:
    """The site, converted only together with the others that have the word."""
    return site if not word else replace(site, together=(*site.together, word))


def is_replaced(module: ModuleInfo, node: ast.AST, sites: Sequence[Site]) -> bool:
    """Whether an edit of the sites takes the expression away."""
    if not isinstance(node, ast.expr):
        return False
    place = Edit(node.lineno, module.column(node), module.segment(node), "")
    return any(_covers(edit, place) for site in sites for edit in site.edits)


def all_or_none(sites: Sequence[Site]) -> list[Site]:
    """The sites of a file, each refused that goes together with one that is."""
    found = list(sites)
    while True:
        why: dict[str, str] = {}
        for site in found:
            reason = (site.reason or "").removeprefix(f"{site.norm}: ").rstrip(".")
            for word in site.together if site.verdict == "refuse" else ():
                why.setdefault(word, f"its construction in line {site.line} is refused: {reason}")
        changed = False
        for number, site in enumerate(found):
            words = [word for word in site.together if word in why]
            if site.verdict == "convert" and words:
                found[number] = site.refused("NP226", f"{site.norm}: {why[words[0]]}.")
                changed = True
        if not changed:
            return found
