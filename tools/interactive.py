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
    if questions.stopped and questions.accepted:
        note(f"Stopped; writing the {many(questions.accepted, 'conversion')} accepted so far.")
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

    accepted: how many were accepted so far. stopped: q was answered, or the input ended.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.stopped = False
        self._rest = False

    def choose(self, offer: Offer) -> Collection[int]:
        """Which of the offer's conversions go in."""
        chosen: list[int] = []
        before = offer.source
        for count, (number, finding) in enumerate(offer.findings.items(), 1):
            if self.stopped:
                break
            try:
                after = offer.edit([*chosen, number])
            except RefusedEdit as error:
                say(f"{_place(finding)} stays: not without the others ({error}).")
                continue
            where = f"{_place(finding)} ({count} of {len(offer.findings)})"
            if self._rest or self._wanted(finding, where, before, after, offer.shown):
                chosen.append(number)
                before = after
        self.accepted += len(chosen)
        return chosen

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
