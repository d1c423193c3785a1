"""``normport decode-latency``: measure, and print or write what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from normport.tools.decode_latency import Job, Latency, check, measure
from normport.tools.decode_sources import in_process, server, shown
from normport.tools.errors import UserError
from normport.tools.options import ReportFormat
from normport.tools.terminal import note, say

LONGEST_S = 86400.0
"""The longest wait for a token that can be asked for."""


def decode_latency_command(
    job: Job,
    *,
    base_url: str | None,
    model: str | None,
    runner: str | None,
    engine_args: str | None,
    timeout_s: float,
    output_format: ReportFormat,
    out: Path | None,
) -> int:
    """Carry out ``decode-latency`` and return the exit status.

    Raises UserError when it is not said what to measure, or it cannot be measured.
    """
    if runner not in (None, "v1", "v2"):
        raise UserError(f"--runner {runner}: vLLM's model runners are v1 and v2.")
    if base_url is None and model is None:
        raise UserError("Name a server with --base-url, or a model to load here with --model.")
    if base_url == "":
        raise UserError("--base-url is empty: give it as http://HOST:PORT.")
    if model == "":
        raise UserError("--model is empty: give a checkpoint's folder, or the server's name of it.")
    if not 0 < timeout_s <= LONGEST_S:
        raise UserError(f"--timeout {timeout_s:g}: give seconds, more than 0 and at most a day.")
    check(job)
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out} cannot be written: {out.parent} is no folder.")
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: --out wants the name of a file.")
    if base_url is not None:
        ask, name = server(base_url, model, timeout_s)
        if runner is None:
            note("note: a server does not tell its model runner; say it with --runner v1 or v2.")
        found = measure(ask, job, model=name, where=shown(base_url), runner=runner, progress=note)
    else:
        assert model is not None
        found = _here(job, model, runner, engine_args)
    text = json.dumps(found.to_json(), indent=2)
    # Printed before it is written, so that a full disk does not cost the measurement.
    if output_format is ReportFormat.json:
        say(text)
    else:
        _table(found)
    if out is not None:
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error
    return 0


def _here(job: Job, model: str, runner: str | None, engine_args: str | None) -> Latency:
    try:
        options = json.loads(engine_args) if engine_args else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"--engine-args is not JSON: {error}.") from error
    if not isinstance(options, dict):
        raise UserError('--engine-args is no JSON object, such as {"enforce_eager": true}.')
    context = job.input_len + job.output_len
    ask, used, vocabulary, end = in_process(model, runner, context, options)
    try:
        job = replace(job, vocabulary=min(job.vocabulary, vocabulary))
        return measure(ask, job, model=model, where="in process", runner=used, progress=note)
    finally:
        end()


def _table(found: Latency) -> None:
    runner = found.runner or "unknown"
    say(f"{found.model}, {found.where}, model runner {runner}")
    say(f"input {found.job.input_len}, output {found.job.output_len} tokens, one request at a time")
    for one in found.measured:
        say(f"seed {one.seed}: {one.ms_per_token:.3f} ms per token")
    say(f"mean: {found.mean_ms:.3f} ms per token ({len(found.warm_up_ms)} warm-ups not counted)")
