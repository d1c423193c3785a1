"""The options of ``normport ab-report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normport.tools.options import folder_option, path_argument

_ARM = "Folder of `vllm bench serve --save-result` files, {} (repeatable)."


def ab_report(
    off: Annotated[
        list[Path] | None,
        typer.Option(
            "--off", metavar="DIR", parser=folder_option, help=_ARM.format("CAR-RMSNorm off")
        ),
    ] = None,
    on: Annotated[
        list[Path] | None,
        typer.Option("--on", metavar="DIR", parser=folder_option, help=_ARM.format("on")),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--other", metavar="NAME=DIR", help="Results of another server (repeatable)."),
    ] = None,
    from_table: Annotated[
        Path | None,
        typer.Option(
            "--from-table",
            metavar="FILE",
            parser=path_argument,
            help="A report that was printed, as JSON, instead of runs.",
        ),
    ] = None,
    rewrites: Annotated[
        list[Path] | None,
        typer.Option(
            "--rewrites",
            metavar="PATH",
            parser=path_argument,
            help="What the fusion pass wrote in the ON arm: file or folder (repeatable).",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the report.")] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", parser=folder_option, help="Gets report.html, .md and .json."
        ),
    ] = Path("ab-report"),
) -> None:
    """Compare two arms of a serving benchmark, and say what can be claimed."""
    from normport.tools.ab_report.command import ab_report_command

    raise typer.Exit(
        ab_report_command(
            off=off or [],
            on=on or [],
            others=other or [],
            table=from_table,
            rewrites=rewrites or [],
            title=title,
            out=out,
        )
    )
