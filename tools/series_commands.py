"""``backport``, ``port`` and ``series``: run the main job, say what came of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from normport.tools.commands import (
    DONE,
    LEFT,
    accepted,
    say_recovered,
)
from normport.tools.diffs import git_diff
from normport.tools.dims import check_dims, parse_dims
from normport.tools.errors import UserError
from normport.tools.git import uncommitted
from normport.tools.judge import NO_EXEC, NO_PROOF
from normport.tools.plural import many
from normport.tools.proof import check_torch
from normport.tools.series import (
    Obsolete,
    PatchStatus,
    apply_series,
    load_manifest,
    status,
    write_series,
)
from normport.tools.series_evidence import probes_of
from normport.tools.sources import resolve
from normport.tools.terminal import note, progress, say, write_bytes
from normport.tools.tree import SourceTree
from normport.tools.workspace import apply_changes, is_test, takes_no_tests, was_interrupted

if TYPE_CHECKING:  # imported for real it would make `series status` slow
    from normport.tools.port import Series


def resolve_tree(spec: str | None, installed: bool, *, mend: bool) -> SourceTree:
    """The tree that the user named.

    mend: complete what an interrupted run left there; otherwise it is only told.
    """
    tree = resolve(spec, installed=installed, note=note)
    if tree.writable and mend:
        say_recovered(tree.root)
    elif tree.writable and was_interrupted(tree.root):
        note(
            f"note: an interrupted run left {tree.root} half changed, which this run leaves as it "
            "is; `normport series apply` completes it, and so does the command that was "
            "interrupted."
        )
    return tree


def backport_command(
    checkout: str | None, *, installed: bool, diff: bool, write: bool, allow_dirty: bool
) -> int:
    """Carry out ``backport`` and return the exit status."""
    from normport.tools.backport import backport

    if diff and write:
        raise UserError("--diff and --write exclude each other; look at the diff first.")
    tree = resolve_tree(checkout, installed, mend=write)
    if write and not tree.writable:
        raise UserError(f"{tree.origin} lies in the cache and is not changed; name a checkout.")
    result = backport(tree)
    if result.status == "conflict":
        raise UserError(result.reason)
    if result.patch is None:
        note(f"{result.status}: {result.reason}")
        return DONE
    changes = result.patch.changes
    if tree.writable and takes_no_tests(tree.root):
        changes = tuple(change for change in changes if not is_test(change.path))
        _tell_tests(tree)
    if diff:
        write_bytes(git_diff(changes))
        return LEFT
    if write:
        apply_changes(tree.root, changes, allow_dirty=allow_dirty)
        note(f"Changed {', '.join(change.path for change in changes)}.")
        return DONE
    say(f"{result.status}: {result.reason}")
    for change in changes:
        say(f"    {'add' if change.before is None else 'change'} {change.path}")
    if tree.writable:
        note("`normport backport --diff` shows the change, --write makes it.")
    else:
        note("`normport backport --diff` shows the change; `normport port` makes a patch of it.")
    return LEFT


def port_command(
    source: str | None,
    out: Path,
    *,
    installed: bool,
    only: Sequence[str],
    no_proof: bool,
    no_exec: bool,
    allow_unproven: bool,
    dims: Sequence[str] | None,
    allow_dirty: bool,
    xpu_norms: bool = False,
    norm_add_norm: bool = False,
) -> int:
    """Carry out ``port`` and return the exit status."""
    from normport.tools.parallel import Workers
    from normport.tools.pipeline import Settings
    from normport.tools.port import plan_series

    without = "--no-exec" if no_exec else "--no-proof" if no_proof else None
    if without is None:
        check_torch()
    tree = resolve_tree(source, installed, mend=True)
    with Workers() as workers, progress() as show:
        settings = Settings(
            accept=accepted(unsafe=False, allow_unproven=allow_unproven),
            proof=without is None,
            unproven=NO_EXEC if no_exec else NO_PROOF,
            proof_required=True,
            dims=parse_dims(dims),
            workers=workers,
            progress=show,
        )
        names = [_in_tree(name, tree) for name in only]
        series = plan_series(tree, names, settings, norm_add_norm=norm_add_norm)
    if xpu_norms:
        from normport.tools.optional_dispatch import optional_dispatch

        series = replace(series, optional=(*series.optional, optional_dispatch(tree)))
    check_dims(settings.dims, series.report)
    dispatch = series.backport
    if dispatch.patch is None:
        note(f"backport: {dispatch.status}: {dispatch.reason}")
    waiting = [f for f in series.report.findings if f.verdict == "convert" and not f.applied]
    for finding in waiting:
        say(f"left: {finding.path}:{finding.line}: {finding.norm}: {finding.reason}")
    if any(finding.safety == "unproven" for finding in waiting):
        note("note: what is unproven is left out; --allow-unproven takes it in.")
    if not (series.patches or series.sandwiches.patch):
        note("There is nothing to port: no series was written.")
        return LEFT if waiting else DONE
    if not allow_dirty:
        _check_committed(tree, series)
    obsolete = [] if dispatch.patch else [Obsolete("xpu-gemma-rms-norm-dispatch", dispatch.reason)]
    manifest = write_series(
        out, tree, series.patches, series.optional, series.evidence, obsolete=obsolete
    )
    for title, entries in (("series", manifest.patches), ("optional", manifest.optional)):
        for entry in entries:
            say(f"{title}: {out / entry.file}: {entry.subject}")
    for probe in probes_of(manifest, out):
        say(f"kept evidence: {probe.summary}")
    counts = series.report.counts()
    applied = [finding for finding in series.report.findings if finding.applied]
    say(
        f"norms in model files: {len(applied)} converted in "
        f"{many(len(series.report.changed), 'file')}, "
        + (f"{len(waiting)} left, " if waiting else "")
        + f"{counts['refuse']} refused, {counts['done']} standard already"
    )
    places = series.sandwiches.places
    if norm_add_norm:
        made = sum(place.applied for place in places)
        say(
            f"norm(x) + residual: {made} made one layer call with the next norm, "
            f"{len(places) - made} left"
        )
    if counts["refuse"]:
        say(f"refused: named with their reasons in {out / 'manifest.json'}")
    # Plain `git am` would take the subject's [XPU] or [Model] for a mark of the mail, and drop it.
    # It is for the checkout, which is another folder, and `git -C` goes there first.
    folder = quote(os.fspath(out)) if out.is_absolute() else f'"$PWD"/{quote(os.fspath(out))}'
    say(f"apply: git -C CHECKOUT am --keep-non-patch {folder}/*.patch")
    say(f"proof: {_proof(series, out, without)}")
    return LEFT if waiting else DONE


def _check_committed(tree: SourceTree, series: Series) -> None:
    """Raises UserError where the series would start from what no commit holds.

    A release, and a vLLM that is installed, are in no commit anyway.
    """
    if not tree.writable or takes_no_tests(tree.root):
        return
    patches = (*series.patches, *series.optional)
    dirty = uncommitted(tree.root, sorted({c.path for p in patches for c in p.changes}))
    if dirty:
        more = f" and {len(dirty) - 1} more" if len(dirty) > 1 else ""
        raise UserError(
            f"{dirty[0]}{more} has uncommitted changes, from which `git am` cannot start: commit "
            "or stash them, or pass --allow-dirty; no series was written."
        )


def _in_tree(name: str, tree: SourceTree) -> str:
    """An ``--only`` that is a path from the current folder, as a path in the tree."""
    path, root = Path(name).resolve(), tree.root.resolve()
    if path.is_file() and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return name


def _proof(series: Series, out: Path, without: str | None) -> str:
    keys = {key for patch in (*series.patches, *series.optional) for key, _ in patch.trailers}
    if any(key.startswith("Proof") for key in keys):
        return f"{out / 'manifest.json'}, and the Proof trailers of the converted models' patches"
    if without is not None:
        return f"none was run ({without})"
    return "none was needed, since no norm was converted"


def series_status_command(checkout: str | None, series: Path | None, *, installed: bool) -> int:
    """Carry out ``series status``: 0 unless a patch conflicts or is still to be applied."""
    tree = resolve_tree(checkout, installed, mend=False)
    folder = _folder(tree, series)
    _tell_release(tree, folder)
    states = status(tree.root, folder)
    _tell_tests(tree)
    for state in states:
        say(f"{state.status}: {state.file}: {state.reason}")
    for probe in probes_of(load_manifest(folder), folder):
        say(f"evidence: {probe.summary}")
    waiting = (state for state in states if state.order is not None)
    return LEFT if any(state.status in {"clean", "conflict"} for state in waiting) else DONE


def series_apply_command(
    checkout: str | None, series: Path | None, *, installed: bool, allow_dirty: bool
) -> int:
    """Carry out ``series apply`` and return the exit status."""
    tree = resolve_tree(checkout, installed, mend=True)
    if not tree.writable:
        raise UserError(f"{tree.origin} lies in the cache and is not changed; name a checkout.")
    folder = _folder(tree, series)
    _tell_release(tree, folder)
    _tell_applied(apply_series(tree.root, folder, allow_dirty=allow_dirty))
    _tell_tests(tree)
    return DONE


def _tell_release(tree: SourceTree, folder: Path) -> None:
    """Say so when the series was made from another release than the checkout is."""
    release = load_manifest(folder).release
    if release is not None and tree.version is not None and release != tree.version:
        note(
            f"note: the series in {folder} was made from vLLM {release}, and {tree.origin} is vLLM "
            f"{tree.version}: whether a patch applies is all that is looked at."
        )


def _tell_tests(tree: SourceTree) -> None:
    if takes_no_tests(tree.root):
        note(f"note: {tree.origin} has no tests/, so what the patches add there is left out.")


def _tell_applied(states: Sequence[PatchStatus]) -> None:
    numbered = [state for state in states if state.order is not None]
    applied = [state.file for state in numbered if state.status == "clean"]
    line = f"applied: {', '.join(applied) or 'nothing'}"
    optional = [state.file for state in states if state.order is None and state.status == "clean"]
    if optional:
        line += f"; optional patches are left: {', '.join(optional)}"
    say(line)
    for state in numbered:
        if state.status != "clean":
            say(f"left out: {state.file}: {state.reason}")


def _folder(tree: SourceTree, series: Path | None) -> Path:
    if series is not None:
        return series
    guess = Path("patches") / (tree.version or "unknown")
    if not guess.is_dir():
        raise UserError(f"There is no series in {guess}: name its folder with --series.")
    return guess
