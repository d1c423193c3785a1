"""``normport series evidence``: what a device's probe found, kept in a series' manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.manifest import NAME, PROBES, Manifest, load
from normport.tools.probe_record import NotAProbe, Probe, load_probe, read_probe
from normport.tools.series import update_manifest
from normport.tools.terminal import note, say

DONE = 0


def series_evidence_command(series: Path, files: Sequence[Path]) -> int:
    """Take the probes in ``files`` into the manifest of ``series``, all or none; without files
    say what it holds.

    UserError: a file is no record of a probe, or a simulation where a device was measured.
    """
    manifest = load(series)
    held = probes_of(manifest, series)
    if not files:
        for probe in held:
            say(f"evidence: {probe.summary}")
        if not held:
            note(f"{series / NAME} holds no evidence of a device.")
        return DONE
    found = [load_probe(file) for file in files]
    told: list[str] = []

    def change(former: Manifest) -> Manifest:
        records = list(former.evidence.get(PROBES, ()))
        for file, (probe, record) in zip(files, found, strict=True):
            records, outcome = _taken_in(records, probe, record, file)
            told.append(f"{outcome}: {file}: {probe.summary}")
        return replace(former, evidence={**former.evidence, PROBES: records})

    update_manifest(series, change)
    for line in told:
        say(line)
    for file, (probe, _) in zip(files, found, strict=True):
        if probe.vllm is not None and manifest.release not in (None, probe.vllm):
            note(
                f"note: {file} was made beside vLLM {probe.vllm}, and the series is of vLLM "
                f"{manifest.release}: it tells of the kernels, which are not vLLM's."
            )
    return DONE


def probes_of(manifest: Manifest, series: Path) -> list[Probe]:
    """What the manifest of ``series`` holds. UserError: it is no record of a probe."""
    try:
        return [read_probe(record) for record in manifest.evidence.get(PROBES, ())]
    except (NotAProbe, TypeError) as error:
        raise UserError(
            f"{series / NAME} holds evidence of a device that normport did not write ({error}): "
            "restore it, or write the series again."
        ) from error


def _taken_in(
    records: Sequence[Mapping[str, Any]], probe: Probe, record: Mapping[str, Any], file: Path
) -> tuple[list[Mapping[str, Any]], str]:
    """The records with one more, of which each device has one, and what came of it.

    A device's own measurement takes the place of simulations of it, and never the other way.
    """
    if record in records:
        return list(records), "there already"
    same = [old for old in records if old["platform"] == probe.platform]
    if probe.simulated and any(not old["simulated"] for old in same):
        raise UserError(
            f"{file} is a simulation of {probe.platform}, of which the series holds a measurement: "
            "leave it out."
        )
    gone = [old for old in same if old["device"] in (None, probe.device)]
    kept = [old for old in records if old not in gone]
    kept.append(record)
    kept.sort(key=lambda old: (old["platform"], old["device"] or ""))
    return kept, "replaced" if gone else "taken in"
