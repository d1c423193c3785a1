"""GitHub workflow commands, which show findings as annotations on a pull request."""

from __future__ import annotations

from normport.tools.findings import COUNTED, Finding, Report, by_directory, count


def render(report: Report) -> str:
    """One ``::error``, ``::warning`` or ``::notice`` line per finding and error, then the counts,
    which GitHub shows folded in the log.

    What can be converted is a warning, what is refused a notice. GitHub shows ten annotations of
    a kind, so what is a standard layer already takes none, and what is listed apart comes last.
    """
    listed = [finding for finding in report.findings if finding.verdict != "done"]
    lines = [_finding(finding) for finding in sorted(listed, key=lambda f: f.apart)]
    lines += [
        f"::warning file={_property(c.shown)},line={c.line},col={c.column},title=normport::"
        f"{_message(c.message)}"
        for c in report.complaints
    ]
    lines += [
        f"::error file={_property(error.path)},title=normport::{_message(error.message)}"
        for error in report.errors
    ]
    if report.findings:
        lines += ["::group::normport: counts", *_counts(report), "::endgroup::"]
    return "".join(f"{line}\n" for line in lines)


def _counts(report: Report) -> list[str]:
    directories = by_directory((finding.shown, finding) for finding in report.findings)
    numbers = {**directories, "total": count(report.findings)}
    # The runner takes a line for a command only where it starts with two colons.
    return [f"normport: {_message(name)}: {_listed(found)}" for name, found in numbers.items()]


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {found[key]}" for name, key in COUNTED.items())


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
    elif finding.apart:
        text = f"{finding.norm} is no model's norm."
    elif finding.verdict == "done":
        text = f"{finding.norm} is a standard layer."
    else:
        text = f"{finding.norm} stays."
    if finding.reason:
        # A refusal's reason begins with the name, which has been said.
        about = f"{finding.norm}: "
        told = finding.reason.removeprefix(about)
        text = f"{text.removesuffix('.')}: {told}" if told != finding.reason else f"{text} {told}"
    if finding.lost_comments:
        text += f" Comments that go with the class: {' '.join(finding.lost_comments)}"
    return text


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
