"""From paths to a report: find the sites, prove them, lay out the edits. Prints nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from normport.codemods.analyze import Options, decode, find_sites, may_hold_norm
from normport.codemods.convert import convert
from normport.codemods.model import EditResult, RefusedEdit, Site
from normport.tools.discover import PythonFile, discover, shown_path
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
from normport.tools.sharing import (
    INCOMPLETE,
    complete,
    refuse_incomplete,
    share,
    unless_called,
)
from normport.tools.tree import FileChange, SourceTree

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    accept: the safeties whose conversions go into the changes.
    dims: ``CLASS.attr`` -> source text of the size of a weightless norm.
    proof, proof_required: whether norms are run; and whether it is an error when they cannot be.
    trees: vLLM trees whose version and origin are known already, by their root.
    progress: called with (sentence, done, total).
    """

    unsafe: bool = False
    accept: frozenset[Safety] = frozenset({"safe"})
    proof: bool = True
    proof_required: bool = False
    dims: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[Path, SourceTree] = field(default_factory=dict)
    progress: Progress = lambda *_: None


@dataclass
class _Source:
    file: PythonFile
    data: bytes
    sites: tuple[Site, ...]
    options: Options
    edited: dict[tuple[int, ...], EditResult] = field(default_factory=dict)

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


def run(arguments: Sequence[Path], settings: Settings) -> Report:
    """Everything that ``scan`` and ``rewrite`` need to know about ``arguments``."""
    files, errors = discover(arguments)
    return run_files(files, errors, settings)


def run_files(
    files: Sequence[PythonFile], errors: Sequence[FileError], settings: Settings
) -> Report:
    """The same for files that were already found."""
    analysis = analyse(files, errors, settings)
    return conclude(analysis, prove_all([analysis], settings), settings)


def analyse(
    files: Sequence[PythonFile], errors: Sequence[FileError], settings: Settings
) -> Analysis:
    """Find the sites of ``files``; nothing is run and nothing is edited yet."""
    options = Options(unsafe=settings.unsafe, dims=dict(settings.dims))
    failed = list(errors)
    sources = _analyse(files, options, settings.progress, failed)
    _note_outside_uses(sources, files)
    joined = share(sources, files, lambda f, data, o: _Source(f, data, (), o), _decide)
    _note_outside_uses(joined, files)
    order = {file: number for number, file in enumerate(files)}
    sources = sorted({id(s): s for s in (*sources, *joined)}.values(), key=lambda s: order[s.file])
    refuse_incomplete(sources)
    return Analysis(tuple(sources), tuple(failed), len(files))


def prove_all(analyses: Sequence[Analysis], settings: Settings) -> Proofs:
    """Run the proof cases of all ``analyses``, each distinct one once per tree.

    Meanwhile the edits are laid out, as though every proof succeeded: the proof is another
    process, and this one would only wait for it.
    """
    if not settings.proof:
        return Proofs({}, NO_PROOF, ())
    settings.progress("proving", 0, 1)
    sources = [source for analysis in analyses for source in analysis.sources]
    cases = [(source.file.tree, site) for source in sources for site in source.sites]
    with ThreadPoolExecutor(1) as pool:
        proofs = pool.submit(run_proofs, cases, settings.trees, required=settings.proof_required)
        for source in sources:
            _refusals(
                source, [n for n, site in enumerate(source.sites) if site.verdict == "convert"]
            )
        return proofs.result()


def conclude(analysis: Analysis, proofs: Proofs, settings: Settings) -> Report:
    """Judge every site by its proof and lay out the edits of those that are accepted."""
    judged = [
        [proofs.judge(source.file.tree, site) for site in source.sites]
        for source in analysis.sources
    ]
    settings.progress("rewriting", 0, len(analysis.sources))
    refused = [
        _refusals(source, [n for n, one in enumerate(found) if one.verdict == "convert"])
        for source, found in zip(analysis.sources, judged, strict=True)
    ]
    while True:
        chosen, spoiled = complete(analysis.sources, judged, refused, settings.accept)
        # What was possible with everything else may not be without it.
        more = [_refusals(s, found) for s, found in zip(analysis.sources, chosen, strict=True)]
        if not any(more):
            break
        refused = [{**old, **new} for old, new in zip(refused, more, strict=True)]
    results = []
    for number, source in enumerate(analysis.sources):
        settings.progress("rewriting", number, len(analysis.sources))
        results.append(
            _lay_out(source, judged[number], refused[number], chosen[number], spoiled[number])
        )
    return Report(tuple(results), analysis.errors, analysis.files, proofs.notes)


def _analyse(
    files: Sequence[PythonFile], options: Options, progress: Progress, failed: list[FileError]
) -> list[_Source]:
    found = []
    for number, file in enumerate(files):
        progress("looking for norms", number, len(files))
        shown = shown_path(file.path, file.root)
        try:
            data = file.path.read_bytes()
        except OSError as error:
            message = f"{shown} cannot be read ({error.strerror}); check its permissions."
            failed.append(FileError(file.relative, message))
            continue
        if not file.named and not may_hold_norm(data):
            continue
        try:
            sites = _sites(data, shown, options)
        except _UnreadableError as error:
            failed.append(FileError(file.relative, str(error)))
        else:
            if sites:
                found.append(_Source(file, data, sites, options))
    return found


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


def _note_outside_uses(sources: Sequence[_Source], files: Sequence[PythonFile]) -> None:
    """Tell each file with something to convert which of its names other files use; a norm that
    they use is decided again, since not all of its uses are in its own file."""
    around: dict[tuple[Path, bool], list[tuple[_Source, Target]]] = {}
    for source in sources:
        if source.convertible:
            path = source.file.path.resolve()
            target = Target.of(path, source.data, _attributes(source.sites))
            around.setdefault(neighbourhood(path), []).append((source, target))
    for (folder, deep), members in around.items():
        roots = {source.file.root for source, _ in members}
        given = (file.path.resolve() for file in files if not deep and file.root in roots)
        neighbours = sorted({*files_around(folder, deep), *given})
        found = find_uses([target for _, target in members], neighbours)
        for source, target in members:
            uses = found[target.path]
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


def _decide(source: _Source) -> None:
    shown = shown_path(source.file.path, source.file.root)
    source.sites = _sites(source.data, shown, source.options)


def _attributes(sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    for site in sites:
        if site.verdict == "convert" and site.owner and site.attribute:
            yield site.owner, site.attribute
            yield from site.also


def _lay_out(
    source: _Source,
    judged: Sequence[Judgement],
    refused: Mapping[int, str],
    chosen: Collection[int],
    spoiled: Mapping[int, str],
) -> FileResult:
    """Carry out the ``chosen`` conversions on the bytes, and write the findings.

    refused: the sites that the editor refuses, with its reason. spoiled: those that would be
    converted but for another site that they go together with.
    """
    file, shown = source.file, shown_path(source.file.path, source.file.root)
    edited = _edit(source, chosen) if chosen else None
    findings = []
    for number, (site, judgement) in enumerate(zip(source.sites, judged, strict=True)):
        finding = _finding(file, shown, site, judgement)
        if number in refused:
            finding = finding.refused(refused[number])
        elif number in spoiled:
            finding = replace(finding.refused(spoiled[number]), code=INCOMPLETE)
        findings.append(replace(finding, applied=number in chosen))
    change = None
    if edited is not None and edited.source != source.data:
        change = FileChange(file.relative, source.data, edited.source)
        findings = with_lost_comments(findings, _text(source.data), edited.lost_comments)
    return FileResult(
        file=file.path,
        root=file.root,
        findings=tuple(findings),
        sites=source.sites,
        change=change,
        removed=edited.removed if edited else (),
        lost_comments=edited.lost_comments if edited else (),
    )


def _edit(source: _Source, numbers: Collection[int]) -> EditResult:
    key = tuple(sorted(numbers))
    if key not in source.edited:
        chosen = tuple(source.sites[number] for number in key)
        source.edited[key] = convert(source.data, chosen, source.options)
    return source.edited[key]


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
