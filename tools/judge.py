"""From site and proof to verdict: equal is safe, bounded is unsafe, different is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from normport.codemods.advice import advised
from normport.codemods.model import ProofCase, Site, Verdict
from normport.tools.errors import UserError
from normport.tools.findings import Safety
from normport.tools.proof import Equivalence, prove
from normport.tools.tree import SourceTree

NO_PROOF = "Nothing was run (--no-proof), so equality is not shown."
NO_EXEC = "Nothing of the source was executed (--no-exec), so equality is not shown."
CANNOT_RUN = "The proof cannot be run here, so equality is not shown."
NO_CASE = "The local norm cannot be run apart from its model, so equality is not shown."
DIFFERENT = "NP301"
"""The rule of a site whose numbers the proof found to differ."""


@dataclass(frozen=True)
class Judgement:
    """What a finding says beyond its site; ``code`` replaces the site's when there is one."""

    verdict: Verdict
    safety: Safety | None
    equivalence: Equivalence | None
    reason: str | None
    code: str | None = None


@dataclass(frozen=True)
class Proofs:
    """What the proof found for each case, by the tree whose layers were the new norms.

    why_not: why a case that is not among ``results`` was not run.
    notes: sentences for the user about the run.
    """

    results: Mapping[tuple[Path | None, ProofCase], Equivalence]
    why_not: str
    notes: tuple[str, ...]

    def judge(self, tree: Path | None, site: Site) -> Judgement:
        """The verdict on one site of ``tree``."""
        found = self.results.get((tree, site.proof)) if site.proof else None
        return judge(site, found, self.why_not)


def run_proofs(
    sites: Iterable[tuple[Path | None, Site]], trees: Mapping[Path, SourceTree], *, required: bool
) -> Proofs:
    """Run every distinct proof case once per tree.

    trees: what is known of a tree already; the others are looked at here.
    required: raise UserError when nothing can be run here, instead of noting it.
    """
    cases: dict[Path | None, dict[ProofCase, None]] = {}
    for tree, site in sites:
        if site.proof is not None and site.verdict == "convert":
            cases.setdefault(tree, {})[site.proof] = None
    # Needed for nothing but a proof, and slow to import.
    from normport.tools.sources import resolve

    results: dict[tuple[Path | None, ProofCase], Equivalence] = {}
    notes: list[str] = []
    try:
        for tree, distinct in cases.items():
            partner = None
            if tree is not None:
                partner = trees.get(tree) or resolve(str(tree), note=notes.append)
            found = prove(list(distinct), partner)
            results.update({(tree, c): e for c, e in zip(distinct, found, strict=True)})
    except UserError as error:
        if required:
            raise
        notes.append(sentence(str(error)))
        return Proofs(results, CANNOT_RUN, tuple(notes))
    return Proofs(results, NO_PROOF, tuple(notes))


def judge(site: Site, equivalence: Equivalence | None, why_not: str) -> Judgement:
    """The verdict on one site.

    why_not: the reason to give when the site has a case that was not run.
    """
    if site.verdict != "convert":
        return Judgement(site.verdict, None, None, site.reason)
    if equivalence is None:
        why = why_not if site.proof is not None else NO_CASE
        return Judgement("convert", "unproven", None, _join(why, site.reason))
    if equivalence.status == "equal":
        return Judgement("convert", "safe", equivalence, site.reason)
    why = sentence(equivalence.reason or "the proof gave no reason")
    if equivalence.status == "bounded":
        return Judgement("convert", "unsafe", equivalence, _join(why, site.reason))
    if equivalence.status == "failed":
        return Judgement("convert", "unproven", None, _join(why, site.reason))
    return Judgement("refuse", None, equivalence, advised(DIFFERENT, why), DIFFERENT)


def sentence(text: str) -> str:
    """``text`` with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _join(first: str, second: str | None) -> str:
    return f"{first} {second}" if second else first
