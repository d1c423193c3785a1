"""``normport review``, as the command line declares it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normport.tools.options import folder_option


def review(
    series: Annotated[
        Path,
        typer.Argument(
            metavar="SERIES", parser=folder_option, help="The folder of a series, e.g. out/0.29.0."
        ),
    ],
    html: Annotated[
        Path,
        typer.Option("--html", metavar="FILE", parser=folder_option, help="The page to write."),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="CHECKOUT",
            help="Try the series there too: a checkout or a release (repeatable).",
        ),
    ] = None,
) -> None:
    """One HTML page to review a series by: diffs, proofs, dispatch, refusals."""
    from normport.tools.review.command import review_command

    raise typer.Exit(review_command(series, html, against or []))
