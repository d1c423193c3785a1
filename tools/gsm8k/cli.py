"""The options of ``normport gsm8k`` and ``normport gsm8k compare``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from normport.tools.options import path_argument

app = typer.Typer(help="GSM8K smoke test, and the comparison of two of them.")

RETRIES = (
    "A request is made again after: no connection, a timeout, HTTP 408, 425, 429 or 5xx, a stream "
    "that breaks off. Not after any other answer of 4xx, as for a wrong model name. The wait "
    "doubles each time. When the retries are used up the run ends with status 2; what was answered "
    "is kept, and --resume goes on."
)


class StyleOption(StrEnum):
    """The values of ``--style``; the same as ``prompts.Style``, without importing it."""

    harness = "lm-eval"
    vllm = "vllm"


def _file(name: str, text: str, metavar: str = "FILE") -> object:
    return typer.Option(name, metavar=metavar, parser=path_argument, help=text)


@app.callback(invoke_without_command=True, epilog=RETRIES)
def gsm8k(
    context: typer.Context,
    base_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible server, e.g. http://127.0.0.1:8000.")
    ] = None,
    model: Annotated[
        Path | None, _file("--model", "Checkpoint for vLLM in this process.", "DIR")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Model name at the server; the only one by default.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="OPENAI_API_KEY",
            show_default=False,
            help="What the server asks for; better in the variable, which no process list shows.",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as one chat message.")
    ] = False,
    engine_args: Annotated[
        str | None, typer.Option(metavar="JSON", help="More arguments of vllm.LLM, for --model.")
    ] = None,
    data: Annotated[
        Path | None,
        _file("--data", "Question/answer records (JSON lines); openai/gsm8k by default."),
    ] = None,
    examples: Annotated[
        Path | None,
        _file(
            "--examples",
            "Records to draw the examples from; by default the training split, or with --data the "
            "first records there, which are then not asked.",
        ),
    ] = None,
    num_questions: Annotated[int, typer.Option(min=1, help="Questions, from the first on.")] = 10,
    num_shots: Annotated[int, typer.Option(min=0, help="Solved examples in each prompt.")] = 5,
    style: Annotated[
        StyleOption, typer.Option(help="Whose choice of examples and stop strings is used.")
    ] = StyleOption.harness,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    warmup: Annotated[int, typer.Option(min=0, help="Answers before that are not counted.")] = 1,
    retries: Annotated[int, typer.Option(min=0, help="Further attempts of a request.")] = 3,
    retry_wait: Annotated[
        float, typer.Option(min=0, help="Seconds before the first further attempt.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Most seconds of silence within an answer.")
    ] = 600.0,
    series: Annotated[
        Path | None, _file("--series", "Tell whether vLLM holds this patch series.", "DIR")
    ] = None,
    package: Annotated[
        Path | None,
        _file("--package", "The vllm folder to look for it; that of --model by default.", "DIR"),
    ] = None,
    out: Annotated[Path, _file("--out", "Where the result goes.")] = Path("gsm8k.json"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --out.")] = False,
) -> None:
    """Ask GSM8K questions one at a time, greedily; score as lm-evaluation-harness and vLLM do."""
    if context.invoked_subcommand is not None:
        return
    from normport.tools.gsm8k.command import Request, gsm8k_command
    from normport.tools.gsm8k.prompts import Style

    request = Request(
        base_url=base_url,
        model=model,
        served_model=served_model,
        api_key=api_key,
        chat=chat,
        engine_args=engine_args,
        data=data,
        examples=examples,
        num_questions=num_questions,
        num_shots=num_shots,
        style=Style(style.value),
        max_tokens=max_tokens,
        warmups=warmup,
        retries=retries,
        retry_wait_s=retry_wait,
        timeout_s=timeout,
        series=series,
        package=package,
        out=out,
        resume=resume,
    )
    raise typer.Exit(gsm8k_command(request))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", parser=path_argument)],
    after: Annotated[Path, typer.Argument(metavar="B.json", parser=path_argument)],
    require_identical: Annotated[
        bool, typer.Option("--require-identical", help="Also fail where an output differs.")
    ] = False,
    json_out: Annotated[Path | None, _file("--json", "Also write the comparison there.")] = None,
) -> None:
    """What changed from A to B; status 1 for a lost answer or a new invalid one."""
    from normport.tools.gsm8k.command import compare_command

    raise typer.Exit(
        compare_command(before, after, require_identical=require_identical, json_out=json_out)
    )
