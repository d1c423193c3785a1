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
from normport.tools.device_cli import decode_latency, doctor, probe, route, trace
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
    Only,
    OutputFormat,
    Paths,
    PortDirty,
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
from normport.tools.review.cli import review
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
def sandwich(
    checkout: Checkout = None,
    installed: Installed = False,
    only: Only = None,
    diff: Diff = False,
    write: Write = False,
    no_proof: NoProof = False,
    no_exec: NoExec = False,
    allow_unproven: AllowUnproven = False,
    allow_dirty: AllowDirty = False,
) -> None:
    """Make norm(x) + residual and the norm that follows one call, where all are standard layers."""
    from normport.tools.sandwich_command import sandwich_command

    raise typer.Exit(
        sandwich_command(
            checkout,
            installed=installed,
            only=only or [],
            diff=diff,
            write=write,
            no_proof=no_proof,
            no_exec=no_exec,
            allow_unproven=allow_unproven,
            allow_dirty=allow_dirty,
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
    only: Only = None,
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


@series_app.command("evidence")
def series_evidence(
    series: Annotated[
        Path,
        typer.Argument(metavar="SERIES", parser=folder_option, help="The folder of a series."),
    ],
    probes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROBE.json",
            parser=path_argument,
            help="What `normport probe --out` wrote; without any, what the series holds is told.",
        ),
    ] = None,
) -> None:
    """Take what a device's probe found into the manifest, or tell what it holds."""
    from normport.tools.series_evidence import series_evidence_command

    raise typer.Exit(series_evidence_command(series, probes or []))


@app.command()
def explain(
    code: Annotated[
        str | None, typer.Argument(help="Rule code, e.g. NP101; without one, all are listed.")
    ] = None,
) -> None:
    """One rule: what it converts or refuses, why, and an example."""
    from normport.tools.explain import explain_rule, list_rules

    write_text(list_rules() if code is None else explain_rule(code))


for _command in (doctor, probe, trace, decode_latency, route, ab_report, ab_run, review):
    app.command(_command.__name__.replace("_", "-"))(_command)


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
