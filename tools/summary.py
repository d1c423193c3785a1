"""What ``scan`` and ``rewrite`` say about a run on stderr, when its result has been printed."""

from __future__ import annotations

from collections import Counter
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


def footer(
    findings: Sequence[Finding], *, told: bool, without: str | None = None, declined: bool = False
) -> list[str]:
    """How many can be converted with which options, in the manner of ruff.

    told: leave out those that this run's own options accept; they are made, or shown.
    without: the option by which this run proved nothing. declined: count safe ones that a person
    left as well.
    """
    applied = [finding for finding in findings if finding.applied]
    lines = []
    if applied and not told:
        taken = {finding.safety for finding in applied}
        options = "".join(f" {_OPTIONS[safety]}" for safety in _OPTIONS if safety in taken)
        command = f"`normport rewrite --write{options}`"
        lines.append(f"{many(len(applied), 'norm')} can be converted with {command}.")
    left = Counter(f.safety for f in findings if f.verdict == "convert" and not f.applied)
    if declined and left["safe"]:
        them = "it" if left["safe"] == 1 else "them"
        how = f"`normport rewrite --write` converts {them}"
        lines.append(f"{many(left['safe'], 'norm')} left; {how}.")
    more = " more" if applied else ""
    for safety, option in _OPTIONS.items():
        number = left[safety]
        if number and safety == "unproven" and without is not None:
            lines.append(f"{number}{more} not proven: run again without {without}.")
        elif number:
            lines.append(f"{number}{more} with `normport rewrite --write {option}`.")
    return lines
