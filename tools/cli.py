"""The ``normport`` command. Thin: options in, exit status and text out.

Whatever is slow to import is imported inside the command that needs it, so that ``--help`` and
``--version`` answer at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from normport.tools.ab_report.cli import ab_report
from normport.tools.ab_run.cli import ab_run
from normport.tools.errors import UserError
from normport.tools.gsm8k.cli import app as gsm8k_app
from normport.tools.options import (
    AllowDirty,
    AllowUnproven,
    Checkout,
    Diff,
    Dims,
    Exclude,
    ForceExclude,
    Format,
    Ignore,
    Installed,
    Interactive,
    NoExec,
    NoProof,
    OutputFormat,
    Paths,
    PortDirty,
    ReportFormat,
    Select,
    SeriesFolder,
    ShowDone,
    StdinFilename,
    Strict,
    Unsafe,
    Write,
    folder_option,
    path_argument,
)
from normport.tools.terminal import ReaderGoneError, note, prepare_streams, silence, write_text

DONE, LEFT, FAILED = 0, 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit statuses: as a shell reports a process ended by SIGINT and by SIGPIPE."""

app = typer.Typer(
    name="normport",
    help="Moves vLLM model files onto vLLM's standard norm layers and backports their dispatch.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
series_app = typer.Typer(no_args_is_help=True, help="Patch series that `normport port` wrote.")
app.add_typer(series_app, name="series")
app.add_typer(gsm8k_app, name="gsm8k")
app.command("ab-report")(ab_report)
app.command("ab-run")(ab_run)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write_text(f"normport {version('normport')}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def scan(
    paths: Paths,
    output_format: Format = OutputFormat.text,
    no_proof: NoProof = False,
    no_exec: NoExec = False,
    unsafe: Unsafe = False,
    dim: Dims = None,
    strict: Strict = False,
    select: Select = None,
    ignore: Ignore = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    show_done: ShowDone = False,
    stdin_filename: StdinFilename = None,
) -> None:
    """Every model-local norm: what it computes, what it can become, or why it stays."""
    from normport.tools.commands import Request, rewrite_command
    from normport.tools.inputs import Options

    request = Request(
        paths=paths,
        inputs=Options(select, ignore, exclude, force_exclude),
        no_proof=no_proof,
        no_exec=no_exec,
        unsafe=unsafe,
        dims=dim,
        strict=strict,
        table=True,
        show_done=show_done,
        stdin_filename=stdin_filename,
    )
    raise typer.Exit(rewrite_command(request, output_format))


@app.command()
def rewrite(
    paths: Paths,
    output_format: Format = OutputFormat.text,
    diff: Diff = False,
    write: Write = False,
    interactive: Interactive = False,
    unsafe: Unsafe = False,
    allow_unproven: AllowUnproven = False,
    no_proof: NoProof = False,
    no_exec: NoExec = False,
    dim: Dims = None,
    strict: Strict = False,
    allow_dirty: AllowDirty = False,
    select: Select = None,
    ignore: Ignore = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    show_done: ShowDone = False,
    stdin_filename: StdinFilename = None,
) -> None:
    """Convert model-local norms to standard layers: report, --diff, --write or --interactive."""
    from normport.tools.commands import Request, rewrite_command
    from normport.tools.inputs import Options

    request = Request(
        paths=paths,
        inputs=Options(select, ignore, exclude, force_exclude),
        stdin_filename=stdin_filename,
        show_done=show_done,
        interactive=interactive,
        no_proof=no_proof,
        no_exec=no_exec,
        unsafe=unsafe,
        dims=dim,
        strict=strict,
        diff=diff,
        write=write,
        allow_unproven=allow_unproven,
        allow_dirty=allow_dirty,
    )
    raise typer.Exit(rewrite_command(request, output_format))


@app.command()
def backport(
    checkout: Annotated[str | None, typer.Argument(help="vLLM checkout or package folder.")] = None,
    installed: Installed = False,
    diff: Diff = False,
    write: Write = False,
    allow_dirty: AllowDirty = False,
) -> None:
    """Give the standard layers the XPU dispatch that the release lacks."""
    from normport.tools.series_commands import backport_command

    raise typer.Exit(
        backport_command(
            checkout, installed=installed, diff=diff, write=write, allow_dirty=allow_dirty
        )
    )


@app.command()
def port(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", parser=folder_option, help="Folder for the patch series."
        ),
    ],
    source: Annotated[
        str | None, typer.Argument(help="Checkout, vllm folder, or release such as vllm==0.29.0.")
    ] = None,
    installed: Installed = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FILE", help="Port this model file alone (repeatable)."),
    ] = None,
    no_proof: NoProof = False,
    no_exec: NoExec = False,
    allow_unproven: AllowUnproven = False,
    dim: Dims = None,
    allow_dirty: PortDirty = False,
    with_xpu_norms: Annotated[
        bool,
        typer.Option(
            "--with-xpu-norms",
            help="Also the optional patch that gives XPU its guarded one-row and QK norms.",
        ),
    ] = False,
    with_norm_add_norm: Annotated[
        bool,
        typer.Option(
            "--with-norm-add-norm",
            help="Also the optional patch that makes norm(x) + residual, then a norm, one call.",
        ),
    ] = False,
) -> None:
    """The main job: rewrite, backport and proof, written as a patch series for `git am`."""
    from normport.tools.series_commands import port_command

    raise typer.Exit(
        port_command(
            source,
            out,
            installed=installed,
            only=only or [],
            no_proof=no_proof,
            no_exec=no_exec,
            allow_unproven=allow_unproven,
            dims=dim,
            allow_dirty=allow_dirty,
            xpu_norms=with_xpu_norms,
            norm_add_norm=with_norm_add_norm,
        )
    )


@series_app.command("status")
def series_status(
    checkout: Checkout = None, series: SeriesFolder = None, installed: Installed = False
) -> None:
    """What each patch would do there: clean, obsolete, conflict or no-op."""
    from normport.tools.series_commands import series_status_command

    raise typer.Exit(series_status_command(checkout, series, installed=installed))


@series_app.command("apply")
def series_apply(
    checkout: Checkout = None,
    series: SeriesFolder = None,
    installed: Installed = False,
    allow_dirty: AllowDirty = False,
) -> None:
    """Apply the series to a checkout: every patch or none, without a commit."""
    from normport.tools.series_commands import series_apply_command

    raise typer.Exit(
        series_apply_command(checkout, series, installed=installed, allow_dirty=allow_dirty)
    )


@app.command()
def doctor(
    output_format: Annotated[
        ReportFormat, typer.Option("--output-format", help="How the report is printed.")
    ] = ReportFormat.text,
    dtype: Annotated[str, typer.Option("--dtype", help="The run's dtype.")] = "float16",
    custom_op: Annotated[
        list[str] | None,
        typer.Option("--custom-op", metavar="OP", help="vLLM's custom_ops, e.g. +gemma_rms_norm."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", metavar="FILE", help="Only compare this kernel wheel's schemas."),
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


@app.command()
def trace(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            parser=path_argument,
            help="A profiler's trace; two are compared as before and after.",
        ),
    ],
    output_format: Format = OutputFormat.text,
) -> None:
    """Norm kernels and all kernels per decode step, from a torch profiler or unitrace file."""
    from normport.tools.trace_command import trace_command

    raise typer.Exit(trace_command(files, output_format))


@app.command("decode-latency")
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
        Path | None, typer.Option("--out", metavar="FILE", help="Write the result as JSON too.")
    ] = None,
    output_format: Format = OutputFormat.text,
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


@app.command()
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


@app.command()
def probe(
    output_format: Annotated[
        ReportFormat, typer.Option("--output-format", help="How the report is printed.")
    ] = ReportFormat.text,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there too.")
    ] = None,
) -> None:
    """On an XPU or MUSA machine: each norm kernel against native, odd shapes, aliasing, time."""
    from normport.tools.probe import probe_command

    raise typer.Exit(probe_command(as_json=output_format is ReportFormat.json, out=out))


@app.command()
def review(
    series: Annotated[
        Path,
        typer.Argument(
            metavar="SERIES", parser=folder_option, help="The folder of a series, e.g. out/0.29.0."
        ),
    ],
    html: Annotated[
        Path,
        typer.Option("--html", metavar="FILE", parser=folder_option, help="The page to write."),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="CHECKOUT",
            help="Try the series there too: a checkout or a release (repeatable).",
        ),
    ] = None,
) -> None:
    """One HTML page to review a series by: diffs, proofs, dispatch, refusals."""
    from normport.tools.review.command import review_command

    raise typer.Exit(review_command(series, html, against or []))


@app.command()
def explain(
    code: Annotated[
        str | None, typer.Argument(help="Rule code, e.g. NP101; without one, all are listed.")
    ] = None,
) -> None:
    """One rule: what it converts or refuses, why, and an example."""
    from normport.tools.explain import explain_rule, list_rules

    write_text(list_rules() if code is None else explain_rule(code))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    # A run is short and its large syntax trees hold no cycles: looking for some would cost a
    # quarter of the time.
    gc.disable()
    prepare_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; errors become one sentence on stderr."""
    try:
        status = app(args=list(arguments), prog_name="normport", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (ReaderGoneError, BrokenPipeError):
        # The reader went away; keep the interpreter's own flush at exit from complaining.
        silence(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        # What has no file name is a stream; everything but the help's own printing names itself.
        where = error.filename or "The standard output"
        return _fail(f"{where}: {error.strerror or error}")
    return status if isinstance(status, int) else DONE


def _usage(error: typer.TyperException) -> int:
    # The parser of option values is pydantic's, which begins its sentences with these words.
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    if type(error).__name__ == "NoArgsIsHelpError":
        note(error.format_message())
        return FAILED
    return _fail(message)


def _fail(message: str) -> int:
    note(f"error: {message.rstrip('.')}.")
    return FAILED
