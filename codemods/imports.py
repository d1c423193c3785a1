"""Adds names to a file's imports and takes unused ones out, in isort's order and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from normport.codemods import ordering
from normport.codemods.bindings import aliases_of
from normport.codemods.parsed import Parsed, Span, TopLevel

Insertion = tuple[Span, str]


def new_statements(
    parsed: Parsed,
    missing: Mapping[str, Sequence[str]],
    staying: Sequence[TopLevel],
    limit: int,
    first: int,
) -> list[Insertion]:
    """New import statements where isort puts them among the ``staying`` statements.

    first: where in the text the names are first needed.
    """
    early = [top for top in staying if top.span.start < first]
    unit = parsed.module.default_indent
    sections: dict[int, list[tuple[str, Sequence[str]]]] = {}
    for module, names in missing.items():
        sections.setdefault(ordering.section_of(module), []).append((module, names))
    result: list[Insertion] = []
    homeless: list[str] = []
    for section, wanted in sorted(sections.items()):
        # isort puts `import x` before `from x import y` within a section.
        wanted.sort(key=lambda item: (bool(item[1]), ordering.module_key(item[0], None)))
        texts = [_statement(module, names, limit, unit) for module, names in wanted]
        block = _block(early, section)
        same = [top for top in block if top.imports and ordering.section(top.imports) == section]
        earlier = [top for top in block if top.imports and ordering.section(top.imports) < section]
        if same:
            result += [
                _into_section(parsed, module, names, same, text)
                for (module, names), text in zip(wanted, texts, strict=True)
            ]
        elif earlier:
            result.append(_after(parsed, earlier[-1], "\n".join(texts), staying, blank=1))
        elif block:
            result.append(_before(parsed, block[0], "\n".join(texts), blank=1))
        else:
            homeless.append("\n".join(texts))
    if homeless:
        result.append(_into_no_block(parsed, staying, "\n\n".join(homeless)))
    return result


def _statement(module: str, names: Sequence[str], limit: int, unit: str) -> str:
    if not names:
        return f"import {module}"
    flat = f"from {module} import {', '.join(names)}"
    if len(flat) <= limit:
        return flat
    return "\n".join([f"from {module} import (", *(f"{unit}{name}," for name in names), ")"])


def _block(staying: Sequence[TopLevel], section: int) -> list[TopLevel]:
    """The first run of imports that has the section, else the first run; may be empty."""
    runs: list[list[TopLevel]] = [[]]
    for top in staying:
        if top.imports is not None:
            runs[-1].append(top)
        elif runs[-1]:
            runs.append([])
    for run in runs:
        if any(top.imports and ordering.section(top.imports) == section for top in run):
            return run
    return runs[0]


def _into_section(
    parsed: Parsed, module: str, names: Sequence[str], same: Sequence[TopLevel], text: str
) -> Insertion:
    plain = [top for top in same if isinstance(top.imports, cst.Import)]
    froms = [top for top in same if isinstance(top.imports, cst.ImportFrom)]
    kin = froms if names else plain
    key = ordering.module_key(module, names[0] if names else None)
    for top in kin:
        if top.imports is not None and ordering.statement_key(top.imports) > key:
            return _before(parsed, top, text, blank=0)
    if kin or names:
        return _after(parsed, (kin or plain)[-1], text, (), blank=0)
    return _before(parsed, froms[0], text, blank=0)


def _into_no_block(parsed: Parsed, staying: Sequence[TopLevel], text: str) -> Insertion:
    """Below the docstring, or above the first statement and the comments that belong to it."""
    source = parsed.source
    if not staying:
        end = source.starts[-1]
        glue = "" if not source.text or source.text.endswith(("\n", "\r")) else "\n"
        return Span(end, end), f"{glue}{text}\n".replace("\n", source.newline)
    if _is_docstring(staying[0]):
        return _after(parsed, staying[0], text, staying, blank=1)
    return _before(parsed, staying[0], text, blank=2 if staying[0].definition else 1)


def _is_docstring(top: TopLevel) -> bool:
    return isinstance(top.single, cst.Expr) and isinstance(
        top.single.value, cst.SimpleString | cst.ConcatenatedString
    )


def _before(parsed: Parsed, top: TopLevel, text: str, blank: int) -> Insertion:
    start = parsed.source.starts[parsed.attached_comment(top)]
    return Span(start, start), (text + "\n" * (1 + blank)).replace("\n", parsed.source.newline)


def _after(
    parsed: Parsed, top: TopLevel, text: str, staying: Sequence[TopLevel], blank: int
) -> Insertion:
    """``blank`` lines and the text below a statement, apart from what ``staying`` has next."""
    source = parsed.source
    end = source.starts[top.last + 1]
    glue = "" if source.lines[top.last].endswith(("\n", "\r")) else "\n"
    following = next((other for other in staying if other.first > top.last), None)
    short = 0
    if following is not None:
        there = parsed.attached_comment(following) - top.last - 1
        short = max(0, (2 if following.definition else 1) - there)
    text = f"{glue}{chr(10) * blank}{text}\n{chr(10) * short}"
    return Span(end, end), text.replace("\n", source.newline)


def change_names(
    parsed: Parsed, top: TopLevel, drop: Sequence[cst.ImportAlias], add: Sequence[str]
) -> tuple[str, list[cst.ImportAlias]]:
    """The statement's text with names dropped and added, and the names that were dropped.

    A name whose comment would be lost is not dropped.
    """
    text = parsed.source.text
    aliases = list(aliases_of(top.imports))
    cuts = {id(alias): _cut(parsed, aliases, alias, drop) for alias in drop}
    dropped = [alias for alias in drop if cuts[id(alias)] is not None]
    left = [alias for alias in aliases if alias not in dropped]
    if not left:
        start, end = parsed.span(aliases[0]).start, parsed.span(aliases[-1]).end
        names = ", ".join(sorted(add, key=ordering.name_key))
        return text[top.span.start : start] + names + text[end : top.span.end], dropped
    splices = [(cut, "") for cut in dict.fromkeys(cuts.values()) if cut is not None]
    splices += [_insertion(parsed, left, name) for name in add]
    pieces, position = [], top.span.start
    for span, new in sorted(splices, key=lambda item: (item[0].start, item[0].end)):
        if span.start < position:
            # Names share lines in a way that the cuts overlap: leave the unused ones.
            return change_names(parsed, top, (), add)
        pieces += [text[position : span.start], new]
        position = span.end
    return "".join([*pieces, text[position : top.span.end]]), dropped


def _own_lines(parsed: Parsed, alias: cst.ImportAlias) -> range | None:
    """The lines of a name that shares them with no other code, else None."""
    span, source = parsed.span(alias), parsed.source
    first, last = source.line_at(span.start), source.line_at(span.end)
    before = source.text[source.starts[first] : span.start]
    after = source.text[span.end : source.starts[last + 1]].lstrip(" \t,")
    alone = not before.strip() and (not after.strip() or after.startswith("#"))
    return range(first, last + 1) if alone else None


def _cut(
    parsed: Parsed,
    aliases: Sequence[cst.ImportAlias],
    alias: cst.ImportAlias,
    drop: Sequence[cst.ImportAlias],
) -> Span | None:
    """What to cut out for one name; None where a comment stands in the way."""
    source = parsed.source
    lines = _own_lines(parsed, alias)
    index = aliases.index(alias)
    kept_after = [other for other in aliases[index + 1 :] if other not in drop]
    kept_before = [other for other in aliases[:index] if other not in drop]
    commented = False
    if lines is not None:
        span = Span(source.starts[lines.start], source.starts[lines.stop])
        commented = source.is_comment(lines.start - 1)
    elif kept_after:
        span = Span(parsed.span(alias).start, parsed.span(aliases[index + 1]).start)
    elif kept_before:
        span = Span(parsed.span(kept_before[-1]).end, parsed.span(aliases[-1]).end)
    else:
        span = Span(parsed.span(aliases[0]).start, parsed.span(aliases[-1]).end)
    return None if commented or "#" in source.text[span.start : span.end] else span


def _insertion(parsed: Parsed, aliases: Sequence[cst.ImportAlias], name: str) -> tuple[Span, str]:
    source = parsed.source
    key = ordering.name_key(name)
    following = next(
        (alias for alias in aliases if ordering.name_key(alias.evaluated_name) > key), None
    )
    neighbour = following or aliases[-1]
    lines = _own_lines(parsed, neighbour)
    span = parsed.span(neighbour)
    if lines is None:
        place = span.start if following else span.end
        return Span(place, place), f"{name}, " if following else f", {name}"
    indent = source.text[source.starts[lines.start] : span.start]
    if following:
        line = lines.start
        while source.is_comment(line - 1):
            line -= 1
        place = source.starts[line]
        return Span(place, place), f"{indent}{name},{source.newline}"
    comma = isinstance(neighbour.comma, cst.Comma)
    rest = source.text[span.end : source.starts[lines.stop]]
    return (
        Span(span.end, source.starts[lines.stop]),
        f"{'' if comma else ','}{rest}{indent}{name},{source.newline}",
    )
