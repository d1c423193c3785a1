"""Carries out a plan on one file: expressions replaced, imports adjusted, dead code removed.

LibCST reads the file; the new file is the old one with splices at LibCST's positions, so
every byte outside the edited statements, the imports and the removed definitions stays.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from normport.codemods.bindings import missing_imports, statement_to_join
from normport.codemods.depth import with_deep_stack
from normport.codemods.imports import change_names, new_statements
from normport.codemods.layout import Passage, lay_out
from normport.codemods.leftovers import find_leftovers, removable_aliases
from normport.codemods.model import EditResult, FilePlan, RefusedEdit
from normport.codemods.parsed import Parsed, Span, TopLevel, bound_name
from normport.codemods.removal import holes, removed_lines
from normport.codemods.sites import EditSite, Kind, check_names, locate, names_in
from normport.codemods.text import decode


@dataclass(frozen=True)
class _Draft:
    """New text for whole lines. flat: before layout. plain: as it is where ruff has no say."""

    lines: Span
    kind: Kind
    flat: str
    plain: str


def apply_plan(
    source: bytes, plan: FilePlan, line_length: int = 88, keep: frozenset[str] = frozenset()
) -> EditResult:
    """The file after ``plan``, or RefusedEdit, whose sentence says what would be lost.

    line_length: the width that edited statements are laid out to.
    keep: names of this module that other files import from it; they are never removed.

    Definitions in ``plan.dead`` that something still names stay, and are missing from
    ``removed``. Private helper functions and imports that only removed code used go too, but
    for imports under a condition (``if TYPE_CHECKING:``) or in a ``try``, imports of modules
    whose import may have an effect, and names that a string mentions. Nothing goes from a file
    that looks names up while it runs (``eval``, ``globals`` ...).
    """
    if not (plan.edits or plan.imports or plan.dead):
        return EditResult(source)

    def apply() -> EditResult:
        with warnings.catch_warnings():
            # Python warns about escapes and the like in code that was there before.
            warnings.simplefilter("ignore")
            return _apply(source, plan, line_length, keep)

    try:
        return with_deep_stack(apply)
    except RecursionError as error:
        raise RefusedEdit(
            "an expression or a chain of branches in the file nests too deep to be edited; "
            "split it."
        ) from error


def _apply(source: bytes, plan: FilePlan, line_length: int, keep: frozenset[str]) -> EditResult:
    parsed = Parsed(decode(source))
    sites = locate(parsed, plan.edits)
    imported = frozenset(
        name for module, names in plan.imports.items() for name in names or [module.split(".")[0]]
    )
    for site in sites:
        check_names(parsed, site, imported)
    new_names = frozenset(name for site in sites for name in names_in(site.edit.new))
    left = find_leftovers(
        parsed, plan.dead, [site.span for site in sites], new_names, imported, keep
    )
    gone = [line for top in left.definitions for line in removed_lines(parsed, top)]
    removed = [(top.first, top.definition.name.value) for top in left.definitions if top.definition]
    lost = [
        comment
        for top in left.definitions
        for comment in parsed.comments(_lines_span(parsed, removed_lines(parsed, top)))
    ]
    first = min((site.span.start for site in sites), default=len(parsed.source.text))
    missing = missing_imports(parsed, plan.imports, frozenset(name for _, name in removed), first)

    staying = [top for top in parsed.top if top not in left.definitions]
    drafts: list[_Draft] = []
    joined = {
        module: top
        for module, names in missing.items()
        if names
        and (top := statement_to_join(parsed, module, staying)) is not None
        and top.span.start < first
        and not parsed.source.lines[top.first].startswith("\f")
    }
    unused = removable_aliases(parsed, left.imports, plan.dropped)
    for index, top in enumerate(parsed.top):
        add = [name for module, host in joined.items() if host is top for name in missing[module]]
        # LibCST does not count a form feed in an indent: its columns are short there.
        astray = parsed.source.lines[top.first].startswith("\f")
        drop = [] if astray or _is_guarded(parsed, top) else unused.get(index, [])
        if not add and not drop:
            continue
        if not add and _is_whole(top, drop):
            if not _has_comment(parsed, top):
                gone += range(top.first, top.last + 1)
                staying.remove(top)
                removed += [(top.first, bound_name(alias)) for alias in drop]
            continue
        flat, dropped = change_names(parsed, top, drop, add)
        removed += [(top.first, bound_name(alias)) for alias in dropped]
        if dropped or add:
            drafts.append(_import_draft(parsed, top, flat, line_length))
    for name in plan.dropped:
        if name not in {gone_name for _, gone_name in removed}:
            raise RefusedEdit(
                f"the import of {name!r}, which goes from its own file, cannot be taken out "
                "without a loss; take it out by hand first."
            )
    drafts += _edit_drafts(parsed, sites, set(gone), line_length)
    alone = {module: names for module, names in missing.items() if module not in joined}

    splices = _laid_out(parsed, drafts, line_length)
    splices += new_statements(parsed, alone, staying, line_length, first)
    splices += holes(parsed, set(gone))
    result = parsed.source.encode(_splice(parsed.source.text, splices))
    _check_compiles(result)
    return EditResult(result, tuple(name for _, name in sorted(removed)), tuple(lost))


def _lines_span(parsed: Parsed, lines: range) -> Span:
    return Span(parsed.source.starts[lines.start], parsed.source.starts[lines.stop])


def _is_whole(top: TopLevel, drop: Sequence[object]) -> bool:
    names = top.imports.names if top.imports else ()
    return isinstance(names, Sequence) and len(names) == len(drop)


def _is_guarded(parsed: Parsed, top: TopLevel) -> bool:
    """True for an import that is marked as meant to be there unused."""
    text = "".join(parsed.source.lines[top.first : top.last + 1])
    return re.search(r"#\s*noqa(?!:)|#\s*noqa:.*\bF401\b", text) is not None


def _has_comment(parsed: Parsed, top: TopLevel) -> bool:
    """A comment in or directly above an import is about it; the import stays for its sake."""
    text = "".join(parsed.source.lines[top.first : top.last + 1])
    return "#" in text or (top.first > 0 and parsed.source.is_comment(top.first - 1))


def _import_draft(parsed: Parsed, top: TopLevel, flat: str, limit: int) -> _Draft:
    source = parsed.source
    end = source.starts[top.last] + len(source.lines[top.last].rstrip("\r\n"))
    tail = source.text[top.span.end : end]
    plain = flat
    if len(flat) > limit and "(" not in flat and "\n" not in flat and flat.startswith("from "):
        head, names = flat.split(" import ", 1)
        unit = parsed.module.default_indent
        body = "".join(f"{unit}{name.strip()},{source.newline}" for name in names.split(","))
        plain = f"{head} import ({source.newline}{body})"
    return _Draft(Span(top.span.start, end), "statement", flat + tail, plain + tail)


def _edit_drafts(
    parsed: Parsed, sites: Sequence[EditSite], gone: set[int], limit: int
) -> list[_Draft]:
    """One draft for each group of edits that share lines; those in removed lines are moot."""
    groups: list[list[EditSite]] = []
    for site in sites:
        if parsed.source.line_at(site.span.start) in gone:
            continue
        if groups and site.lines.start < max(other.lines.end for other in groups[-1]):
            groups[-1].append(site)
        else:
            groups.append([site])
    return [_edit_draft(parsed, group, limit) for group in groups]


def _edit_draft(parsed: Parsed, group: Sequence[EditSite], limit: int) -> _Draft:
    text, newline = parsed.source.text, parsed.source.newline
    start = min(site.lines.start for site in group)
    end = max(site.lines.end for site in group)
    same = all(site.lines == group[0].lines for site in group)
    position = start
    flat = plain = ""
    for site in group:
        between = text[position : site.span.start]
        before = re.split(r"\r\n?|\n", plain + between)[-1]
        after = re.split(r"\r\n?|\n", text[site.span.end : end])[0]
        unit = parsed.module.default_indent
        new = site.edit.new if site.one_line else site.new.laid_out(before, after, unit, limit)
        plain += between + new.replace("\n", newline)
        commented = site.new.exploded and any(a.above or a.beside for a in site.new.arguments)
        flat += between + (new if site.one_line or commented else site.new.flat)
        position = site.span.end
    rest = text[position:end]
    return _Draft(Span(start, end), group[0].kind if same else "part", flat + rest, plain + rest)


def _laid_out(parsed: Parsed, drafts: Sequence[_Draft], line_length: int) -> list[tuple[Span, str]]:
    text, newline = parsed.source.text, parsed.source.newline
    passages = []
    for draft in drafts:
        before = text[draft.lines.start : draft.lines.end]
        ends = set(re.findall(r"\r\n|\r|\n", before))
        # ruff would give every line the same end.
        kind: Kind = draft.kind if ends <= {newline} else "part"
        passages.append(Passage(_unix(before), _unix(draft.flat), kind))
    found = lay_out(passages, parsed.module.default_indent, line_length)
    return [
        (draft.lines, draft.plain if new is None else new.replace("\n", newline))
        for draft, new in zip(drafts, found, strict=True)
    ]


def _unix(text: str) -> str:
    return re.sub(r"\r\n?", "\n", text)


def _splice(text: str, splices: Sequence[tuple[Span, str]]) -> str:
    pieces: list[str] = []
    position = 0
    for span, new in sorted(splices, key=lambda item: (item[0].start, item[0].end)):
        assert position <= span.start, "two splices overlap"
        pieces += [text[position : span.start], new]
        position = span.end
    return "".join([*pieces, text[position:]])


def _check_compiles(source: bytes) -> None:
    try:
        compile(source, "<edited file>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise RefusedEdit(
            f"the edited file would not compile (line {error.lineno}: {error.msg})."
        ) from error
