"""Commit messages of the patches: why, what each site becomes, and what was proven."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath

from normport.codemods.model import Site
from normport.codemods.registry import STARTS, starts_otherwise
from normport.tools.backport import BackportResult
from normport.tools.devices import NATIVE_ONLY, about, abouts, listed, where_it_matters
from normport.tools.findings import FileResult, Finding
from normport.tools.judge import sentence
from normport.tools.proof import Equivalence
from normport.tools.tree import SourceTree

WIDTH = 72
"""Columns of a commit message's text, as git's own documentation has them."""

MODEL_FOLDERS = ("vllm/model_executor/models", "vllm/models")


def model_label(path: str) -> str:
    """``muse_glimmer`` for ``vllm/model_executor/models/muse_glimmer.py``."""
    for folder in MODEL_FOLDERS:
        if path.startswith(f"{folder}/"):
            path = path.removeprefix(f"{folder}/")
            break
    return str(PurePosixPath(path).with_suffix(""))


def patch_name(path: str, suffix: str) -> str:
    """File-name stem of the patch of one model file, e.g. ``muse-glimmer-standard-norms``."""
    return f"{model_label(path).replace('/', '-').replace('_', '-')}-{suffix}"


def rewrite_subject(path: str) -> str:
    """The subject of the commit that converts the sites of one model file."""
    return _subject(path, "Declare standard norm layers in", "Use standard norms in")


def unsafe_subject(path: str) -> str:
    """The subject of the optional commit for one model file."""
    long = "Take the run's dtype for the norm weights of"
    return _subject(path, long, "Use the run's dtype in the norms of")


def _subject(path: str, *verbs: str) -> str:
    """The first wording that fits into ``WIDTH``; else the label is cut at its front."""
    label = model_label(path)
    labels = [label, *(label.split("/", cut)[-1] for cut in range(1, label.count("/") + 1))]
    subjects = [f"[Model] {verb} {name}" for name in labels for verb in verbs]
    return next((s for s in subjects if len(s) <= WIDTH), f"{subjects[-1][: WIDTH - 3]}...")


def rewrite_why(result: FileResult, tree: SourceTree, dispatch: BackportResult) -> str:
    """The body of the commit that converts the applied sites of one file.

    dispatch: what the backport found in ``tree``, for what GemmaRMSNorm does on XPU.
    """
    assert result.change is not None
    applied = [
        (site, finding)
        for site, finding in zip(result.sites, result.findings, strict=True)
        if finding.applied
    ]
    norms = list(dict.fromkeys(site.norm for site, _ in applied))
    classes = listed([f"`{norm}`" for norm in norms])
    one = len(norms) == 1
    paragraphs = [
        f"{classes} {'is a plain torch module' if one else 'are plain torch modules'}, so vLLM's "
        f"per-device dispatch does not see the {_norms(len(applied))} built from "
        f"{'it' if one else 'them'}, and no platform can put its kernel there. "
        f"{_what_each_becomes([finding for _, finding in applied])} Parameter names, and with "
        "them the checkpoint's keys, stay.",
        _targets(applied),
    ]
    paragraphs += [f"{who}: {reason}" for reason, who in _reasons(applied)]
    paragraphs += _initial_values([site for site, _ in applied])
    paragraphs += _float32_checkpoint([finding for _, finding in applied])
    if result.lost_comments:
        paragraphs.append("The comments inside the removed class go with it.")
    sites = [site for site, _ in applied]
    paragraphs += where_it_matters(
        sites, result.change.path, tree, dispatch, proven=any(f.equivalence for _, f in applied)
    )
    return "\n\n".join(wrapped(paragraph) for paragraph in paragraphs)


def unsafe_why(result: FileResult) -> str:
    """The body of the optional commit: the variants that are equal within the bound only."""
    unsafe = [
        (site, finding)
        for site, finding in zip(result.sites, result.findings, strict=True)
        if finding.applied and finding.safety == "unsafe"
    ]
    paragraphs = [
        "Optional, on top of the series: these sites are declared without a dtype of their own, "
        "so that fused kernels, which want the weight in the input's dtype, can take them. The "
        "model's own norm multiplies by the weight in float32 and rounds once; in float16 and "
        "bfloat16 this one rounds before it multiplies as well, and the results differ by that.",
        _targets(unsafe),
    ]
    bounds: dict[str, list[str]] = {}
    for site, finding in unsafe:
        if finding.equivalence is not None and finding.equivalence.reason:
            reason = _without_start(site, finding.equivalence.reason)
            bounds.setdefault(sentence(reason), []).append(about(site))
    paragraphs += [f"{listed(list(dict.fromkeys(who)))}: {why}" for why, who in bounds.items()]
    paragraphs.append(NATIVE_ONLY)
    return "\n\n".join(wrapped(paragraph) for paragraph in paragraphs)


def proof_trailers(findings: Sequence[Finding], tree: SourceTree) -> tuple[tuple[str, str], ...]:
    """One trailer per dtype with the worst distance over all sites, and one for the partner."""
    return trailers_of([f.equivalence for f in findings if f.equivalence is not None], tree)


def trailers_of(
    equivalences: Sequence[Equivalence], tree: SourceTree
) -> tuple[tuple[str, str], ...]:
    """The same for what was found about any cases."""
    proofs = _distinct(equivalences)
    if not proofs:
        return ()
    trailers = []
    for dtype in proofs[0].results:
        ran = [forms for proof in proofs for forms in (proof.results, *proof.forms.values())]
        results = [found[dtype] for found in ran if dtype in found]
        worst = max(result.max_ulp for result in results)
        inputs = sum(result.inputs for result in results)
        elements = sum(result.elements for result in results)
        text = f"max {worst} ulp over {inputs} inputs, {elements} elements"
        differing = sum(result.differing for result in results)
        if differing:
            text += f", {differing} of them differing"
        trailers.append((f"Proof-{dtype}", text))
    whose = f"vLLM {tree.version}" if tree.version else "the tree that is patched"
    trailers.append(("Proof-against", f"the norm layers of {whose}"))
    return tuple(trailers)


def _what_each_becomes(findings: Sequence[Finding]) -> str:
    safeties = {finding.safety for finding in findings}
    if "unproven" in safeties:
        which = "" if safeties == {"unproven"} else " for all of them"
        return (
            "Each becomes the standard layer that its source calls for; that the results stay "
            f"the same was not shown{which}."
        )
    if "unsafe" in safeties:
        return "Each becomes the standard layer that computes the same, for some but for rounding."
    return "Each becomes the standard layer that computes the same."


def _initial_values(sites: Sequence[Site]) -> list[str]:
    """Where the parameter starts as something else than it did."""
    found: dict[tuple[str, str], list[Site]] = {}
    for site in sites:
        if site.computes is None or site.computes.weight == "none" or not site.computes.initial:
            continue
        new = STARTS[_layer(site)]
        if site.computes.initial != new:
            found.setdefault((site.computes.initial, new), []).append(site)
    return [
        f"{listed(abouts(changed))}: the weight's initial value changes from "
        f"{'uninitialized' if old == 'empty' else old} to {new}; the checkpoint overwrites it."
        for (old, new), changed in found.items()
    ]


def _without_start(site: Site, reason: str) -> str:
    """The reason without what ``_initial_values`` says for all sites."""
    start = starts_otherwise(site.computes, _layer(site)) if site.computes else None
    return reason if start is None else reason.replace(start, "").strip()


def _layer(site: Site) -> str:
    return "GemmaRMSNorm" if (site.target or "").startswith("GemmaRMSNorm(") else "RMSNorm"


def _float32_checkpoint(findings: Sequence[Finding]) -> list[str]:
    worst: dict[str, int] = {}
    for finding in findings:
        found = finding.equivalence.float32_checkpoint if finding.equivalence else {}
        for dtype, result in found.items():
            if result.max_ulp:
                worst[dtype] = max(result.max_ulp, worst.get(dtype, 0))
    if not worst:
        return []
    by_distance: dict[int, list[str]] = {}
    for dtype, ulp in worst.items():
        by_distance.setdefault(ulp, []).append(dtype)
    distances = listed([f"{ulp} ulp in {listed(names)}" for ulp, names in by_distance.items()])
    return [
        "A float32 checkpoint served in a narrower dtype is another case: the local class rounded "
        f"its weight on load, a float32 weight is not rounded, and results differ by up to "
        f"{distances}."
    ]


def _reasons(pairs: Sequence[tuple[Site, Finding]]) -> list[tuple[str, str]]:
    """Each distinct reason with the attributes that it concerns."""
    concerned: dict[str, list[str]] = {}
    for site, finding in pairs:
        reason = finding.reason or ""
        if finding.safety == "unproven":
            # What the rule says of equality holds only where it was shown.
            reason = reason.removesuffix(site.reason or "").strip()
        # A commit is read by people who do not run normport: its options mean nothing to them.
        reason = re.sub(r" \([^()]*--[^()]*\)", "", reason)
        reason = _without_start(site, reason)
        if reason:
            concerned.setdefault(reason, []).append(about(site))
    return [(reason, listed(list(dict.fromkeys(names)))) for reason, names in concerned.items()]


def _targets(pairs: Sequence[tuple[Site, Finding]]) -> str:
    return "\n".join(
        textwrap.fill(
            f"{site.attribute or f'line {site.line}'}: {site.target}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for site, _ in pairs
    )


def _distinct(proofs: Sequence[Equivalence]) -> list[Equivalence]:
    """Sites that share a proof case share the result; it counts once."""
    found: list[Equivalence] = []
    for proof in proofs:
        if not any(proof is other for other in found):
            found.append(proof)
    return found


def _norms(number: int) -> str:
    return "one norm" if number == 1 else f"{number} norms"


def wrapped(paragraph: str) -> str:
    if paragraph.startswith("  "):
        return paragraph  # a list of sites, laid out already
    # vLLM spells as Americans do.
    paragraph = re.sub(r"\b(normal|initial)is(e[ds]?|ing)\b", r"\1iz\2", paragraph, flags=re.I)
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
