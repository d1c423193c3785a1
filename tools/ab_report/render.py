"""The three forms of the report: Markdown, JSON and one HTML page."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from normport.tools.ab_report.model import METRICS, Change, Gain, Report, Rounding
from normport.tools.bootstrap import LEVEL
from normport.tools.printable import printable

SCHEMA = 1

DIRECTIONS = (
    "A change is (ON - OFF) / OFF in percent, so its sign is that of the quantity and not of the "
    "merit: for output throughput higher is better, for TTFT, TPOT and E2E lower is better."
)
GAINS = (
    "A gain is signed so that positive is better: throughput is higher-is-better, TTFT and TPOT "
    "lower-is-better."
)


def json_report(report: Report) -> dict[str, Any]:
    """The report with unrounded figures, for programs."""
    value = asdict(report)
    for cell, shown in zip(report.cells, value["cells"], strict=True):
        shown["n"] = cell.n
        shown["claim"] = cell.claim
        for key, change in cell.changes.items():
            metric = next(metric for metric in METRICS if metric.key == key)
            shown["changes"][key] |= {"better": metric.better, "shown": change.shown}
    return {"schema": SCHEMA, "kind": "normport ab-report", "rounding": rounding(report), **value}


def rounding(report: Report) -> dict[str, int]:
    """How many printed changes were checked, are impossible, or come out otherwise recomputed."""
    found = report.roundings()
    differs = [
        change
        for cell in report.cells
        for change in cell.changes.values()
        if change.rounding is not None and change.rounding.recomputed != change.change_percent
    ]
    return {
        "checked": len(found),
        "outside": sum(not each.consistent for each in found),
        "recomputed_otherwise": len(differs),
    }


def markdown(report: Report) -> str:
    """The report for a pull request or a terminal."""
    return _environment(html=False).get_template("report.md.j2").render(_context(report))


def html(report: Report) -> str:
    """One page that needs nothing else, neither network nor scripts."""
    from normport.tools.ab_report.plots import all_changes, all_percentiles

    plots = {
        "change_plots": [(t, Markup(svg)) for t, svg in all_changes(report.cells)],
        "percentile_plots": [(t, Markup(svg)) for t, svg in all_percentiles(report.cells)],
    }
    template = _environment(html=True).get_template("report.html.j2")
    return template.render(_context(report) | plots)


def _context(report: Report) -> dict[str, Any]:
    measured = [cell for cell in report.cells if cell.runs is not None]
    return {
        "report": report,
        "metrics": METRICS,
        "rounding": rounding(report),
        "directions": DIRECTIONS,
        "gains": GAINS,
        "level": f"{LEVEL:.0%}",
        "intervals": any(min(cell.runs or (0,)) > 1 for cell in measured),
        "single": any(min(cell.runs or (0,)) == 1 for cell in measured),
        "few": any(1 < min(cell.runs or (0,)) < 5 for cell in measured),
        "unknown": len(report.cells) - len(measured),
    }


def _environment(*, html: bool) -> jinja2.Environment:
    folder = files("normport.tools.ab_report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {
        "figure": figure,
        "change": change,
        "interval": interval,
        "gain": gain,
        "unbroken": lambda label: escape(printable(label)).replace(" BS ", " BS\u00a0"),
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
    }
    return environment


def figure(value: float, decimals: int | None) -> str:
    """A measured figure, with the decimals of its source or three."""
    return f"{value:.{3 if decimals is None else decimals}f}"


def change(found: Change) -> str:
    """The change, signed, with three decimals; one that its inputs do not allow is flagged."""
    return f"{found.change_percent:+.3f}%{_flag(found.rounding)}"


def interval(found: Change) -> str:
    """The interval in brackets, or nothing."""
    if found.interval is None:
        return ""
    return f"[{found.interval.low:+.3f}, {found.interval.high:+.3f}]"


def gain(row: Gain, arm: str) -> str:
    """One arm's gain, signed; two decimals where the source has them, else three."""
    value = row.off_gain_percent if arm == "off" else row.on_gain_percent
    places = 3 if row.decimals is None else row.decimals[2]
    return f"{value:+.{places}f}%{_flag(row.off_rounding if arm == 'off' else row.on_rounding)}"


def _flag(found: Rounding | None) -> str:
    if found is None or found.consistent:
        return ""
    return f" (outside rounding: {found.low:+.4f} to {found.high:+.4f})"
