"""The options of ``normport ab-run``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from normport.tools.options import folder_option


class CaseOption(StrEnum):
    """The values of ``--case``; the same as ``plan.Case``, without importing it."""

    matrix = "matrix"
    standalone = "standalone"


def ab_run(
    model: Annotated[str, typer.Argument(metavar="MODEL_PATH", help="What vLLM serves.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", parser=folder_option, help="Gets results and logs."),
    ],
    case: Annotated[
        CaseOption, typer.Option(help="The Qwen3.5 matrix, or the Qwen3.6 case of its own.")
    ] = CaseOption.matrix,
    name: Annotated[
        str | None, typer.Option(help="Served model name; the last part of the path by default.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel size; 4, standalone 2.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="For the report, e.g. BF16 or FP8.")] = None,
    lengths: Annotated[
        list[str] | None,
        typer.Option(metavar="IN/OUT", help="Tokens (repeatable); 4096/1024 and 2500/1500."),
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Requests (repeatable); 1, 4, 16, 64.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each arm: ON, OFF, ON, OFF.")] = 3,
    host: Annotated[str, typer.Option(help="Where vLLM listens.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Its port; 39720, standalone 8000.")
    ] = None,
    vllm: Annotated[str, typer.Option(metavar="COMMAND", help="How vLLM is called.")] = "vllm",
    serve_flags: Annotated[
        str | None,
        typer.Option(metavar="FLAGS", help="Instead of the report's flags of `vllm serve`."),
    ] = None,
    other_name: Annotated[str | None, typer.Option(help="A third arm, e.g. sglang.")] = None,
    other_url: Annotated[str | None, typer.Option(help="Its address.")] = None,
    other_model: Annotated[str | None, typer.Option(help="Its model name.")] = None,
    other_serve: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="How it is started; else it runs.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands alone.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Measure what is missing.")] = False,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Most seconds until a server is healthy.")
    ] = 1800.0,
    bench_timeout: Annotated[
        float, typer.Option(min=1, help="Most seconds of one benchmark.")
    ] = 14400.0,
) -> None:
    """Measure both arms in turns: serve, wait until healthy, warm up, bench, stop."""
    from normport.tools.ab_run.command import ab_run_command, make_plan
    from normport.tools.ab_run.plan import Case

    plan = make_plan(
        case=Case(case.value),
        model=model,
        name=name,
        tensor_parallel_size=tp,
        precision=precision,
        lengths=lengths or [],
        batches=batch_size or [],
        repeats=repeats,
        host=host,
        port=port,
        vllm=vllm,
        serve_flags=serve_flags,
        other=(other_name, other_url, other_model, other_serve),
        out=out,
    )
    raise typer.Exit(
        ab_run_command(
            plan,
            dry_run=dry_run,
            resume=resume,
            start_timeout_s=start_timeout,
            bench_timeout_s=bench_timeout,
        )
    )
