"""``normport review``: read a series, see how it fares elsewhere, write the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from normport.tools import staging
from normport.tools.errors import UserError
from normport.tools.manifest import NAME, load
from normport.tools.review.page import read_review, render
from normport.tools.review.releases import on_releases
from normport.tools.terminal import note, say

DONE = 0


def review_command(series: Path, page: Path, against: Sequence[str]) -> int:
    """Carry out ``review`` and return the exit status.

    page: the HTML file, which appears whole or not at all.
    against: checkouts and releases to try the series on, beside the releases that are cached.
    """
    manifest = load(series)
    _check_target(series, page)
    on = on_releases(series, manifest.release, against, note)
    content = render(read_review(series, on))
    _write(page, content)
    say(f"review: {page}")
    return DONE


def _check_target(series: Path, page: Path) -> None:
    """Raises UserError where the page would take the place of a part of the series, or a folder."""
    if page.is_dir():
        raise UserError(f"--html {page} is a folder: name a file in it, e.g. {page}/review.html.")
    if page.exists() and not page.is_file():
        raise UserError(f"--html {page} is no plain file: name one that is, or that is not there.")
    if page.name == NAME or page.suffix == ".patch":
        raise UserError(
            f"--html {page} has the name of a part of a series: name another file, e.g. "
            f"{series / 'review.html'}."
        )
    if not page.parent.is_dir():
        raise UserError(f"--html {page}: there is no folder {page.parent}: make it first.")


def _write(page: Path, content: bytes) -> None:
    target = Path(os.path.realpath(page))  # a link stays one
    draft = staging.new_path(target)
    try:
        staging.write(draft, content, None)
        os.replace(draft, target)
    except OSError as error:
        raise UserError(
            f"{page} cannot be written ({error.strerror or error}): name another file."
        ) from error
    finally:
        staging.forget(draft)
