"""One file as it is being decided about: its sites, and its edits as far as they were laid out."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from normport.codemods.analyze import Options, decode, find_sites, may_hold_norm
from normport.codemods.convert import convert
from normport.codemods.depth import with_deep_stack
from normport.codemods.model import EditResult, FormatterError, RefusedEdit, Site
from normport.codemods.suppressions import may_hold_comment
from normport.tools.discover import PythonFile, shown_path
from normport.tools.errors import UserError
from normport.tools.findings import FileError


@dataclass
class SourceFile:
    """A file with norms in it, or with comments about findings.

    edited: the file with the sites of those numbers converted, or why that cannot be.
    """

    file: PythonFile
    data: bytes
    sites: tuple[Site, ...]
    options: Options
    edited: dict[tuple[int, ...], EditResult | RefusedEdit] = field(default_factory=dict)

    @property
    def convertible(self) -> bool:
        return any(site.verdict == "convert" for site in self.sites)


class _UnreadableError(Exception):
    """The file is no Python source that can be analysed; the message is one sentence."""


def look(file: PythonFile, options: Options, edits: bool) -> SourceFile | FileError | None:
    """The sites of one file, if it has any.

    edits: lay them out too, as though no other file used anything of it: that is what takes
        longest, and here there is other work to share beside it.
    """
    try:
        data = file.read()
    except OSError as error:
        shown = shown_path(file.path, file.root)
        message = f"{shown} cannot be read ({error.strerror}); check its permissions."
        return FileError(file.relative, message)
    commented = may_hold_comment(data)  # a comment that no norm has is unused
    if not file.named and not may_hold_norm(data):
        return SourceFile(file, data, (), options) if commented else None
    try:
        sites = _sites(file, data, options)
    except _UnreadableError as error:
        return FileError(file.relative, str(error))
    source = SourceFile(file, data, sites, options)
    if edits:
        all_edits(source)
    return source if sites or commented else None


def decided(source: SourceFile) -> tuple[Site, ...]:
    """The sites of a file that was found before, by its options as they are now."""
    return _sites(source.file, source.data, source.options)


def _sites(file: PythonFile, data: bytes, options: Options) -> tuple[Site, ...]:
    shown = shown_path(file.path, file.root)
    try:
        text = source_text(data)
        try:
            sites = find_sites(data, shown, options)
        except RecursionError:  # rare, and more room takes a thread of its own
            sites = with_deep_stack(lambda: find_sites(data, shown, options))
        if not sites and not may_hold_norm(data):
            ast.parse(text)  # a named file is told to be broken even where no norm could be
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _UnreadableError(
            f"{shown} is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}); "
            "save it as UTF-8."
        ) from error
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise _UnreadableError(
            f"{shown} does not parse as Python{where} ({error.msg}); correct it or leave it out."
        ) from error
    except (RecursionError, MemoryError) as error:
        raise _UnreadableError(
            f"{shown} is nested too deeply to be analysed; leave it out."
        ) from error
    return sites


def source_text(data: bytes) -> str:
    """The source text; UnicodeDecodeError when it is not UTF-8 and declares nothing else."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        try:
            return decode(data)
        except SyntaxError:
            raise error from None


def all_edits(source: SourceFile) -> Mapping[tuple[int, ...], EditResult | RefusedEdit]:
    """Lay out the edits of all conversions; returns all that are laid out."""
    refusals(source, [n for n, site in enumerate(source.sites) if site.verdict == "convert"])
    return source.edited


def edit(source: SourceFile, numbers: Collection[int]) -> EditResult:
    """The file with the sites of those numbers converted, each set laid out once.

    Raises RefusedEdit where that would lose something, UserError where ruff does not run.
    """
    key = tuple(sorted(numbers))
    if key not in source.edited:
        chosen = tuple(source.sites[number] for number in key)
        try:
            source.edited[key] = convert(source.data, chosen, source.options)
        except RefusedEdit as refused:
            source.edited[key] = refused
        except FormatterError as error:
            raise UserError(str(error)) from error
    found = source.edited[key]
    if isinstance(found, RefusedEdit):
        raise found
    return found


def refusals(source: SourceFile, possible: Sequence[int]) -> dict[int, str]:
    """The sites that cannot be edited without a loss, with the editor's reason.

    Tried all together first; on a refusal the sites of one local norm after the other, so that
    one norm that cannot be edited does not keep the rest of the file from being converted.
    """
    if not possible:
        return {}
    try:
        edit(source, possible)
    except RefusedEdit:
        pass
    else:
        return {}
    refused: dict[int, str] = {}
    kept: list[int] = []
    for norm in dict.fromkeys(source.sites[number].norm for number in possible):
        group = [number for number in possible if source.sites[number].norm == norm]
        try:
            edit(source, [*kept, *group])
        except RefusedEdit as error:
            refused.update(dict.fromkeys(group, str(error)))
        else:
            kept += group
    return refused
