"""``normport sandwich``: norm-add-norm in a checkout itself, as ``port`` writes it into a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from normport.codemods.analyze import Options
from normport.tools.commands import DONE, LEFT, accepted
from normport.tools.diffs import git_diff
from normport.tools.errors import UserError
from normport.tools.findings import FileError
from normport.tools.judge import NO_EXEC, NO_PROOF
from normport.tools.norm_add_norm import Place, Plan, plan_norm_add_norm
from normport.tools.parallel import Workers
from normport.tools.pipeline import Settings
from normport.tools.port import model_files
from normport.tools.proof import check_torch
from normport.tools.series_commands import resolve_tree
from normport.tools.source_file import look
from normport.tools.terminal import note, progress, say, write_bytes
from normport.tools.tree import SourceTree
from normport.tools.workspace import apply_changes


def sandwich_command(
    checkout: str | None,
    *,
    installed: bool,
    only: Sequence[str],
    diff: bool,
    write: bool,
    no_proof: bool,
    no_exec: bool,
    allow_unproven: bool,
    allow_dirty: bool,
) -> int:
    """Carry out ``sandwich`` and return the exit status: 1 while a place could be converted."""
    if diff and write:
        raise UserError("--diff and --write exclude each other; look at the diff first.")
    without = NO_EXEC if no_exec else NO_PROOF if no_proof else None
    if without is None:
        check_torch()
    tree = resolve_tree(checkout, installed, mend=write)
    if write and not tree.writable:
        raise UserError(f"{tree.origin} lies in the cache and is not changed; name a checkout.")
    plan = _plan(tree, only, without, allow_unproven)
    changes = plan.patch.changes if plan.patch is not None else ()
    made = sum(place.applied for place in plan.places)
    if diff:
        write_bytes(git_diff(changes))
    elif write and changes:
        apply_changes(tree.root, changes, allow_dirty=allow_dirty)
        note(f"Changed {', '.join(change.path for change in changes)}.")
    for place in plan.places:
        if not (diff or (write and place.applied)):
            say(_line(place))
    note(
        f"norm(x) + residual: {made} {'made' if write else 'can be made'} one layer call with the "
        f"next norm, {len(plan.places) - made} left."
    )
    if changes and not (diff or write):
        note("`normport sandwich --diff` shows the change, --write makes it.")
    return LEFT if changes and not write else DONE


def _plan(tree: SourceTree, only: Sequence[str], without: str | None, allow_unproven: bool) -> Plan:
    """UserError: a file cannot be read."""
    with Workers() as workers, progress() as show:
        settings = Settings(
            accept=accepted(unsafe=False, allow_unproven=allow_unproven),
            proof=without is None,
            unproven=without or NO_PROOF,
            proof_required=True,
            workers=workers,
            progress=show,
            trees={tree.root: tree},
        )
        files, errors = model_files(tree, only)
        for error in errors:
            raise UserError(error.message)
        plan = plan_norm_add_norm(tree, files, {}, settings)
    # A named file is told to be broken even where no norm could be.
    for file in dict.fromkeys((*plan.unread, *(file for file in files if file.named))):
        found = look(replace(file, named=True), Options(), edits=False)
        if isinstance(found, FileError):
            raise UserError(found.message)
        if file in plan.unread:
            raise UserError(f"{file.relative} cannot be analysed; leave it out.")
    return plan


def _line(place: Place) -> str:
    site = place.site
    told = site.target if place.applied else site.reason
    return f"{place.path}:{site.line}:{site.column}: {site.code} {site.function}: {told}"
