"""How a report is printed: for people, programs, GitHub's annotations and code scanning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from normport.tools.findings import Report
from normport.tools.formats.look import Look
from normport.tools.options import OutputFormat


def render(report: Report, output_format: OutputFormat, look: Look) -> str:
    """The report as it goes to stdout; ends with a newline unless it is empty.

    look: for ``text`` alone.
    """
    name = output_format.value
    if output_format is OutputFormat.text:
        name = "table" if look.table else "text"
        module = import_module(f"{__name__}.{name}_format")
        return cast(Callable[[Report, Look], str], module.render)(report, look)
    module = import_module(f"{__name__}.{name}_format")
    return cast(Callable[[Report], str], module.render)(report)
