"""From a site and its proof to a verdict: equal is safe, bounded is unsafe, different is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normport.codemods.model import ProofCase, Site, Verdict
from normport.tools.errors import UserError
from normport.tools.findings import Safety
from normport.tools.proof import Equivalence, prove
from normport.tools.sources import describe_tree

NO_PROOF = "Nothing was run (--no-proof), so equality is not shown."
NO_CASE = "The local norm cannot be run apart from its model, so equality is not shown."


@dataclass(frozen=True)
class Judgement:
    """What a finding says beyond its site."""

    verdict: Verdict
    safety: Safety | None
    equivalence: Equivalence | None
    reason: str | None


def prove_sites(
    files: Sequence[tuple[Path | None, tuple[Site, ...]]], proof: bool, required: bool
) -> tuple[list[list[Judgement]], list[str]]:
    """Judge every site of every file; each distinct case is run once per tree.

    files: the vLLM tree (or None) and the sites of each file.
    required: raise UserError when nothing can be run here, instead of calling it unproven.
    Returns one list of judgements per file, in order, and notes for the user.
    """
    notes: list[str] = []
    results: dict[tuple[Path | None, ProofCase], Equivalence] = {}
    why_not = NO_PROOF
    if proof:
        try:
            results = _run(files)
        except UserError as error:
            if required:
                raise
            why_not = f"Nothing was run, so equality is not shown: {error}"
            notes.append(str(error))
    judged = []
    for tree, sites in files:
        found = [results.get((tree, site.proof)) if site.proof else None for site in sites]
        judged.append([judge(s, e, why_not) for s, e in zip(sites, found, strict=True)])
    return judged, notes


def _run(
    files: Sequence[tuple[Path | None, tuple[Site, ...]]],
) -> dict[tuple[Path | None, ProofCase], Equivalence]:
    cases: dict[Path | None, dict[ProofCase, None]] = {}
    for tree, sites in files:
        for site in sites:
            if site.proof is not None and site.verdict == "convert":
                cases.setdefault(tree, {})[site.proof] = None
    results = {}
    for tree, distinct in cases.items():
        found = prove(list(distinct), None if tree is None else describe_tree(tree))
        results.update({(tree, c): e for c, e in zip(distinct, found, strict=True)})
    return results


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
    return Judgement("refuse", None, equivalence, why)


def sentence(text: str) -> str:
    """``text`` with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _join(first: str, second: str | None) -> str:
    return f"{first} {second}" if second else first
