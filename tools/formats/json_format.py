"""One JSON object, schema 1."""

from __future__ import annotations

import json

from normport.tools.findings import Report


def render(report: Report) -> str:
    """The report as one object; non-ASCII text is escaped so that any terminal can print it."""
    return json.dumps(report.to_json(), indent=2) + "\n"
