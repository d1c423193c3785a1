"""Commit messages of the patches: why, what each site becomes, and what was proven."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath

from normport.codemods.model import Site
from normport.tools.findings import FileResult, Finding
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


def rewrite_why(result: FileResult) -> str:
    """The body of the commit that converts the applied sites of one file."""
    applied = [
        (site, finding)
        for site, finding in zip(result.sites, result.findings, strict=True)
        if finding.applied
    ]
    norms = list(dict.fromkeys(site.norm for site, _ in applied))
    classes = _listed([f"`{norm}`" for norm in norms])
    one = len(norms) == 1
    paragraphs = [
        f"{classes} {'is a plain torch module' if one else 'are plain torch modules'}, so vLLM's "
        f"per-device dispatch does not see the {_norms(len(applied))} built from "
        f"{'it' if one else 'them'}, and no platform can put its kernel there. Each "
        "now is the standard layer that computes the same; parameter names, and with them the "
        "checkpoint's keys, stay.",
        "\n".join(f"  {_site(site)}" for site, _ in applied),
    ]
    for reason, about in _reasons(applied):
        paragraphs.append(f"{about}: {reason}")
    paragraphs += _float32_checkpoint([finding for _, finding in applied])
    if result.lost_comments:
        paragraphs.append("The comments inside the removed class go with it.")
    paragraphs.append(_where_it_matters([site for site, _ in applied]))
    return "\n\n".join(_wrapped(paragraph) for paragraph in paragraphs)


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
        "result then differs from the model's own norm by rounding.",
        "\n".join(f"  {_site(site)}" for site, _ in unsafe),
    ]
    paragraphs += [f"{about}: {reason}" for reason, about in _reasons(unsafe)]
    return "\n\n".join(_wrapped(paragraph) for paragraph in paragraphs)


def proof_trailers(findings: Sequence[Finding], tree: SourceTree) -> tuple[tuple[str, str], ...]:
    """One trailer per dtype with the worst distance over all sites, and one for the partner."""
    proofs = _distinct([f.equivalence for f in findings if f.equivalence is not None])
    if not proofs:
        return ()
    trailers = []
    for dtype in proofs[0].results:
        results = [proof.results[dtype] for proof in proofs if dtype in proof.results]
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


def _where_it_matters(sites: Sequence[Site]) -> str:
    """What the patch changes on XPU, by execution mode; see vLLM's ``custom_ops``."""
    gemma = any((site.target or "").startswith("GemmaRMSNorm(") for site in sites)
    plain = any((site.target or "").startswith("RMSNorm(") for site in sites)
    eager = ["RMSNorm runs `_C.rms_norm` where it takes the weight"] if plain else []
    if gemma:
        eager.append("GemmaRMSNorm runs `_C.gemma_rms_norm` once vLLM has its XPU dispatch")
    ops = [name for name, used in (("gemma_rms_norm", gemma), ("rms_norm", plain)) if used]
    enabled = ", ".join(["none", *(f"+{name}" for name in ops)])
    return (
        f"On XPU this changes eager execution: {' and '.join(eager)}. In the default compile mode "
        "Inductor fuses the norms as it did before; a layer's own dispatch runs there only when "
        f"it is enabled as well (custom_ops: {enabled}). No XPU was at hand: the dispatch was run "
        "with stand-ins of the kernels on a CPU."
    )


def _float32_checkpoint(findings: Sequence[Finding]) -> list[str]:
    worst: dict[str, int] = {}
    for finding in findings:
        found = finding.equivalence.float32_checkpoint if finding.equivalence else {}
        for dtype, result in found.items():
            if result.max_ulp:
                worst[dtype] = max(result.max_ulp, worst.get(dtype, 0))
    if not worst:
        return []
    distances = _listed([f"{ulp} ulp in {dtype}" for dtype, ulp in worst.items()])
    return [
        "A float32 checkpoint served in a narrower dtype is another case: the local class rounded "
        f"its weight on load, a float32 weight is not rounded, and results differ by up to "
        f"{distances}."
    ]


def _reasons(pairs: Sequence[tuple[Site, Finding]]) -> list[tuple[str, str]]:
    """Each distinct reason with the attributes that it concerns."""
    about: dict[str, list[str]] = {}
    for site, finding in pairs:
        if finding.reason:
            about.setdefault(finding.reason, []).append(f"`{site.attribute or site.norm}`")
    return [(reason, _listed(list(dict.fromkeys(names)))) for reason, names in about.items()]


def _site(site: Site) -> str:
    return f"{site.attribute or f'line {site.line}'}: {site.target}"


def _distinct(proofs: Sequence[Equivalence]) -> list[Equivalence]:
    """Sites that share a proof case share the result; it counts once."""
    found: list[Equivalence] = []
    for proof in proofs:
        if not any(proof is other for other in found):
            found.append(proof)
    return found


def _norms(number: int) -> str:
    return "one norm" if number == 1 else f"{number} norms"


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _wrapped(paragraph: str) -> str:
    if paragraph.startswith("  "):
        return paragraph  # a list of sites: one line each
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
