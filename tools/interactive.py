"""``rewrite --interactive``: each conversion is shown with its proof, and a person decides."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from normport.codemods.model import RefusedEdit
from normport.tools.choice import Offer
from normport.tools.diffs import git_diff
from normport.tools.errors import UserError
from normport.tools.findings import Finding, Report
from normport.tools.formats.text_format import ulps
from normport.tools.inputs import Batch
from normport.tools.judge import Proofs
from normport.tools.pipeline import Analysis, Settings, analyse, conclude, prove_all
from normport.tools.plural import many
from normport.tools.terminal import colour_wanted, note, say, write_text
from normport.tools.tree import FileChange
from normport.tools.workspace import check_committed

HELP = """\
    y  convert this site
    n  leave it as it is
    a  convert this site and all that follow, in this file and the others
    q  leave this site and all that follow; what was accepted is written
    ?  this list
"""
_COLOURS = {"+": "32", "-": "31", "@": "36"}
_CONTROLS = {code: f"^{chr(code + 64)}" for code in range(32) if chr(code) not in "\t\n"}


Prepared = tuple[Analysis, Proofs, Settings]


def prepare(batch: Batch, settings: Settings) -> Prepared:
    """All that takes time, so that no question makes anybody wait."""
    analysis = analyse(batch.files, batch.errors, settings)
    return analysis, prove_all([analysis], settings), settings


def ask(prepared: Sequence[Prepared], *, allow_dirty: bool) -> list[Report]:
    """Ask about each conversion; the reports' changes are the accepted ones.

    Raises UserError when a file in question has uncommitted changes and that is not allowed:
    before the first question, since the answers would be lost.
    """
    quiet = [(a, p, replace(s, progress=lambda *_: None)) for a, p, s in prepared]
    possible = [conclude(*parts) for parts in quiet]
    if any(report.errors for report in possible):
        return possible
    for result in (result for report in possible for result in report.changed):
        paths = [result.file.relative_to(result.root).as_posix()]
        check_committed(result.root, paths, allow_dirty=allow_dirty)
    questions = Questions()
    try:
        reports = [conclude(a, p, replace(s, choose=questions.choose)) for a, p, s in quiet]
    except KeyboardInterrupt:
        say("")
        note("Interrupted: nothing was written.")
        raise
    made = sum(finding.applied for report in reports for finding in report.findings)
    for line in questions.closing(made):
        note(line)
    return reports


def check_terminal() -> None:
    """Raises UserError unless somebody can see the questions and answer them."""
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        raise UserError(
            "--interactive asks in a terminal, and stdin or stdout is none: look at the changes "
            "with --diff, then make them with --write."
        )


def _is_terminal(stream: object) -> bool:
    # Typed as always there, but None where the descriptor was closed.
    return getattr(stream, "isatty", bool)()


class Questions:
    """Asks about one conversion after the other.

    accepted, declined: how many were so far. alone: those that could not be offered, because they
    do not go without others. skipped: those not asked about, after q or the end of the input,
    which stopped it.
    """

    def __init__(self) -> None:
        self.accepted = self.declined = self.alone = self.skipped = 0
        self.stopped = False
        self._rest = False

    def choose(self, offer: Offer) -> Collection[int]:
        """Which of the offer's conversions go in."""
        chosen: list[int] = []
        before = offer.source
        for count, (number, finding) in enumerate(offer.findings.items(), 1):
            if self.stopped:
                self.skipped += 1
                continue
            try:
                after = offer.edit([*chosen, number])
            except RefusedEdit as error:
                say(f"{_place(finding)} stays: not without the others ({error}).")
                self.alone += 1
                continue
            where = f"{_place(finding)} ({count} of {len(offer.findings)})"
            if self._rest or self._wanted(finding, where, before, after, offer.shown):
                chosen.append(number)
                before = after
            else:
                self.declined += 1
        self.accepted += len(chosen)
        return chosen

    def closing(self, made: int) -> list[str]:
        """What became of all that there was to ask about; made: how many go in."""
        numbers = {
            "accepted": self.accepted,
            "declined": self.declined,
            "not asked about": self.skipped,
            "not to be had without others": self.alone,
        }
        total = sum(numbers.values())
        if not total:
            return []
        told = ", ".join(f"{number} {what}" for what, number in numbers.items() if number)
        lines = [f"{many(total, 'conversion')}: {told}."]
        if made < self.accepted:
            left = f"{self.accepted - made} of the accepted"
            lines.append(f"{left} would change what was not accepted as well, and is left.")
        if self.stopped and made:
            lines.append(f"Stopped; writing the {many(made, 'conversion')} accepted so far.")
        return lines

    def _wanted(
        self, finding: Finding, where: str, before: bytes, after: bytes, shown: str
    ) -> bool:
        write_text(_coloured(git_diff([FileChange(shown, before, after)])))
        say(f"{finding.code}: {_proof(finding)}")
        while True:
            write_text(f"{where} {finding.norm}: convert it [y,n,a,q,?]? ")
            answer = sys.stdin.readline()
            match answer.strip().lower()[:1]:
                case "y":
                    return True
                case "n":
                    return False
                case "a":
                    self._rest = True
                    return True
                case "q":
                    self.stopped = True
                    return False
                case "" if not answer:  # the input ended
                    say("")
                    self.stopped = True
                    return False
                case _:
                    write_text(HELP)


def _place(finding: Finding) -> str:
    return f"{finding.shown}:{finding.line}:{finding.column}"


def _proof(finding: Finding) -> str:
    found = ulps(finding.equivalence) if finding.equivalence is not None else "not proven"
    parts = [f"{found} ({finding.safety}).", finding.reason or ""]
    lost = finding.lost_comments
    if lost:
        parts.append(f"Lost with the class: {' '.join(lost)}")
    return " ".join(part for part in parts if part)


def _coloured(diff: bytes) -> str:
    """The diff for a terminal: what a source holds must not steer it."""
    text = diff.decode("utf-8", "backslashreplace").translate(_CONTROLS)
    if not colour_wanted():
        return text
    lines = (
        f"\x1b[{_COLOURS[line[0]]}m{line}\x1b[0m" if line[:1] in _COLOURS else line
        for line in text.split("\n")
    )
    return "\n".join(lines)
