"""Findings for people: one line each with its place, then what it computes and why."""

from __future__ import annotations

from normport.codemods.model import Computes
from normport.tools.findings import Finding, Report
from normport.tools.formats.look import Look
from normport.tools.proof import Equivalence

COLOURS = {"convert": "green", "done": "dim", "refuse": "yellow"}


def render(report: Report, look: Look) -> str:
    """``path:line:column: CODE norm: ...`` and indented lines below.

    Standard layers that are there already are mostly only counted, in the summary, as is what no
    rewrite concerns. Nothing is wrapped: an editor and grep must find a place on one line.
    """
    listed = [f for f in report.findings if not f.apart and (look.show_done or f.verdict != "done")]
    return "".join(_finding(finding, look.color) for finding in listed)


def _finding(finding: Finding, color: bool) -> str:
    place = f"{finding.shown}:{finding.line}:{finding.column}:"
    lines = [
        f"{_paint(place, 'bold', color)} {finding.code} {finding.norm}: {_verdict(finding, color)}"
    ]
    if finding.computes is not None:
        lines.append(f"    computes: {describe(finding.computes)}")
    if finding.equivalence is not None:
        lines.append(f"    proof: {ulps(finding.equivalence)}")
    if finding.reason:
        lines.append(f"    {finding.reason}")
    lines += [f"    lost with the class: {comment}" for comment in finding.lost_comments]
    return "".join(f"{line}\n" for line in lines)


def _verdict(finding: Finding, color: bool) -> str:
    verdict = _paint(finding.verdict, COLOURS[finding.verdict], color)
    if finding.verdict == "convert":
        return f"{verdict} ({finding.safety}) to {finding.target}"
    return verdict


def describe(computes: Computes) -> str:
    """What a norm computes in a few words, e.g. ``weightless, eps config.rms_norm_eps``."""
    weight = {
        "none": "weightless",
        "scale": "weight",
        "offset": f"{computes.offset:g} + weight",
    }[computes.weight]
    parts = [weight]
    if computes.multiply_in is not None:
        parts[0] += f" multiplied in {computes.multiply_in}"
    if computes.eps:
        parts.append(f"eps {computes.eps}")
    extras = {
        "residual": computes.residual,
        "groups": computes.grouped,
        "gate": computes.gated,
        "bias": computes.bias,
        "mean subtracted": computes.mean_subtracted,
    }
    parts += [name for name, present in extras.items() if present]
    return ", ".join(parts)


def ulps(equivalence: Equivalence) -> str:
    """``bit-equal in float32, ...``, or the worst distance of each dtype."""
    if equivalence.status == "equal":
        return f"bit-equal in {', '.join(equivalence.results)}"
    return ", ".join(
        f"{dtype} at most {result.max_ulp} ulp" for dtype, result in equivalence.results.items()
    )


_CODES = {"bold": "1", "dim": "2", "green": "32", "yellow": "33"}


def _paint(text: str, style: str, color: bool) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if color else text
