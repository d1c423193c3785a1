"""GitHub workflow commands, which show findings as annotations on a pull request."""

from __future__ import annotations

from normport.tools.findings import Finding, Report


def render(report: Report) -> str:
    """One ``::error``, ``::warning`` or ``::notice`` line per finding and error.

    What can be converted is a warning, what is refused a notice. GitHub shows ten annotations of
    a kind, so what is a standard layer already takes none.
    """
    lines = [_finding(finding) for finding in report.findings if finding.verdict != "done"]
    lines += [
        f"::error file={_property(error.path)},title=normport::{_message(error.message)}"
        for error in report.errors
    ]
    return "".join(f"{line}\n" for line in lines)


def _finding(finding: Finding) -> str:
    level = "warning" if finding.verdict == "convert" else "notice"
    place = (
        f"file={_property(finding.shown)},line={finding.line},col={finding.column},"
        f"title={_property(f'normport {finding.code}')}"
    )
    return f"::{level} {place}::{_message(sentence(finding))}"


def sentence(finding: Finding) -> str:
    """What the finding says, in one or two sentences without markup."""
    if finding.verdict == "convert":
        text = f"{finding.norm} can become {finding.target} ({finding.safety})."
    elif finding.verdict == "done":
        text = f"{finding.norm} is a standard layer."
    else:
        text = f"{finding.norm} stays."
    if finding.reason:
        text += f" {finding.reason}"
    if finding.lost_comments:
        text += f" Comments that go with the class: {' '.join(finding.lost_comments)}"
    return text


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
