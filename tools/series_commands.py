"""``backport``, ``port`` and ``series``: run the main job, say what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from normport.tools.commands import DONE, LEFT, accepted, many, parse_dims, say_recovered
from normport.tools.diffs import git_diff
from normport.tools.errors import UserError
from normport.tools.series import Obsolete, PatchStatus, apply_series, status, write_series
from normport.tools.sources import resolve
from normport.tools.terminal import note, progress, say, write_bytes
from normport.tools.tree import SourceTree
from normport.tools.workspace import apply_changes


def _resolve(spec: str | None, installed: bool) -> SourceTree:
    tree = resolve(spec, installed=installed, note=note)
    if tree.writable:
        say_recovered(tree.root)
    return tree


def backport_command(
    checkout: str | None, *, installed: bool, diff: bool, write: bool, allow_dirty: bool
) -> int:
    """Carry out ``backport`` and return the exit status."""
    from normport.tools.backport import backport

    if diff and write:
        raise UserError("--diff and --write exclude each other; look at the diff first.")
    tree = _resolve(checkout, installed)
    if write and not tree.writable:
        raise UserError(f"{tree.origin} lies in the cache and is not changed; name a checkout.")
    result = backport(tree)
    if result.status == "conflict":
        raise UserError(result.reason)
    if result.patch is None:
        note(f"{result.status}: {result.reason}")
        return DONE
    changes = result.patch.changes
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
    note("`normport backport --diff` shows the change, --write makes it.")
    return LEFT


def port_command(
    source: str | None,
    out: Path,
    *,
    installed: bool,
    only: Sequence[str],
    no_proof: bool,
    allow_unproven: bool,
    dims: Sequence[str] | None,
) -> int:
    """Carry out ``port`` and return the exit status."""
    from normport.tools.pipeline import Settings
    from normport.tools.port import plan_series

    tree = _resolve(source, installed)
    with progress() as show:
        settings = Settings(
            accept=accepted(unsafe=False, allow_unproven=allow_unproven),
            proof=not no_proof,
            proof_required=True,
            dims=parse_dims(dims),
            progress=show,
        )
        series = plan_series(tree, only, settings)
    dispatch = series.backport
    if dispatch.patch is None:
        note(f"backport: {dispatch.status}: {dispatch.reason}")
    waiting = [f for f in series.report.findings if f.verdict == "convert" and not f.applied]
    for finding in waiting:
        say(f"left: {finding.path}:{finding.line}: {finding.norm}: {finding.reason}")
    if not series.patches:
        note("There is nothing to port: no series was written.")
        return LEFT if waiting else DONE
    obsolete = [] if dispatch.patch else [Obsolete("xpu-gemma-rms-norm-dispatch", dispatch.reason)]
    manifest = write_series(
        out, tree, series.patches, series.optional, series.evidence, obsolete=obsolete
    )
    for title, entries in (("series", manifest.patches), ("optional", manifest.optional)):
        for entry in entries:
            say(f"{title}: {out / entry.file}: {entry.subject}")
    counts = series.report.counts()
    applied = [finding for finding in series.report.findings if finding.applied]
    say(
        f"norms: {len(applied)} converted in {many(len(series.report.changed), 'model file')}, "
        f"{counts['refuse']} refused, {counts['done']} standard already"
    )
    say(f"apply: git am {out}/*.patch")
    say(f"proof: {out / 'manifest.json'}, and the Proof trailers of each patch")
    return LEFT if waiting else DONE


def series_status_command(checkout: str, series: Path | None) -> int:
    """Carry out ``series status``: 0 unless a patch conflicts or is still to be applied."""
    tree = _resolve(checkout, False)
    folder = _folder(tree, series)
    states = status(tree.root, folder)
    _print(states)
    waiting = (state for state in states if state.order is not None)
    return LEFT if any(state.status in {"clean", "conflict"} for state in waiting) else DONE


def series_apply_command(checkout: str, series: Path | None, *, allow_dirty: bool) -> int:
    """Carry out ``series apply`` and return the exit status."""
    tree = _resolve(checkout, False)
    if not tree.writable:
        raise UserError(f"{tree.origin} lies in the cache and is not changed; name a checkout.")
    _print(apply_series(tree.root, _folder(tree, series), allow_dirty=allow_dirty))
    return DONE


def _print(states: Sequence[PatchStatus]) -> None:
    for state in states:
        say(f"{state.status}: {state.file}: {state.reason}")


def _folder(tree: SourceTree, series: Path | None) -> Path:
    if series is not None:
        return series
    guess = Path("patches") / (tree.version or "unknown")
    if not guess.is_dir():
        raise UserError(f"There is no series in {guess}: name its folder with --series.")
    return guess
