"""Which sites of a file are dealt with: what its comments, the choice of rules and a person say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from normport.codemods.analyze import decode
from normport.codemods.model import Site
from normport.codemods.suppressions import Complaint, Suppressions, may_hold_comment
from normport.tools.findings import Finding
from normport.tools.judge import DIFFERENT, Judgement
from normport.tools.selection import Selection


@dataclass(frozen=True)
class Offer:
    """The conversions of one file that may go in, by the number of their site.

    edit: the file's bytes with those of the given numbers carried out; RefusedEdit when they
        cannot be without the others.
    """

    shown: str
    source: bytes
    findings: Mapping[int, Finding]
    edit: Callable[[Collection[int]], bytes]


class Choice:
    """Which findings of one file are kept out, by its comments and by the choice of rules.

    ignored: numbers of the sites that a comment keeps out.
    """

    def __init__(
        self, sites: Sequence[Site], source: bytes, shown: str, selection: Selection
    ) -> None:
        self._sites = sites
        self._comments = Suppressions(_text(source), shown)
        self._selection = selection
        self._deselected: set[int] = set()
        self.ignored: set[int] = set()

    def look(self, findings: Sequence[Finding]) -> None:
        """Look at all findings; again, once the codes of some have changed."""
        for number, (site, finding) in enumerate(zip(self._sites, findings, strict=True)):
            if self._comments.hides(site, finding.code):
                self.ignored.add(number)
            if not self._selection.keeps(finding.code):
                self._deselected.add(number)

    def shows(self, number: int) -> bool:
        """Whether the finding of this number is reported, and may be carried out."""
        return number not in self.ignored and number not in self._deselected

    def complaints(self, judged: Sequence[Judgement]) -> tuple[Complaint, ...]:
        """About the comments; a proof that could not be run may have made one unused."""
        pairs = zip(self._sites, judged, strict=True)
        undecided = [(site, DIFFERENT) for site, j in pairs if j.safety == "unproven"]
        return tuple(self._comments.complaints(undecided))


def _text(source: bytes) -> str:
    """The source text where comments may be in it, and nothing where it cannot be decoded."""
    try:
        return decode(source) if may_hold_comment(source) else ""
    except (SyntaxError, UnicodeDecodeError):
        return ""
