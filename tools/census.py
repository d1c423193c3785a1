"""The committed census, ``docs/census.md``: every local norm of some releases, with its proof.

    python -m normport.tools.census FILE RELEASE ...      write FILE anew
    python -m normport.tools.census FILE --check RELEASE  compare that release's part with FILE

A part depends on its release alone, so that one can be checked without the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from normport.tools.discover import discover
from normport.tools.errors import UserError
from normport.tools.findings import Finding, Report, count
from normport.tools.formats.table_format import apart_cells, cells, grouped
from normport.tools.formats.text_format import ulps
from normport.tools.pipeline import Settings, run
from normport.tools.sources import resolve

RELEASES = ("0.24.0", "0.28.0", "0.29.0", "0.32.0", "0.33.0")

_TOP = """\
# Census of model-local norms

What `normport scan` finds in the `vllm` package of released versions: every place that computes an
RMS norm by itself, what it computes, what normport does with it and why, and what the proof showed.
The numbers after a file's name are lines. `normport explain CODE` tells more of a verdict. Device
kernels, fusion passes and the standard layers themselves are listed apart: no model's norms.

`make census` writes this file; CI checks the part of 0.29.0.
"""
_NORMS = ("place", "norm", "computes", "sites", "verdict", "proof", "reason")
_APART = ("place", "norm", "what it is", "sites")
_TOTALS = {
    "files": "files",
    "local norms": "norms",
    "sites converted, bit-equal": "safe",
    "equal within the bound": "unsafe",
    "unproven": "unproven",
    "refused": "refuse",
    "standard already": "done",
    "apart": "apart",
}


def part(release: str) -> str:
    """The census of one release, in Markdown.

    Raises UserError when the release cannot be fetched, a file cannot be read or nothing proves.
    """
    tree = resolve(f"vllm=={release}", note=lambda _: None)
    settings = Settings(unsafe=False, proof_required=True, trees={tree.root: tree})
    report = run(*discover([tree.root / "vllm"]), settings)
    for error in report.errors:
        raise UserError(error.message)
    findings = report.findings
    ours = [finding for finding in findings if not finding.apart and finding.verdict != "done"]
    apart = [finding for finding in findings if finding.apart]
    rows = [_row(group) for group in grouped(ours)]
    lines = [f"## vLLM {release}", "", *_table(tuple(_TOTALS), [_totals(report)]), ""]
    lines += [*_table(_NORMS, rows), ""]
    if apart:
        rows = [_escaped((_place(group), *apart_cells(group)[1:])) for group in grouped(apart)]
        lines += [f"### Apart in vLLM {release}", "", *_table(_APART, rows), ""]
    return "\n".join(lines)


def _totals(report: Report) -> tuple[str, ...]:
    counts = {"files": report.files, **count(report.findings)}
    return tuple(f"{counts[key]:,}" for key in _TOTALS.values())


def _row(group: Sequence[Finding]) -> tuple[str, ...]:
    _, norm, computes, sites, verdict, reason = cells(group)
    proof = ulps(group[0].equivalence) if group[0].equivalence else "-"
    reason = reason.replace(f"; {proof}", "")
    return _escaped((_place(group), norm, computes, sites, verdict, proof, reason))


def _place(group: Sequence[Finding]) -> str:
    return f"{group[0].path}:{group[0].line}"


def _escaped(row: Sequence[str]) -> tuple[str, ...]:
    """Cells whose bars and stars Markdown leaves alone, the place as code."""
    first, *rest = (re.sub(r"([|*<])", r"\\\1", cell) for cell in row)
    return (f"`{first}`", *rest)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def write(path: Path, releases: Sequence[str]) -> None:
    """Write the census of ``releases`` to ``path``."""
    parts = [_TOP, *(part(release) for release in releases)]
    path.write_text("\n".join(parts), encoding="utf-8")


def check(path: Path, release: str) -> None:
    """Raises UserError when ``path`` says something else of ``release`` than is found now."""
    written = path.read_text(encoding="utf-8")
    found = re.search(rf"^## vLLM {re.escape(release)}\n.*?(?=^## |\Z)", written, re.M | re.S)
    expected = part(release)
    if found is None or found[0].strip() != expected.strip():
        old = found[0].splitlines() if found else []
        new = next((line for line in expected.splitlines() if line not in old), "a line too many")
        raise UserError(
            f"{path} is not what is found in vLLM {release} now (first difference: {new}): write "
            "it with `make census` and commit it."
        )


def main(arguments: Sequence[str]) -> int:
    """Write or check, as the module's text says."""
    path, *rest = arguments
    try:
        if rest[:1] == ["--check"]:
            for release in rest[1:]:
                check(Path(path), release)
                print(f"{path} is up to date for vLLM {release}")
        else:
            write(Path(path), rest or RELEASES)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
