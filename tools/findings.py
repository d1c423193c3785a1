"""One finding per construction of a norm, and the report that the commands print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from normport.codemods.model import APART, Computes, Site, Verdict
from normport.codemods.suppressions import Complaint
from normport.tools.proof import Equivalence
from normport.tools.tree import FileChange

Safety = Literal["safe", "unsafe", "unproven"]

LOSES = "NP302"
"""The rule of a site whose edit would lose something."""

AS_ONE = "it counts as one site here."
"""How the reason ends of a class that its own file does not construct."""

SCHEMA = 1
"""Version of the JSON of ``scan`` and ``rewrite``; it changes when a field changes meaning."""


@dataclass(frozen=True)
class Finding:
    """What was decided about one site, in the terms of the JSON contract.

    path: relative to the argument's root, with ``/``. line, column: from 1.
    shown: the path as a person in the current folder would type it; not part of the JSON.
    safety: None for a site that is done or refused.
    equivalence: what the proof found; None when nothing ran.
    applied: the site's edit is part of the report's changes; not part of the JSON.
    lost_comments: comments that go with the local class, at its first site that is converted.
    """

    path: str
    shown: str
    line: int
    column: int
    code: str
    norm: str
    computes: Computes | None
    verdict: Verdict
    target: str | None
    safety: Safety | None
    equivalence: Equivalence | None
    reason: str | None
    applied: bool = False
    lost_comments: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether it is no model's norm: a device kernel, a fusion pass, a standard layer's own."""
        return self.code in APART

    def to_json(self) -> dict[str, object]:
        """The finding as the contract spells it."""
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "code": self.code,
            "norm": self.norm,
            "computes": None if self.computes is None else asdict(self.computes),
            "verdict": self.verdict,
            "target": self.target,
            "safety": self.safety,
            "equivalence": None if self.equivalence is None else self.equivalence.to_json(),
            "reason": self.reason,
            "lost_comments": list(self.lost_comments),
        }

    def refused(self, reason: str) -> Finding:
        """The same site, refused after all because its edit would lose something."""
        return replace(
            self,
            code=LOSES,
            verdict="refuse",
            target=None,
            safety=None,
            applied=False,
            reason=reason,
        )


def with_lost_comments(
    findings: Sequence[Finding], before: str, comments: Sequence[str]
) -> list[Finding]:
    """``findings`` of one file, each lost comment at the first converted site of its class.

    before: the file's text. A comment that stands in no class with such a site, for example in a
    removed function, is told at the first converted site of the file.
    """
    found = list(findings)
    first: dict[str, int] = {}
    for number, finding in enumerate(found):
        if finding.applied:
            first.setdefault(finding.norm, number)
    for comment in comments if first else ():
        number = first.get(_holder(before, comment), min(first.values()))
        lost = (*found[number].lost_comments, comment)
        found[number] = replace(found[number], lost_comments=lost)
    return found


def _holder(text: str, comment: str) -> str:
    """The class or function that holds the comment, or stands below it when it is not indented."""
    above, _, below = text.partition(comment)
    if above.endswith("\n") or not above:
        found = _DEFINITION.search(below)
        return found[1] if found else ""
    names = _DEFINITION.findall(above)
    return names[-1] if names else ""


_DEFINITION = re.compile(r"^(?:class|def|async def)[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class FileError:
    """A file or folder that could not be dealt with; ``message`` is one sentence."""

    path: str
    message: str


@dataclass(frozen=True)
class FileResult:
    """One file after analysis: its sites, what was decided, and how it would look afterwards.

    root: the folder that ``change.path`` and the findings' paths are relative to.
    lost_comments: comments that go with a removed class.
    hidden: sites whose finding a comment or the choice of rules keeps out; ``ignored`` of them by
        a comment. complaints: about such comments. source: the file as it was read.
    """

    file: Path
    root: Path
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...] = ()
    change: FileChange | None = None
    removed: tuple[str, ...] = ()
    lost_comments: tuple[str, ...] = ()
    hidden: tuple[Site, ...] = ()
    ignored: int = 0
    complaints: tuple[Complaint, ...] = ()
    source: bytes = b""


@dataclass(frozen=True)
class Report:
    """Everything that one run found.

    files: how many Python files were looked at, including those that hold no norm.
    notes: sentences for stderr that concern the whole run, e.g. that no proof could run.
    """

    results: tuple[FileResult, ...]
    errors: tuple[FileError, ...]
    files: int
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of path, line and column."""
        found = [finding for result in self.results for finding in result.findings]
        return sorted(found, key=lambda f: (f.shown, f.line, f.column))

    @property
    def changed(self) -> list[FileResult]:
        """The files that the chosen conversions change."""
        return [result for result in self.results if result.change is not None]

    def without_applied(self) -> Report:
        """The report as it stands once the changes have been written: what is left."""
        results = (
            replace(result, findings=tuple(f for f in result.findings if not f.applied))
            for result in self.results
        )
        return replace(self, results=tuple(results))

    @property
    def complaints(self) -> list[Complaint]:
        """What is wrong with the ``# normport: ignore`` comments of all files."""
        found = [complaint for result in self.results for complaint in result.complaints]
        return sorted(found, key=lambda c: (c.shown, c.line, c.column))

    def counts(self) -> dict[str, int]:
        """The numbers of the summary; ``convert`` is split by safety, ``ignored`` by comments.

        What is listed apart is among ``findings`` and ``apart`` only.
        """
        found = self.findings
        return {
            "files": self.files,
            "findings": len(found),
            **count(found),
            "ignored": sum(result.ignored for result in self.results),
            "errors": len(self.errors),
        }

    def to_json(self) -> dict[str, object]:
        """The object that ``--output-format json`` prints."""
        return {
            "schema": SCHEMA,
            "findings": [finding.to_json() for finding in self.findings],
            "errors": [asdict(error) for error in self.errors],
            "summary": {
                **self.counts(),
                "directories": by_directory((f.path, f) for f in self.findings),
                "unused_ignores": [
                    complaint for result in self.results for complaint in _complaints(result)
                ],
            },
        }


def joined(reports: Sequence[Report]) -> Report:
    """The reports of several runs, whose files differ, as one."""
    return Report(
        results=tuple(result for report in reports for result in report.results),
        errors=tuple(error for report in reports for error in report.errors),
        files=sum(report.files for report in reports),
        notes=tuple(dict.fromkeys(line for report in reports for line in report.notes)),
    )


COUNTED = {
    "norms": "norms",
    "to convert": "convert",
    "refused": "refuse",
    "standard already": "done",
    "apart": "apart",
}
"""The counts of a directory in the words for people, and their keys."""


def _complaints(result: FileResult) -> list[dict[str, object]]:
    path = result.file.relative_to(result.root).as_posix()
    return [
        {"path": path, "line": c.line, "column": c.column, "message": c.message}
        for c in result.complaints
    ]


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """How many norms and sites of each verdict and safety; ``norms`` are the local ones."""
    ours = [finding for finding in findings if not finding.apart]
    verdicts = Counter(finding.verdict for finding in ours)
    safeties = Counter(f.safety for f in ours if f.verdict == "convert")
    return {
        "norms": len({(f.shown, f.norm) for f in ours if f.verdict != "done"}),
        "convert": verdicts["convert"],
        "done": verdicts["done"],
        "refuse": verdicts["refuse"],
        "safe": safeties["safe"],
        "unsafe": safeties["unsafe"],
        "unproven": safeties["unproven"],
        "apart": len(findings) - len(ours),
    }


def by_directory(placed: Iterable[tuple[str, Finding]]) -> dict[str, dict[str, int]]:
    """``count`` for each directory of the paths given with the findings."""
    found: dict[str, list[Finding]] = {}
    for path, finding in placed:
        found.setdefault(path.rpartition("/")[0] or ".", []).append(finding)
    return {directory: count(found[directory]) for directory in sorted(found)}
