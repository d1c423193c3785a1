"""``ab-report``: read both arms or a table, write the report in its three forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normport.tools.ab_report.bench import Result, beside, match, read_arm
from normport.tools.ab_report.honesty import line, read
from normport.tools.ab_report.model import METRICS, Report, Standalone
from normport.tools.ab_report.table import read_table
from normport.tools.errors import UserError
from normport.tools.evidence_files import as_json, write_texts
from normport.tools.plural import many
from normport.tools.terminal import note, say


def ab_report_command(
    *,
    off: Sequence[Path],
    on: Sequence[Path],
    others: Sequence[str],
    table: Path | None,
    rewrites: Sequence[Path],
    title: str | None,
    out: Path,
) -> int:
    """Write the report into ``out``. UserError where the input does not make one."""
    try:
        from normport.tools.ab_report.render import html, json_report, markdown, rounding
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed, which draws the report: run "
            "`pip install '.[evidence]'` where normport's sources are."
        ) from error
    if table is not None and (off or on or others):
        raise UserError("--from-table is a whole report: leave --off, --on and --other out.")
    if table is not None:
        report = read_table(table)
    elif off and on:
        report = from_runs(read_arm(off), read_arm(on), _others(others))
    else:
        raise UserError("Name both arms with --off and --on, or a table with --from-table.")
    if rewrites or table is None:
        honesty, count = line(read(rewrites))
        report = replace(report, honesty=honesty, rewrites=count)
    if title is not None:
        report = replace(report, title=title)
    write_texts(
        {
            out / "report.md": markdown(report),
            out / "report.json": as_json(json_report(report)),
            out / "report.html": html(report),
        }
    )
    say(f"{many(len(report.cells), 'cell')} compared: {_counted(report)}")
    say(report.honesty)
    checked = rounding(report)
    if checked["checked"]:
        say(
            f"{many(checked['checked'], 'printed change')} checked; outside what the rounding of "
            f"their inputs allows: {checked['outside']}; ON/OFF changes that come out otherwise "
            f"when computed from the rounded figures: {checked['recomputed_otherwise']}."
        )
    for each in report.unmatched:
        note(f"note: not compared: {each}")
    note(f"Written to {out / 'report.html'}, report.md and report.json.")
    return 0


def from_runs(
    off: Sequence[Result], on: Sequence[Result], others: Sequence[tuple[str, Sequence[Result]]]
) -> Report:
    """The report of measured runs; its honesty line is that of no rewrite file."""
    _apart([("OFF", off), ("ON", on), *others])
    cells, unmatched = match(off, on)
    if not cells:
        raise UserError(
            "No configuration was measured in both arms: "
            f"{'; '.join(unmatched[:4]) or 'there is none'}."
        )
    cases: list[Standalone] = []
    for name, results in others:
        found, alone = beside(name, results, off, on)
        cases += found
        unmatched += alone
    failed = sum(cell.failed_requests for cell in cells)
    notes = [f"{many(failed, 'request')} failed in the runs compared."] if failed else []
    unknown = [
        cell for cell in cells if None in (cell.key.tensor_parallel_size, cell.key.precision)
    ]
    if unknown:
        notes.append(
            f"For {many(len(unknown), 'cell')} the TP size or the precision is not in the results; "
            "that both arms had the same is not checked there."
        )
    silent = [
        f"{metric.title} ({cell.key.label})"
        for cell in cells
        for metric in METRICS
        if metric.key not in cell.changes
    ]
    if silent:
        notes.append(f"Not in every result, or 0, and so not compared: {', '.join(silent)}.")
    honesty, count = line([])
    return Report(
        title="ON/OFF comparison",
        source=f"{len(off)} OFF and {many(len(on), 'ON result')} of vllm bench serve",
        honesty=honesty,
        rewrites=count,
        cells=cells,
        standalone=tuple(cases),
        unmatched=tuple(unmatched),
        notes=tuple(notes),
    )


def _apart(arms: Sequence[tuple[str, Sequence[Result]]]) -> None:
    """UserError where one file is in two arms, which would then be compared with itself."""
    owners: dict[Path, str] = {}
    for name, results in arms:
        for path in {result.path.resolve() for result in results}:
            owner = owners.setdefault(path, name)
            if owner != name:
                raise UserError(f"{path} is both in {owner} and in {name}: name folders apart.")


def _others(texts: Sequence[str]) -> list[tuple[str, Sequence[Result]]]:
    found: list[tuple[str, Sequence[Result]]] = []
    for text in texts:
        name, equals, folder = text.partition("=")
        if not name or not equals or not folder:
            raise UserError(f"--other {text} is not NAME=DIR, e.g. sglang=results/sglang.")
        found.append((name, read_arm([Path(folder)])))
    return found


def _counted(report: Report) -> str:
    """How many changes the intervals show, and where no claim can be made."""
    shown = sum(change.shown for cell in report.cells for change in cell.changes.values())
    total = sum(len(cell.changes) for cell in report.cells)
    silent = sum(cell.claim != "interval" for cell in report.cells)
    changes = f"{shown} of {many(total, 'change')} {'is' if total == 1 else 'are'} shown"
    none = f"; no claim for {many(silent, 'cell')}" if silent else ""
    return f"{changes} by the interval{none}."
