"""``ab-run``: make the plan, print it or carry it out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from normport.tools.ab_report.honesty import PATTERN
from normport.tools.ab_run.plan import (
    CACHE,
    DEFAULT_PORT,
    MATRIX_FLAGS,
    STANDALONE_FLAGS,
    Case,
    Load,
    Other,
    Plan,
    listing,
    matrix_loads,
)
from normport.tools.ab_run.processes import Ended, ended_in_order
from normport.tools.errors import UserError
from normport.tools.terminal import note, say

LENGTHS = ((4096, 1024), (2500, 1500))
BATCHES = (1, 4, 16, 64)
STANDALONE_LOAD = Load(2500, 1500, num_prompts=20, concurrency=4, request_rate="4")
PARALLEL = {Case.matrix: 4, Case.standalone: 2}
PRECISION = {Case.matrix: None, Case.standalone: "BF16"}


def make_plan(
    *,
    case: Case,
    model: str,
    name: str | None,
    tensor_parallel_size: int | None,
    precision: str | None,
    lengths: Sequence[str],
    batches: Sequence[int],
    repeats: int,
    host: str,
    port: int | None,
    vllm: str,
    serve_flags: str | None,
    other: Sequence[str | None],
    out: Path,
) -> Plan:
    """The plan that the options ask for; UserError where they do not fit together.

    other: name, URL, model and serve command of a third arm.
    """
    standalone = case is Case.standalone
    if standalone and (lengths or batches):
        raise UserError("--lengths and --batch-size are for the matrix; that case has one load.")
    flags = STANDALONE_FLAGS if standalone else MATRIX_FLAGS
    served = name if name is not None or standalone else Path(model).name
    return Plan(
        case=case,
        vllm=tuple(_words(vllm, "--vllm")),
        model=model,
        name=served,
        tensor_parallel_size=tensor_parallel_size or PARALLEL[case],
        precision=precision or PRECISION[case],
        host=host,
        port=port or DEFAULT_PORT[case],
        serve_flags=flags if serve_flags is None else _flags(serve_flags),
        loads=(STANDALONE_LOAD,)
        if standalone
        else matrix_loads([_pair(text) for text in lengths] or LENGTHS, batches or BATCHES),
        repeats=repeats,
        out=out,
        other=_other(*other),
    )


def ab_run_command(
    plan: Plan, *, dry_run: bool, resume: bool, start_timeout_s: float, bench_timeout_s: float
) -> int:
    """Print the plan, or carry it out. Children are stopped however this ends."""
    if dry_run:
        say(listing(plan))
        return 0
    try:
        from normport.tools.ab_run.drive import Limits, carry_out, prepare
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed, which waits for servers: run "
            "`pip install '.[evidence]'` where normport's sources are."
        ) from error
    prepare(plan, resume=resume)
    with ended_in_order():
        try:
            count = carry_out(plan, Limits(start_timeout_s, bench_timeout_s), note)
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}; --resume goes on from here.") from error
        except Ended as end:
            note("Ended by a signal; servers are stopped, and --resume goes on from here.")
            return end.status
        except KeyboardInterrupt:
            note("Interrupted; servers are stopped, and --resume goes on from here.")
            raise
    say(f"{count} results measured in {plan.out}; compare them with:")
    on = plan.out / "on"
    report = ["normport", "ab-report", "--off", str(plan.out / "off"), "--on", str(on)]
    if any(on.rglob(PATTERN)):
        report += ["--rewrites", str(on)]
    if plan.other is not None:
        report += ["--other", f"{plan.other.name}={plan.out / plan.other.name}"]
    say(f"  {shlex.join(report)}")
    return 0


def _flags(text: str) -> tuple[str, ...]:
    """The flags of ``vllm serve`` in all arms; they must leave room for the OFF arm's switch.

    vLLM merges only settings that begin alike: beside the switch it would drop those that are
    given as one JSON or by the option's long name, and the arms would differ in these as well.
    """
    words = _words(text, "--serve-flags")
    for word in words:
        if "fuse_allreduce_rms" in word:
            raise UserError(f"--serve-flags {word} is what ON and OFF differ in; leave it out.")
        if re.match(r"(-cc(=|$)|--compilation[-_]config)", word):
            raise UserError(
                f"--serve-flags {word} does not merge with the OFF arm's switch; give its settings "
                "one by one, e.g. -cc.mode=3."
            )
    return tuple(words)


def _words(text: str, option: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r} is not a command ({error}).") from error
    if not words and option == "--vllm":
        raise UserError("--vllm is empty; give the command that starts vLLM.")
    return words


def _pair(text: str) -> tuple[int, int]:
    try:
        first, second = map(int, text.split("/"))
    except ValueError:
        first = second = 0
    if first < 1 or second < 1:
        raise UserError(f"--lengths {text} is not INPUT/OUTPUT in tokens, e.g. 4096/1024.")
    return first, second


def _other(name: str | None, url: str | None, model: str | None, serve: str | None) -> Other | None:
    if name is None:
        if url or model or serve:
            raise UserError("A third arm needs a name: give it with --other-name.")
        return None
    if name in ("on", "off", CACHE) or not name.replace("-", "").replace("_", "").isalnum():
        raise UserError(
            f"--other-name {name} names a folder: letters, digits, - and _, not on, off or cache."
        )
    if not url or not model:
        raise UserError("A third arm needs --other-url and --other-model.")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--other-url {url} is no URL; give it as http://HOST:PORT.")
    words = tuple(_words(serve, "--other-serve")) if serve else None
    return Other(name, url.rstrip("/").removesuffix("/v1"), model, words)
