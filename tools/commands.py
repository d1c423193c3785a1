"""``scan`` and ``rewrite``: run the pipeline, print the report, write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normport.tools.diffs import git_diff
from normport.tools.discover import argument_root, shown_path
from normport.tools.errors import UserError
from normport.tools.findings import FileResult, Report, Safety
from normport.tools.formats import render
from normport.tools.git import work_tree_top
from normport.tools.options import OutputFormat
from normport.tools.pipeline import Settings, run
from normport.tools.terminal import colour_wanted, note, progress, write_bytes, write_text
from normport.tools.tree import FileChange
from normport.tools.workspace import apply_everywhere, recover, was_interrupted

if TYPE_CHECKING:
    from normport.codemods.model import Site

DONE, LEFT, FAILED = 0, 1, 2


@dataclass(frozen=True)
class Request:
    """The options of ``scan`` and ``rewrite`` as the user gave them."""

    paths: Sequence[Path]
    no_proof: bool = False
    unsafe: bool = False
    dims: Sequence[str] | None = None
    strict: bool = False
    diff: bool = False
    write: bool = False
    allow_unproven: bool = False
    allow_dirty: bool = False


def accepted(unsafe: bool, allow_unproven: bool) -> frozenset[Safety]:
    """The safeties of the conversions that may go in."""
    found: set[Safety] = {"safe"}
    if unsafe:
        found.add("unsafe")
    if allow_unproven:
        found.add("unproven")
    return frozenset(found)


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
    held = {
        f"{site.owner}.{site.attribute}": (result, site)
        for result in report.results
        for site in result.sites
        if site.owner and site.attribute and site.computes and site.computes.weight == "none"
    }
    for name, text in dims.items():
        if name not in held:
            known = f"they are {', '.join(sorted(held))}" if held else "the files have none"
            raise UserError(
                f"--dim {name}={text} names no weightless norm by the class that holds it and the "
                f"attribute there; {known}."
            )
        result, site = held[name]
        inferred = _without_dims(result, site)
        if inferred is not None and inferred != site.target:
            raise UserError(
                f"--dim {name}={text}: the size of {name} is inferred, which makes it {inferred}; "
                f"drop --dim {name}."
            )


def _without_dims(result: FileResult, site: Site) -> str | None:
    """What the site becomes when its size is left to be inferred; None when it cannot be."""
    from normport.codemods.analyze import find_sites

    data = result.change.before if result.change else result.file.read_bytes()
    for other in find_sites(data or b"", str(result.file)):
        if (other.line, other.column) == (site.line, site.column):
            return other.target if other.verdict == "convert" else None
    return None


def rewrite_command(request: Request, output_format: OutputFormat) -> int:
    """Carry out ``scan`` or ``rewrite`` and return the exit status."""
    if request.diff and request.write:
        raise UserError("--diff and --write exclude each other; look at the diff first.")
    if request.diff and output_format is not OutputFormat.text:
        raise UserError("--diff prints nothing but a diff; leave out --output-format.")
    _recover(request)
    with progress() as show:
        settings = Settings(
            unsafe=request.unsafe,
            accept=accepted(request.unsafe, request.allow_unproven),
            proof=not request.no_proof,
            dims=parse_dims(request.dims),
            progress=show,
        )
        report = run(request.paths, settings)
    check_dims(settings.dims, report)
    for error in report.errors:
        note(f"error: {error.message}")
    for line in report.notes:
        note(f"note: {line}")
    written = False
    if request.write and not report.errors:
        written = _write(report.changed, request.allow_dirty)
    if request.diff:
        write_bytes(git_diff(_for_git(result) for result in report.changed))
    else:
        printed = report.without_applied() if written else report
        if output_format is not OutputFormat.text:
            printed = report
        write_text(render(printed, output_format, color=colour_wanted()))
    _summarise(report, request, written)
    return _status(report, request, written)


def _recover(request: Request) -> None:
    """Complete what an interrupted ``--write`` left, or say that something was left."""
    for root in dict.fromkeys(argument_root(path) for path in request.paths):
        if request.write:
            say_recovered(root)
        elif was_interrupted(root):
            note(f"note: an interrupted run left {root} half changed; --write completes it.")


def say_recovered(root: Path) -> None:
    """Complete, or take back, what an interrupted run left below ``root``, and say so."""
    outcome = recover(root)
    if outcome is not None:
        note(f"note: an interrupted run had left {root} half changed; it was {outcome}.")


def _write(changed: Sequence[FileResult], allow_dirty: bool) -> bool:
    """Write the files of all roots, or none; True when there was something to write."""
    by_root: dict[Path, list[FileChange]] = {}
    for result in changed:
        assert result.change is not None
        by_root.setdefault(result.root, []).append(result.change)
    apply_everywhere(by_root, allow_dirty=allow_dirty)
    return bool(by_root)


def _for_git(result: FileResult) -> FileChange:
    assert result.change is not None
    top = work_tree_top(result.file.parent)
    # git apply reads paths from the top of the work tree, wherever below it it is started.
    path = (
        shown_path(result.file, result.root)
        if top is None
        else result.file.relative_to(top).as_posix()
    )
    return FileChange(path, result.change.before, result.change.after)


def _status(report: Report, request: Request, written: bool) -> int:
    if report.errors:
        return FAILED
    findings = report.without_applied().findings if written else report.findings
    left = any(finding.verdict == "convert" for finding in findings)
    refused = request.strict and any(finding.verdict == "refuse" for finding in findings)
    return LEFT if left or refused else DONE


def _summarise(report: Report, request: Request, written: bool) -> None:
    counts = report.counts()
    note(
        f"{many(counts['files'], 'file')}, {many(counts['findings'], 'norm')}: "
        f"{counts['convert']} to convert, {counts['done']} standard already, "
        f"{counts['refuse']} refused."
    )
    for finding in report.findings:
        for comment in finding.lost_comments:
            where = f"{finding.shown}: {finding.norm}"
            note(f"{where}: the removed class takes a comment along: {comment}")
    applied = sum(finding.applied for finding in report.findings)
    if written:
        note(f"Converted {many(applied, 'norm')} in {many(len(report.changed), 'file')}.")
    elif request.write and report.errors:
        note("Nothing was written, because of the errors above.")
    elif applied and not request.diff:
        note(f"{many(applied, 'norm')} can be converted with `normport rewrite --write`.")
    waiting = [f for f in report.findings if f.verdict == "convert" and not f.applied]
    more = " more" if applied else ""
    for safety, option in (("unsafe", "--unsafe"), ("unproven", "--allow-unproven")):
        number = sum(finding.safety == safety for finding in waiting)
        if number:
            note(f"{number}{more} with `normport rewrite --write {option}`.")


def many(number: int, what: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {what}" + ("" if number == 1 else "s")
