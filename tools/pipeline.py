"""From paths to a report: find the sites, prove them, lay out the edits. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from normport.codemods.analyze import Options
from normport.codemods.model import Site
from normport.tools.choice import Offer
from normport.tools.discover import PythonFile
from normport.tools.drafts import asked, chosen_sites, draft_of, lay_out
from normport.tools.file_uses import note_outside_uses
from normport.tools.findings import (
    FileError,
    Report,
    Safety,
)
from normport.tools.judge import NO_PROOF, Proofs, run_proofs
from normport.tools.neighbours import Neighbours
from normport.tools.parallel import Workers
from normport.tools.selection import EVERY_RULE, Selection
from normport.tools.sharing import (
    refuse_incomplete,
    share,
)
from normport.tools.source_file import SourceFile, all_edits, decided, look
from normport.tools.tree import SourceTree

Progress = Callable[[str, int, int], None]


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


@dataclass(frozen=True)
class Analysis:
    """The sites of all files that hold any, and the files that could not be read."""

    sources: tuple[SourceFile, ...]
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
    listed = Neighbours(files)
    settings.workers.start(len(files))  # before anything is shown: that may start a thread
    looked = settings.workers.map(
        partial(look, options=options, edits=not settings.proof),
        files,
        lambda done: settings.progress("looking for norms", done, len(files)),
        listed.prepare,
    )
    sources = [found for found in looked if isinstance(found, SourceFile)]
    failed = [found for found in looked if isinstance(found, FileError)]
    note_outside_uses(sources, settings.workers, listed)
    joined = share(
        sources,
        listed,
        settings.workers,
        lambda file, data, options: SourceFile(file, data, (), options),
        decided,
    )
    note_outside_uses(joined, settings.workers, listed)
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


def _prepare(sources: Sequence[SourceFile], workers: Workers) -> None:
    """Lay out the edits of all conversions, which is nearly always what is asked for later."""
    convertible = [source for source in sources if source.convertible and not source.edited]
    for source, edited in zip(convertible, workers.map(all_edits, convertible), strict=True):
        source.edited.update(edited)


def conclude(analysis: Analysis, proofs: Proofs, settings: Settings) -> Report:
    """Judge every site by its proof and lay out the edits of those that are accepted."""
    _prepare(analysis.sources, settings.workers)
    settings.progress("rewriting", 0, len(analysis.sources))
    drafts = [draft_of(source, proofs, settings.selection) for source in analysis.sources]
    chosen = chosen_sites(drafts, settings.accept)
    if settings.choose is not None:
        for draft, numbers in zip(drafts, chosen, strict=True):
            draft.declined |= set(numbers) - asked(draft, numbers, settings.choose)
        chosen = chosen_sites(drafts, settings.accept)
    results = []
    for number, draft in enumerate(drafts):
        settings.progress("rewriting", number, len(drafts))
        results.append(lay_out(draft, chosen[number]))
    return Report(tuple(results), analysis.errors, analysis.files, proofs.notes)
