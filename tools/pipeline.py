"""From paths to a report: find the sites, prove them, lay out the edits. Prints nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from normport.codemods.analyze import Options, decode, find_sites, may_hold_norm, plan
from normport.codemods.model import EditResult, RefusedEdit, Site
from normport.tools.choice import Choice, Offer
from normport.tools.discover import PythonFile, shown_path
from normport.tools.findings import (
    FileError,
    FileResult,
    Finding,
    Report,
    Safety,
    with_lost_comments,
)
from normport.tools.judge import NO_PROOF, Judgement, Proofs, run_proofs
from normport.tools.neighbours import files_around, neighbourhood
from normport.tools.outside import Target, find_uses, unless_read
from normport.tools.parallel import Workers
from normport.tools.selection import EVERY_RULE, Selection
from normport.tools.suppressions import may_hold_comment
from normport.tools.tree import FileChange, SourceTree

Progress = Callable[[str, int, int], None]

_PRIVATE = re.compile(rb"\b(?:class|def)[\s\\]+(_\w*)")


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    accept: the safeties whose conversions go into the changes.
    dims: ``CLASS.attr`` -> source text of the size of a weightless norm.
    proof, proof_required: whether norms are run; and whether it is an error when they cannot be.
    selection: the rules whose findings are reported, and carried out.
    choose: asked file by file which of the accepted conversions go in; without it all do.
    unproven: what to say of every conversion when none is run.
    trees: vLLM trees whose version and origin are known already, by their root.
    workers: who shares the work on many files; nobody by default.
    progress: called with (sentence, done, total).
    """

    unsafe: bool = False
    accept: frozenset[Safety] = frozenset({"safe"})
    proof: bool = True
    unproven: str = NO_PROOF
    proof_required: bool = False
    dims: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = EVERY_RULE
    choose: Callable[[Offer], Collection[int]] | None = None
    trees: Mapping[Path, SourceTree] = field(default_factory=dict)
    workers: Workers = field(default_factory=lambda: Workers(1))
    progress: Progress = lambda *_: None


@dataclass
class _Source:
    file: PythonFile
    data: bytes
    sites: tuple[Site, ...]
    options: Options
    edited: dict[tuple[int, ...], EditResult | RefusedEdit] = field(default_factory=dict)

    @property
    def convertible(self) -> bool:
        return any(site.verdict == "convert" for site in self.sites)


@dataclass(frozen=True)
class Analysis:
    """The sites of all files that hold any, and the files that could not be read."""

    sources: tuple[_Source, ...]
    errors: tuple[FileError, ...]
    files: int

    def without(self, known: Mapping[PythonFile, tuple[Site, ...]]) -> Analysis:
        """The files whose sites differ from those in ``known``."""
        differing = (source for source in self.sources if known.get(source.file) != source.sites)
        return replace(self, sources=tuple(differing))


def run(files: Sequence[PythonFile], errors: Sequence[FileError], settings: Settings) -> Report:
    """Everything that ``scan`` and ``rewrite`` need to know about ``files``."""
    analysis = analyse(files, errors, settings)
    return conclude(analysis, prove_all([analysis], settings), settings)


def analyse(
    files: Sequence[PythonFile], errors: Sequence[FileError], settings: Settings
) -> Analysis:
    """Find the sites of ``files``; nothing is run and nothing is edited yet."""
    options = Options(unsafe=settings.unsafe, dims=dict(settings.dims))
    settings.workers.start(len(files))  # before anything is shown: that may start a thread
    looked = settings.workers.map(
        partial(_look, options=options, edit=not settings.proof),
        files,
        lambda done: settings.progress("looking for norms", done, len(files)),
    )
    sources = [found for found in looked if isinstance(found, _Source)]
    failed = [found for found in looked if isinstance(found, FileError)]
    _note_outside_uses(sources, files, settings.workers)
    return Analysis(tuple(sources), (*errors, *failed), len(files))


def prove_all(analyses: Sequence[Analysis], settings: Settings) -> Proofs:
    """Run the proof cases of all ``analyses``, each distinct one once per tree.

    Meanwhile the edits are laid out, as though every proof succeeded: the proof is another
    process, and this one would only wait for it.
    """
    if not settings.proof:
        return Proofs({}, settings.unproven, ())
    from concurrent.futures import ThreadPoolExecutor

    settings.progress("proving", 0, 1)
    sources = [source for analysis in analyses for source in analysis.sources]
    cases = [(source.file.tree, site) for source in sources for site in source.sites]
    with ThreadPoolExecutor(1) as pool:
        proofs = pool.submit(run_proofs, cases, settings.trees, required=settings.proof_required)
        _prepare(sources, settings.workers)
        return proofs.result()


def _prepare(sources: Sequence[_Source], workers: Workers) -> None:
    """Lay out the edits of all conversions, which is nearly always what is asked for later."""
    convertible = [source for source in sources if source.convertible and not source.edited]
    for source, edited in zip(convertible, workers.map(_all_edits, convertible), strict=True):
        source.edited.update(edited)


def _all_edits(source: _Source) -> Mapping[tuple[int, ...], EditResult | RefusedEdit]:
    _refusals(source, [n for n, site in enumerate(source.sites) if site.verdict == "convert"])
    return source.edited


def conclude(analysis: Analysis, proofs: Proofs, settings: Settings) -> Report:
    """Judge every site by its proof and lay out the edits of those that are accepted."""
    results = []
    _prepare(analysis.sources, settings.workers)
    for number, source in enumerate(analysis.sources):
        settings.progress("rewriting", number, len(analysis.sources))
        judged = [proofs.judge(source.file.tree, site) for site in source.sites]
        results.append(_lay_out(source, judged, settings))
    return Report(tuple(results), analysis.errors, analysis.files, proofs.notes)


def _look(file: PythonFile, options: Options, edit: bool) -> _Source | FileError | None:
    """The sites of one file, if it has any.

    edit: lay out the edits too, as though no other file used anything of it: that is what takes
        longest, and here there is other work to share beside it.
    """
    shown = shown_path(file.path, file.root)
    try:
        data = file.read()
    except OSError as error:
        message = f"{shown} cannot be read ({error.strerror}); check its permissions."
        return FileError(file.relative, message)
    commented = may_hold_comment(data)  # a comment that no norm has is unused
    if not file.named and not may_hold_norm(data):
        return _Source(file, data, (), options) if commented else None
    try:
        sites = _sites(data, shown, options)
    except _UnreadableError as error:
        return FileError(file.relative, str(error))
    source = _Source(file, data, sites, options)
    if edit:
        _all_edits(source)
    return source if sites or commented else None


class _UnreadableError(Exception):
    """The file is no Python source that can be analysed; the message is one sentence."""


def _sites(data: bytes, shown: str, options: Options) -> tuple[Site, ...]:
    try:
        text = _text(data)
        sites = find_sites(data, shown, options)
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


def _text(data: bytes) -> str:
    """The source text; UnicodeDecodeError when it is not UTF-8 and declares nothing else."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        try:
            return decode(data)
        except SyntaxError:
            raise error from None


def _note_outside_uses(
    sources: Sequence[_Source], files: Sequence[PythonFile], workers: Workers
) -> None:
    """Tell each file with something to convert which of its names other files use; a norm that
    they use is decided again, since not all of its uses are in its own file."""
    around: dict[tuple[Path, bool], list[tuple[_Source, Target]]] = {}
    convertible = [source for source in sources if source.convertible]
    for source, target in zip(convertible, workers.map(_target, convertible), strict=True):
        around.setdefault(neighbourhood(target.path), []).append((source, target))
    for (folder, deep), members in around.items():
        roots = {source.file.root for source, _ in members}
        given = (file.path.resolve() for file in files if not deep and file.root in roots)
        neighbours = sorted({*files_around(folder, deep), *given}, key=lambda path: path.parts)
        found = find_uses([target for _, target in members], neighbours, workers)
        for source, target in members:
            uses, before = found[target.path], source.sites
            names = frozenset(uses.names)
            source.options = replace(source.options, outside_uses=names)
            if names & {site.norm for site in source.sites}:
                shown = shown_path(source.file.path, source.file.root)
                source.sites = _sites(source.data, shown, source.options)
            source.sites = tuple(
                unless_read(site, uses, (source.file.root, folder)) for site in source.sites
            )
            if source.sites != before or _may_keep(source, names):
                source.edited.clear()


def _target(source: _Source) -> Target:
    return Target.of(source.file.path.resolve(), source.data, _attributes(source.sites))


def _may_keep(source: _Source, names: Collection[str]) -> bool:
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


def _lay_out(source: _Source, judged: Sequence[Judgement], settings: Settings) -> FileResult:
    """Decide which conversions go in, carry them out on the bytes, and write the findings."""
    file, shown = source.file, shown_path(source.file.path, source.file.root)
    choice = Choice(source.sites, source.data, shown, settings.selection)
    findings = [
        _finding(file, shown, site, judgement)
        for site, judgement in zip(source.sites, judged, strict=True)
    ]
    choice.look(findings)
    possible = [n for n, f in enumerate(findings) if f.verdict == "convert" and choice.shows(n)]
    for number, reason in _refusals(source, possible).items():
        findings[number] = findings[number].refused(reason)
    choice.look(findings)
    chosen: Collection[int] = [
        n
        for n in possible
        if findings[n].verdict == "convert" and judged[n].safety in settings.accept
    ]
    if chosen and settings.choose is not None:
        offer = Offer(
            shown,
            source.data,
            {n: findings[n] for n in chosen},
            lambda ns: _edit(source, ns).source,
        )
        chosen = settings.choose(offer)
    edited = _edit(source, chosen) if chosen else None
    findings = [replace(finding, applied=n in chosen) for n, finding in enumerate(findings)]
    kept = [number for number in range(len(findings)) if choice.shows(number)]
    change, findings = None, [findings[number] for number in kept]
    if edited is not None and edited.source != source.data:
        change = FileChange(file.relative, source.data, edited.source)
        findings = with_lost_comments(findings, _text(source.data), edited.lost_comments)
    return FileResult(
        file=file.path,
        root=file.root,
        findings=tuple(findings),
        sites=tuple(source.sites[number] for number in kept),
        change=change,
        removed=edited.removed if edited else (),
        lost_comments=edited.lost_comments if edited else (),
        hidden=tuple(site for n, site in enumerate(source.sites) if not choice.shows(n)),
        ignored=len(choice.ignored),
        complaints=choice.complaints(judged),
        source=source.data,
    )


def _edit(source: _Source, numbers: Collection[int]) -> EditResult:
    key = tuple(sorted(numbers))
    if key not in source.edited:
        # LibCST takes as long to import as all the rest: only where something is edited.
        from normport.codemods.edit import apply_plan

        chosen = tuple(source.sites[number] for number in key)
        laid_out = plan(source.data, chosen, source.options)
        keep = source.options.outside_uses
        try:
            source.edited[key] = apply_plan(source.data, laid_out, keep=keep)
        except RefusedEdit as refused:
            source.edited[key] = refused
    found = source.edited[key]
    if isinstance(found, RefusedEdit):
        raise found
    return found


def _refusals(source: _Source, possible: Sequence[int]) -> dict[int, str]:
    """The sites that cannot be edited without a loss, with the editor's reason.

    Tried all together first; on a refusal the sites of one local norm after the other, so that
    one norm that cannot be edited does not keep the rest of the file from being converted.
    """
    if not possible:
        return {}
    try:
        _edit(source, possible)
    except RefusedEdit:
        pass
    else:
        return {}
    refused: dict[int, str] = {}
    kept: list[int] = []
    for norm in dict.fromkeys(source.sites[number].norm for number in possible):
        group = [number for number in possible if source.sites[number].norm == norm]
        try:
            _edit(source, [*kept, *group])
        except RefusedEdit as error:
            refused.update(dict.fromkeys(group, str(error)))
        else:
            kept += group
    return refused


def _finding(file: PythonFile, shown: str, site: Site, judgement: Judgement) -> Finding:
    return Finding(
        path=file.relative,
        shown=shown,
        line=site.line,
        column=site.column,
        code=judgement.code or site.code,
        norm=site.norm,
        computes=site.computes,
        verdict=judgement.verdict,
        target=site.target if judgement.verdict != "refuse" else None,
        safety=judgement.safety,
        equivalence=judgement.equivalence,
        reason=judgement.reason,
    )
