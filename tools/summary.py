"""What ``scan`` and ``rewrite`` say about a run on stderr, when its result has been printed."""

from __future__ import annotations

from collections.abc import Sequence

from normport.tools.findings import Finding, Report, Safety
from normport.tools.plural import many

_OPTIONS: dict[Safety, str] = {"unsafe": "--unsafe", "unproven": "--allow-unproven"}


def counted(report: Report) -> str:
    """How many of what was found."""
    counts = report.counts()
    ours = counts["convert"] + counts["done"] + counts["refuse"]
    line = (
        f"{many(counts['files'], 'file')}, {many(ours, 'norm')}: "
        f"{counts['convert']} to convert, {counts['done']} standard already, "
        f"{counts['refuse']} refused"
    )
    if counts["apart"]:
        line += f"; {counts['apart']} apart (kernels, fusion passes, the standard layers)"
    if counts["ignored"]:
        line += f"; {counts['ignored']} ignored by comments"
    return f"{line}."


def footer(findings: Sequence[Finding], *, told: bool) -> list[str]:
    """How many can be converted with which options, in the manner of ruff.

    told: leave out those that this run's own options accept; they are made, or shown.
    """
    applied = [finding for finding in findings if finding.applied]
    lines = []
    if applied and not told:
        taken = {finding.safety for finding in applied}
        options = "".join(f" {_OPTIONS[safety]}" for safety in _OPTIONS if safety in taken)
        command = f"`normport rewrite --write{options}`"
        lines.append(f"{many(len(applied), 'norm')} can be converted with {command}.")
    more = " more" if applied else ""
    for safety, option in _OPTIONS.items():
        number = sum(
            finding.verdict == "convert" and not finding.applied and finding.safety == safety
            for finding in findings
        )
        if number:
            lines.append(f"{number}{more} with `normport rewrite --write {option}`.")
    return lines
