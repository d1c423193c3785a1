"""How a report is printed: for people, programs, GitHub's annotations and code scanning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from normport.tools.findings import Report
from normport.tools.options import OutputFormat


def render(report: Report, output_format: OutputFormat, *, color: bool) -> str:
    """The report as it goes to stdout; ends with a newline unless it is empty.

    color: for ``text`` alone.
    """
    module = import_module(f"{__name__}.{output_format.value}_format")
    if output_format is OutputFormat.text:
        return cast(Callable[..., str], module.render)(report, color=color)
    return cast(Callable[[Report], str], module.render)(report)
