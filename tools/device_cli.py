"""The commands about devices and what runs on them, as the command line declares them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normport.tools.errors import UserError
from normport.tools.options import Report, ReportFormat, folder_option, path_argument
from normport.tools.terminal import write_text


def doctor(
    output_format: Report = ReportFormat.text,
    dtype: Annotated[str, typer.Option("--dtype", help="The run's dtype.")] = "float16",
    custom_op: Annotated[
        list[str] | None,
        typer.Option("--custom-op", metavar="OP", help="vLLM's custom_ops, e.g. +gemma_rms_norm."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            "--wheel",
            metavar="FILE",
            parser=folder_option,
            help="Only compare this kernel wheel's schemas.",
        ),
    ] = None,
) -> None:
    """What this machine would run for each kind of norm, eager and compiled, and why."""
    from normport.tools.doctor import doctor_command

    raise typer.Exit(
        doctor_command(
            as_json=output_format is ReportFormat.json,
            dtype=dtype,
            custom_ops=custom_op or [],
            wheel=wheel,
        )
    )


def probe(
    output_format: Report = ReportFormat.text,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", parser=folder_option, help="Write the JSON there too."
        ),
    ] = None,
) -> None:
    """On an XPU or MUSA machine: each norm kernel against native, odd shapes, aliasing, time."""
    from normport.tools.probe import probe_command

    raise typer.Exit(probe_command(as_json=output_format is ReportFormat.json, out=out))


def trace(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            parser=path_argument,
            help="A profiler's trace; two are compared as before and after.",
        ),
    ],
    output_format: Report = ReportFormat.text,
) -> None:
    """Norm kernels and all kernels per decode step, from a torch profiler or unitrace file."""
    from normport.tools.trace_command import trace_command

    raise typer.Exit(trace_command(files, output_format))


def decode_latency(
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="An OpenAI-compatible server.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model to load here, or as the server names it.")
    ] = None,
    input_len: Annotated[int, typer.Option("--input-len", help="Tokens of the prompt.")] = 32768,
    output_len: Annotated[int, typer.Option("--output-len", help="Tokens to generate.")] = 512,
    warmups: Annotated[int, typer.Option("--warmups", help="Requests that do not count.")] = 2,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="One request each (42, 43 and 44).")
    ] = None,
    runner: Annotated[
        str | None, typer.Option("--runner", help="vLLM's model runner: v1 or v2.")
    ] = None,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", help="Prompts are drawn from token ids below this.")
    ] = 1000,
    engine_args: Annotated[
        str | None,
        typer.Option("--engine-args", metavar="JSON", help="Arguments of vLLM's LLM class."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for a token.")] = 600,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", parser=folder_option, help="Write the result as JSON too."
        ),
    ] = None,
    output_format: Report = ReportFormat.text,
) -> None:
    """Milliseconds per generated token, as the reference measured them: each and mean."""
    from normport.tools.decode_command import decode_latency_command
    from normport.tools.decode_latency import SEEDS, Job

    job = Job(input_len, output_len, warmups, tuple(seed or SEEDS), vocabulary)
    raise typer.Exit(
        decode_latency_command(
            job,
            base_url=base_url,
            model=model,
            runner=runner,
            engine_args=engine_args,
            timeout_s=timeout,
            output_format=output_format,
            out=out,
        )
    )


def route(
    model_config: Annotated[
        Path,
        typer.Option(
            "--model-config",
            metavar="FILE",
            parser=folder_option,
            help="The model's config.json, or the folder that holds it.",
        ),
    ],
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor parallel size.")],
    pp: Annotated[int, typer.Option("--pp", metavar="N", help="Pipeline parallel size.")] = 1,
    dtype: Annotated[
        str, typer.Option("--dtype", help="The activations' dtype; auto is the model's.")
    ] = "auto",
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", help="Active rows (tokens of a batch).")
    ] = None,
    compile_range: Annotated[
        str | None, typer.Option("--range", metavar="A:B", help="Inclusive compile range.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--output-format", help="text or json.", metavar="FORMAT")
    ] = "text",
) -> None:
    """CAR-RMSNorm: fused or native for a configuration, and why."""
    from normport.tools.route import RouteFormat, route_command

    if output_format not in list(RouteFormat):
        raise UserError(f"--output-format {output_format} is unknown; give text or json.")
    write_text(
        route_command(
            model_config,
            tp=tp,
            pp=pp,
            dtype=dtype,
            rows=rows,
            compile_range=compile_range,
            output_format=RouteFormat(output_format),
        )
    )
