"""The sizes of weightless norms that a user gives: ``--dim``, and ``dims`` in pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from normport.tools.errors import UserError
from normport.tools.findings import FileResult, Report

if TYPE_CHECKING:
    from normport.codemods.model import Site


def parse_dims(texts: Sequence[str] | None) -> dict[str, str]:
    """``CLASS.attr=EXPR`` options as a mapping.

    Raises UserError for one of another form, or whose expression does not parse.
    """
    from normport.codemods.analyze import Options

    dims: dict[str, str] = {}
    for text in texts or ():
        name, equals, expression = text.partition("=")
        if not equals:
            raise UserError(f"--dim {text} is not CLASS.attr=EXPR; give for example A.norm=128.")
        dims[name.strip()] = expression.strip()
    try:
        Options(dims=dims)
    except ValueError as error:
        raise UserError(f"--dim: {error}; give for example A.norm=config.head_dim.") from error
    return dims


def check_dims(dims: Mapping[str, str], report: Report) -> None:
    """Whether each ``--dim`` was for a norm of the files, and needed.

    Raises UserError for one that names no weightless norm, or one whose size is known.
    """
    if not dims or report.errors:
        return
    held = _held(report)
    for name, text in dims.items():
        _check(f"--dim {name}={text}", f"--dim {name}", name, held)


def check_configured(
    dims: Mapping[str, str], report: Report, where: str, whole: bool
) -> Sequence[str]:
    """The same for the sizes of a configuration; returns notes about those that nothing needs.

    where: the file and its table. whole: the run looks at all files that the configuration is
    for; else a size may be for one of the others.
    """
    notes: list[str] = []
    if not dims or report.errors or not whole:
        return notes
    held = _held(report)
    for name, text in dims.items():
        owner = name.partition(".")[0]
        pattern = re.compile(rb"^[ \t]*class[ \t]+%s\b" % re.escape(owner.encode()), re.MULTILINE)
        if any(pattern.search(result.source) for result in report.results):
            _check(f"{where} dims: {name} = {text}", name, name, held)
        else:
            notes.append(f"{where} dims: no file with a norm in it has a class {owner}.")
    return notes


def covers(paths: Sequence[Path], folder: Path) -> bool:
    """Whether all that is below ``folder`` is below one of ``paths``."""
    return any(folder.is_relative_to(path.absolute()) for path in paths)


Held = Mapping[str, list[tuple[FileResult, "Site"]]]


def _held(report: Report) -> Held:
    """The weightless norms by class and attribute."""
    held: dict[str, list[tuple[FileResult, Site]]] = {}
    for result in report.results:
        for site in (*result.sites, *result.hidden):
            if site.owner and site.attribute and site.computes and site.computes.weight == "none":
                held.setdefault(f"{site.owner}.{site.attribute}", []).append((result, site))
    return held


def _check(said: str, drop: str, name: str, held: Held) -> None:
    if name not in held:
        known = f"they are {', '.join(sorted(held))}" if held else "the files have none"
        raise UserError(
            f"{said} names no weightless norm by the class that holds it and the attribute there; "
            f"{known}."
        )
    known_sizes = [(_without_dims(result, site), site.target) for result, site in held[name]]
    if all(inferred not in (None, target) for inferred, target in known_sizes):
        raise UserError(
            f"{said}: the size of {name} is inferred, which makes it {known_sizes[-1][0]}; "
            f"drop {drop}."
        )


def _without_dims(result: FileResult, site: Site) -> str | None:
    """What the site becomes when its size is left to be inferred; None when it cannot be."""
    from normport.codemods.analyze import find_sites

    for other in find_sites(result.source, str(result.file)):
        if (other.line, other.column) == (site.line, site.column):
            return other.target if other.verdict == "convert" else None
    return None
