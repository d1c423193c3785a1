"""What is decided about the sites of one file, from the proofs to the finished file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from normport.codemods.advice import advised
from normport.codemods.model import Site
from normport.tools.choice import Choice, Offer
from normport.tools.discover import PythonFile, shown_path
from normport.tools.findings import (
    LOSES,
    FileResult,
    Finding,
    Safety,
    with_lost_comments,
)
from normport.tools.judge import Judgement, Proofs
from normport.tools.selection import Selection
from normport.tools.sharing import (
    INCOMPLETE,
    complete,
)
from normport.tools.source_file import SourceFile, edit, refusals, source_text
from normport.tools.tree import FileChange


@dataclass
class Draft:
    """What is decided about the sites of one file, while it is being decided.

    refused: the sites that the editor refuses, with its reason. spoiled: those that would be
    converted but for another site that they go together with. declined: by a person.
    """

    source: SourceFile
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
                finding = finding.refused(advised(LOSES, self.refused[number]))
            elif number in self.spoiled:
                finding = replace(finding.refused(self.spoiled[number]), code=INCOMPLETE)
            found.append(finding)
        return found


def draft_of(source: SourceFile, proofs: Proofs, selection: Selection) -> Draft:
    """What the proofs, the comments and the choice of rules make of the file's sites."""
    shown = shown_path(source.file.path, source.file.root)
    judged = [proofs.judge(source.file.tree, site) for site in source.sites]
    choice = Choice(source.sites, source.data, shown, selection)
    draft = Draft(source, shown, judged, choice)
    choice.look(draft.findings())
    possible = [n for n, one in enumerate(judged) if one.verdict == "convert" and choice.shows(n)]
    draft.refused.update(refusals(source, possible))
    return draft


def chosen_sites(drafts: Sequence[Draft], accept: Collection[Safety]) -> list[list[int]]:
    """The sites to convert in each file; what keeps others from it is noted in the drafts."""
    sources = [draft.source for draft in drafts]
    judged = [draft.judged for draft in drafts]
    while True:
        refused = [draft.refused for draft in drafts]
        kept = [draft.allowed for draft in drafts]
        chosen, spoiled = complete(sources, judged, refused, accept, kept)
        # What was possible with everything else may not be without it.
        more = [refusals(s, found) for s, found in zip(sources, chosen, strict=True)]
        for draft, new, out in zip(drafts, more, spoiled, strict=True):
            draft.refused.update(new)
            draft.spoiled = out
        if not any(more):
            return chosen


def asked(
    draft: Draft, numbers: Collection[int], choose: Callable[[Offer], Collection[int]]
) -> set[int]:
    """Which of the conversions a person wants."""
    if not numbers:
        return set()
    found = draft.findings()
    source = draft.source
    offered = {number: found[number] for number in numbers}
    return set(choose(Offer(draft.shown, source.data, offered, lambda ns: edit(source, ns).source)))


def lay_out(draft: Draft, chosen: Collection[int]) -> FileResult:
    """Carry out the ``chosen`` conversions on the bytes, and give the findings."""
    source, choice = draft.source, draft.choice
    edited = edit(source, chosen) if chosen else None
    found = draft.findings()
    choice.look(found)
    kept = [number for number in range(len(found)) if choice.shows(number)]
    change, findings = None, [replace(found[n], applied=n in chosen) for n in kept]
    if edited is not None and edited.source != source.data:
        change = FileChange(source.file.relative, source.data, edited.source)
        findings = with_lost_comments(findings, source_text(source.data), edited.lost_comments)
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
