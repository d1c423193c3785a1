"""Removes whole top-level statements and leaves the blank lines that a formatter would."""

from __future__ import annotations

from normport.codemods.parsed import Parsed, Span, TopLevel


def removed_lines(parsed: Parsed, top: TopLevel) -> range:
    """The lines that go with a definition: attached comments above, deeper comments below."""
    source = parsed.source
    last = top.last
    line = last + 1
    while line < len(source.lines):
        if source.is_comment(line) and source.lines[line][0] in " \t":
            last = line
        elif not source.is_blank(line):
            break
        line += 1
    return range(parsed.attached_comment(top), last + 1)


def holes(parsed: Parsed, removed: set[int]) -> list[tuple[Span, str]]:
    """Replacements that take out the ``removed`` lines, with the blank lines around them.

    Between what then meets stay two blank lines if one side is a definition (as many as the
    file had there, at most), one between other statements, none at either end of the file.
    A blank line with a form feed in it is kept.
    """
    source = parsed.source
    result: list[tuple[Span, str]] = []
    line = 0
    while line < len(source.lines):
        if line not in removed and not source.is_blank(line):
            line += 1
            continue
        first = line
        while line < len(source.lines) and (line in removed or source.is_blank(line)):
            line += 1
        inside = range(first, line)
        if removed.isdisjoint(inside):
            continue
        span = Span(source.starts[first], source.starts[line])
        result.append((span, _blank_lines(parsed, inside, removed)))
    return result


def _blank_lines(parsed: Parsed, hole: range, removed: set[int]) -> str:
    source = parsed.source
    runs: list[list[str]] = [[]]
    for line in hole:
        if line in removed:
            runs.append([])
        else:
            runs[-1].append(source.lines[line])
    longest = max(runs, key=len)
    marked = [text for run in runs if run is not longest for text in run if "\f" in text]
    before, after = hole.start - 1, hole.stop
    if before < 0 or after >= len(source.lines):
        return "".join(text for run in runs for text in run if "\f" in text)
    keep = len(longest)
    if not (
        source.is_comment(after) or _in_definition(parsed, before) or _in_definition(parsed, after)
    ):
        keep = min(keep, 1)
    return "".join([*marked, *longest[:keep]])


def _in_definition(parsed: Parsed, line: int) -> bool:
    return any(top.definition and top.first <= line <= top.last for top in parsed.top)
