"""From paths to a report: find the sites, prove them, lay out the edits. Prints nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from normport.codemods.analyze import Options, decode, find_sites, may_hold_norm
from normport.codemods.convert import convert
from normport.codemods.depth import with_deep_stack
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
from normport.tools.sharing import (
    INCOMPLETE,
    complete,
    refuse_incomplete,
    share,
    unless_called,
)
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


@dataclass
class _Draft:
    """What is decided about the sites of one file, while it is being decided.

    refused: the sites that the editor refuses, with its reason. spoiled: those that would be
    converted but for another site that they go together with. declined: by a person.
    """

    source: _Source
    shown: str
    judged: list[Judgement]
    choice: Choice
    refused: dict[int, str] = field(default_factory=dict)
    spoiled: dict[int, str] = field(default_factory=dict)
    declined: set[int] = field(default_factory=set)

    @property
    def allowed(self) -> set[int]:
        """The sites that nobody keeps out."""
        return {n for n in range(len(self.judged)) if self.choice.shows(n)} - self.declined

    def findings(self) -> list[Finding]:
        """One per site, as it stands."""
        found = []
        for number, (site, judged) in enumerate(zip(self.source.sites, self.judged, strict=True)):
            finding = _finding(self.source.file, self.shown, site, judged)
            if number in self.refused:
                finding = finding.refused(self.refused[number])
            elif number in self.spoiled:
                finding = replace(finding.refused(self.spoiled[number]), code=INCOMPLETE)
            found.append(finding)
        return found


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
    joined = share(sources, files, lambda f, data, o: _Source(f, data, (), o), _decide)
    _note_outside_uses(joined, files, settings.workers)
    order = {file: number for number, file in enumerate(files)}
    sources = sorted({id(s): s for s in (*sources, *joined)}.values(), key=lambda s: order[s.file])
    refuse_incomplete(sources)
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
    _prepare(analysis.sources, settings.workers)
    settings.progress("rewriting", 0, len(analysis.sources))
    drafts = [_draft(source, proofs, settings.selection) for source in analysis.sources]
    chosen = _chosen(drafts, settings.accept)
    if settings.choose is not None:
        for draft, numbers in zip(drafts, chosen, strict=True):
            draft.declined |= set(numbers) - _asked(draft, numbers, settings.choose)
        chosen = _chosen(drafts, settings.accept)
    results = []
    for number, draft in enumerate(drafts):
        settings.progress("rewriting", number, len(drafts))
        results.append(_lay_out(draft, chosen[number]))
    return Report(tuple(results), analysis.errors, analysis.files, proofs.notes)


def _draft(source: _Source, proofs: Proofs, selection: Selection) -> _Draft:
    shown = shown_path(source.file.path, source.file.root)
    judged = [proofs.judge(source.file.tree, site) for site in source.sites]
    choice = Choice(source.sites, source.data, shown, selection)
    draft = _Draft(source, shown, judged, choice)
    choice.look(draft.findings())
    possible = [n for n, one in enumerate(judged) if one.verdict == "convert" and choice.shows(n)]
    draft.refused.update(_refusals(source, possible))
    return draft


def _chosen(drafts: Sequence[_Draft], accept: Collection[Safety]) -> list[list[int]]:
    """The sites to convert in each file; what keeps others from it is noted in the drafts."""
    sources = [draft.source for draft in drafts]
    judged = [draft.judged for draft in drafts]
    while True:
        refused = [draft.refused for draft in drafts]
        kept = [draft.allowed for draft in drafts]
        chosen, spoiled = complete(sources, judged, refused, accept, kept)
        # What was possible with everything else may not be without it.
        more = [_refusals(s, found) for s, found in zip(sources, chosen, strict=True)]
        for draft, new, out in zip(drafts, more, spoiled, strict=True):
            draft.refused.update(new)
            draft.spoiled = out
        if not any(more):
            return chosen


def _asked(
    draft: _Draft, numbers: Collection[int], choose: Callable[[Offer], Collection[int]]
) -> set[int]:
    """Which of the conversions a person wants."""
    if not numbers:
        return set()
    found = draft.findings()
    source = draft.source
    offered = {number: found[number] for number in numbers}
    return set(
        choose(Offer(draft.shown, source.data, offered, lambda ns: _edit(source, ns).source))
    )


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
            followed = {*source.options.shared, *source.options.foreign}
            names = frozenset(uses.names - followed)
            source.options = replace(source.options, outside_uses=names)
            if names & {site.norm for site in source.sites}:
                _decide(source)
            tops = (source.file.root, folder)
            source.sites = tuple(
                unless_called(unless_read(site, uses, tops), target, neighbours, tops)
                for site in source.sites
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


def _decide(source: _Source) -> None:
    shown = shown_path(source.file.path, source.file.root)
    source.sites = _sites(source.data, shown, source.options)


def _attributes(sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    for site in sites:
        if site.verdict == "convert" and site.owner and site.attribute:
            yield site.owner, site.attribute
            yield from site.also


def _lay_out(draft: _Draft, chosen: Collection[int]) -> FileResult:
    """Carry out the ``chosen`` conversions on the bytes, and give the findings."""
    source, choice = draft.source, draft.choice
    edited = _edit(source, chosen) if chosen else None
    found = draft.findings()
    choice.look(found)
    kept = [number for number in range(len(found)) if choice.shows(number)]
    change, findings = None, [replace(found[n], applied=n in chosen) for n in kept]
    if edited is not None and edited.source != source.data:
        change = FileChange(source.file.relative, source.data, edited.source)
        findings = with_lost_comments(findings, _text(source.data), edited.lost_comments)
    return FileResult(
        file=source.file.path,
        root=source.file.root,
        findings=tuple(findings),
        sites=tuple(source.sites[number] for number in kept),
        change=change,
        removed=edited.removed if edited else (),
        lost_comments=edited.lost_comments if edited else (),
        hidden=tuple(site for n, site in enumerate(source.sites) if not choice.shows(n)),
        ignored=len(choice.ignored),
        complaints=choice.complaints(draft.judged),
        source=source.data,
    )


def _edit(source: _Source, numbers: Collection[int]) -> EditResult:
    key = tuple(sorted(numbers))
    if key not in source.edited:
        chosen = tuple(source.sites[number] for number in key)
        try:
            source.edited[key] = convert(source.data, chosen, source.options)
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
