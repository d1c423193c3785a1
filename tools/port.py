"""The main job without its printing: what the series for one source tree consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normport.tools.backport import BackportResult, backport
from normport.tools.discover import PythonFile, discover
from normport.tools.errors import UserError
from normport.tools.findings import FileError, FileResult, Finding, Report
from normport.tools.messages import (
    MODEL_FOLDERS,
    patch_name,
    proof_trailers,
    rewrite_subject,
    rewrite_why,
    unsafe_subject,
    unsafe_why,
)
from normport.tools.norm_add_norm import Plan, plan_norm_add_norm
from normport.tools.pipeline import Settings, analyse, conclude, prove_all
from normport.tools.proof import BOUND
from normport.tools.sharing import grouped, united
from normport.tools.tree import SIGN_OFF, FileChange, Patch, SourceTree

STANDARD, ROUNDED = "standard-norms", "rounded-weight"
"""Ends of the patches' names."""


@dataclass(frozen=True)
class Series:
    """The patches for one tree, in order, and what they rest on.

    optional: patches on top of the others, each for itself.
    evidence: goes into the manifest; holds nothing that differs from one run to the next.
    sandwiches: what ``norm(x) + residual`` became where that was asked for.
    """

    backport: BackportResult
    patches: tuple[Patch, ...]
    optional: tuple[Patch, ...]
    evidence: Mapping[str, object]
    report: Report
    sandwiches: Plan


def plan_series(
    tree: SourceTree, only: Sequence[str], settings: Settings, *, norm_add_norm: bool = False
) -> Series:
    """Everything the series for ``tree`` needs; nothing is written.

    only: model files to port, relative to the tree or by their name; empty for all.
    norm_add_norm: make the optional patch of that name too.
    Raises UserError when a file cannot be read, the proof cannot run, or the tree holds an
    XPU dispatch that is neither the release's nor a finished one.
    """
    dispatch = backport(tree)
    if dispatch.status == "conflict":
        raise UserError(dispatch.reason)
    files, errors = model_files(tree, only)
    settings = replace(settings, trees={tree.root: tree})
    analysis = analyse(files, errors, settings)
    convertible = [source for source in analysis.sources if source.convertible]
    variants = replace(
        settings, unsafe=True, accept=settings.accept | {"unsafe"}, progress=lambda *_: None
    )
    alternative = analyse([source.file for source in convertible], [], variants)
    alternative = alternative.without({source.file: source.sites for source in convertible})
    for error in (*analysis.errors, *alternative.errors):
        raise UserError(error.message)
    proofs = prove_all([analysis, alternative], settings)
    report = conclude(analysis, proofs, settings)
    bounded = conclude(alternative, proofs, variants)
    patches = [dispatch.patch] if dispatch.patch is not None else []
    groups = grouped(report.changed)
    patches += [_patch(group, tree, dispatch) for group in groups]
    optional = _optional(report, bounded, tree)
    evidence = _evidence(report, bounded, optional)
    sandwiches = Plan()
    if norm_add_norm:
        after = {change.path: change.after for patch in patches for change in patch.changes}
        sandwiches = plan_norm_add_norm(tree, files, after, settings)
        optional += [sandwiches.patch] if sandwiches.patch else []
        evidence |= sandwiches.evidence
    return Series(
        backport=dispatch,
        patches=tuple(patches),
        optional=tuple(optional),
        evidence=evidence,
        report=report,
        sandwiches=sandwiches,
    )


def model_files(tree: SourceTree, only: Sequence[str]) -> tuple[list[PythonFile], list[FileError]]:
    """The tree's model files, or those of them that ``only`` names.

    Raises UserError when the tree has no model files, or none that ``only`` names.
    """
    folders = [tree.root / folder for folder in MODEL_FOLDERS if (tree.root / folder).is_dir()]
    if not folders:
        raise UserError(f"{tree.origin} has no vllm/model_executor/models; name a vLLM tree.")
    found, errors = discover(folders)
    files = [PythonFile(file.path, tree.root, tree.root, named=False) for file in found]
    if not only:
        return files, errors
    chosen = []
    for name in only:
        matching = [file for file in files if _names(name, file, tree.root)]
        if not matching:
            raise UserError(f"--only {name}: {tree.origin} has no model file of that name.")
        chosen += [replace(file, named=True) for file in matching]
    return list(dict.fromkeys(chosen)), errors


def _names(name: str, file: PythonFile, root: Path) -> bool:
    wanted = Path(name)
    if wanted.is_absolute():
        return wanted == root / file.relative
    wanted = wanted if wanted.suffix == ".py" else wanted.with_name(f"{wanted.name}.py")
    return f"/{file.relative}".endswith(f"/{wanted.as_posix().removeprefix('./')}")


def _patch(group: Sequence[FileResult], tree: SourceTree, dispatch: BackportResult) -> Patch:
    """One patch for files that change together; the first of them defines the norms."""
    result = group[0]
    assert result.change is not None
    applied = [finding for one in group for finding in one.findings if finding.applied]
    return Patch(
        name=patch_name(result.change.path, STANDARD),
        subject=rewrite_subject(result.change.path),
        why=rewrite_why(united(group), tree, dispatch),
        trailers=(*proof_trailers(applied, tree), SIGN_OFF),
        changes=tuple(one.change for one in group if one.change is not None),
        droppable=f"vLLM's own {result.change.path} declares the standard layers.",
    )


def _optional(report: Report, bounded: Report, tree: SourceTree) -> list[Patch]:
    """Per file with an unsafe variant: from what the series leaves to that variant."""
    after = {result.file: result.change for result in report.changed}
    patches = []
    for result in bounded.changed:
        unsafe = [finding for finding in result.findings if _is_variant(finding)]
        assert result.change is not None
        before = after.get(result.file)
        start = before.after if before is not None else result.change.before
        if not unsafe or start == result.change.after:
            continue
        path = result.change.path
        patches.append(
            Patch(
                name=patch_name(path, ROUNDED),
                subject=unsafe_subject(path),
                why=unsafe_why(result),
                trailers=(*proof_trailers(unsafe, tree), SIGN_OFF),
                changes=(FileChange(path, start, result.change.after),),
                droppable="the bit-equal variant is wanted, or vLLM declares this one itself.",
            )
        )
    return patches


def _evidence(report: Report, bounded: Report, optional: Sequence[Patch]) -> dict[str, object]:
    """By patch name what was proven for it; under ``bound`` and ``left`` what holds for all.

    ``left`` are the sites that no patch of the series converts, with the reason for each.
    """
    evidence: dict[str, object] = {"bound": BOUND}
    for group in grouped(report.changed):
        assert group[0].change is not None
        name = patch_name(group[0].change.path, STANDARD)
        evidence[name] = [f.to_json() for one in group for f in one.findings if f.applied]
    wanted = {patch.name for patch in optional}
    for result in bounded.changed:
        assert result.change is not None
        name = patch_name(result.change.path, ROUNDED)
        if name in wanted:
            evidence[name] = [f.to_json() for f in result.findings if _is_variant(f)]
    evidence["left"] = [
        finding.to_json()
        for finding in report.findings
        if finding.verdict != "done" and not finding.applied
    ]
    return evidence


def _is_variant(finding: Finding) -> bool:
    return finding.applied and finding.safety == "unsafe"
