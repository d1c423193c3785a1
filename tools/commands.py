"""``scan`` and ``rewrite``: run the pipeline, print the report, write the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from normport.tools import standard_input
from normport.tools.diffs import git_diff
from normport.tools.dims import check_configured, check_dims, covers, parse_dims
from normport.tools.discover import PythonFile, argument_root, shown_path
from normport.tools.errors import UserError
from normport.tools.findings import FileResult, Report, Safety, joined
from normport.tools.formats import render
from normport.tools.formats.look import Look
from normport.tools.git import work_tree_top
from normport.tools.inputs import Batch, Options, batches, stdin_batch
from normport.tools.judge import NO_EXEC, NO_PROOF
from normport.tools.options import OutputFormat
from normport.tools.parallel import Workers
from normport.tools.pipeline import Settings, run
from normport.tools.plural import many
from normport.tools.summary import counted, footer
from normport.tools.terminal import (
    colour_wanted,
    note,
    progress,
    stdout_is_terminal,
    write_bytes,
    write_text,
)
from normport.tools.tree import FileChange
from normport.tools.workspace import apply_everywhere, recover, was_interrupted

DONE, LEFT, FAILED = 0, 1, 2


@dataclass(frozen=True)
class Request:
    """The options of ``scan`` and ``rewrite`` as the user gave them.

    inputs: those that choose files and rules. table: print the census, not site after site.
    """

    paths: Sequence[Path]
    inputs: Options = field(default_factory=Options)
    stdin_filename: Path | None = None
    table: bool = False
    show_done: bool = False
    interactive: bool = False
    no_proof: bool = False
    no_exec: bool = False
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


def rewrite_command(request: Request, output_format: OutputFormat) -> int:
    """Carry out ``scan`` or ``rewrite`` and return the exit status."""
    _check(request, output_format)
    source: PythonFile | None = None
    if standard_input.wanted(request.paths, request.stdin_filename):
        source, batch = stdin_batch(request.stdin_filename, request.inputs)
        found = [batch]
    else:
        request = replace(request, paths=_resolved(request))
        _recover(request)
        found = batches(request.paths, request.inputs)
    for line in dict.fromkeys(line for batch in found for line in batch.notes):
        note(f"note: {line}")
    report = _report(request, found)
    for error in report.errors:
        note(f"error: {error.message}")
    for line in report.notes:
        note(f"note: {line}")
    for complaint in report.complaints:
        note(f"warning: {complaint}")
    written = False
    if source is not None and request.write:
        written = _write_source(source, report)
    elif (request.write or request.interactive) and not report.errors:
        written = _write(report.changed, request.allow_dirty)
    if request.diff:
        write_bytes(git_diff(_for_git(result) for result in report.changed))
    elif not (request.interactive or (source is not None and request.write)):
        left = written and output_format is OutputFormat.text
        look = Look(stdout_is_terminal(), colour_wanted(), request.table, request.show_done)
        write_text(render(report.without_applied() if left else report, output_format, look))
    _summarise(report, request, written)
    return _status(report, request, written)


def _check(request: Request, output_format: OutputFormat) -> None:
    """Raises UserError for options that do not go together."""
    text = output_format is OutputFormat.text
    if request.diff and request.write:
        raise UserError("--diff and --write exclude each other; look at the diff first.")
    if request.diff and not text:
        raise UserError("--diff prints nothing but a diff; leave out --output-format.")
    from_stdin = standard_input.wanted(request.paths, request.stdin_filename)
    if from_stdin and request.write and not text:
        raise UserError("--write prints the new source of `-`; leave out --output-format.")
    if request.interactive:
        if request.diff or not text:
            raise UserError("--interactive asks; leave out --diff and --output-format.")
        if from_stdin:
            raise UserError("--interactive reads answers from stdin; name a file instead of `-`.")
        from normport.tools.interactive import check_terminal

        check_terminal()


def _resolved(request: Request) -> list[Path]:
    """The paths, with the package's folder for each that names a release.

    Raises UserError when something in the cache of releases were to be changed.
    """
    from normport.tools.releases import is_cached
    from normport.tools.sources import is_release, resolve

    found = []
    for path in request.paths:
        if is_release(str(path)) and not path.exists():
            found.append(resolve(str(path), note=note).root / "vllm")
        else:
            found.append(path)
        if (request.write or request.interactive) and is_cached(found[-1]):
            raise UserError(
                f"{path} lies in the cache of releases and is not changed; name a checkout."
            )
    return found


def _report(request: Request, found: Sequence[Batch]) -> Report:
    """Analyse each batch under its own configuration; ask site by site if that is wanted."""
    dims = parse_dims(request.dims)
    with Workers() as workers, progress() as show:
        common = Settings(
            unsafe=request.unsafe,
            accept=accepted(request.unsafe, request.allow_unproven),
            proof=not (request.no_proof or request.no_exec),
            unproven=NO_EXEC if request.no_exec else NO_PROOF,
            workers=workers,
            progress=show,
        )
        work = [(batch, _settings(common, batch, dims)) for batch in found]
        if request.interactive:
            from normport.tools.interactive import prepare

            prepared = [prepare(batch, settings) for batch, settings in work]
        else:
            reports = [run(batch.files, batch.errors, settings) for batch, settings in work]
    if request.interactive:
        from normport.tools.interactive import ask

        reports = ask(prepared, allow_dirty=request.allow_dirty)
    for batch, each in zip(found, reports, strict=True):
        if batch.config is None:
            continue
        own = {name: size for name, size in batch.dims.items() if name not in dims}
        whole = covers(request.paths, batch.config.parent) and request.inputs.exclude is None
        for line in check_configured(own, each, batch.where, whole):
            note(f"note: {line}")
    report = joined(reports)
    check_dims(dims, report)
    return report


def _settings(common: Settings, batch: Batch, dims: Mapping[str, str]) -> Settings:
    return replace(common, selection=batch.selection, dims={**batch.dims, **dims})


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


def _write_source(source: PythonFile, report: Report) -> bool:
    """Print the source from stdin as it is afterwards, also when nothing changes in it."""
    if report.errors:
        return False
    changes = [result.change for result in report.changed if result.change is not None]
    write_bytes(changes[0].after if changes else source.read())
    return bool(changes)


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
    ours = [finding for finding in findings if not finding.apart]
    left = any(finding.verdict == "convert" for finding in ours)
    refused = request.strict and any(finding.verdict == "refuse" for finding in ours)
    return LEFT if left or refused else DONE


def _summarise(report: Report, request: Request, written: bool) -> None:
    if report.files or not report.errors:
        note(counted(report))
    for finding in report.findings:
        for comment in finding.lost_comments:
            where = f"{finding.shown}: {finding.norm}"
            note(f"{where}: the removed class takes a comment along: {comment}")
    applied = sum(finding.applied for finding in report.findings)
    if written:
        for line in _converted(report):
            note(line)
        note(f"Converted {many(applied, 'norm')} in {many(len(report.changed), 'file')}.")
    elif (request.write or request.interactive) and report.errors:
        note("Nothing was written, because of the errors above.")
    elif request.interactive:
        note("Nothing was written.")
    unproven = "--no-exec" if request.no_exec else "--no-proof" if request.no_proof else None
    for line in footer(
        report.findings,
        told=written or request.diff,
        without=unproven,
        declined=request.interactive,
    ):
        note(line)


def _converted(report: Report) -> list[str]:
    """Each file that was changed, and how many of its norms."""
    found = []
    for result in report.changed:
        number = sum(finding.applied for finding in result.findings)
        found.append(f"{shown_path(result.file, result.root)}: {many(number, 'norm')} converted")
    return found
