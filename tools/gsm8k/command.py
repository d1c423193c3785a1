"""``gsm8k`` and ``gsm8k compare``: put the parts together, say what came of it."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normport.tools.errors import UserError
from normport.tools.evidence_files import write_json
from normport.tools.gsm8k.backend import Backend, Decoding
from normport.tools.gsm8k.compare import compare, said
from normport.tools.gsm8k.data import Problems, load
from normport.tools.gsm8k.prompts import STOPS, Asked, Style, prompts
from normport.tools.gsm8k.results import said as said_result
from normport.tools.gsm8k.smoke import Step, ask
from normport.tools.patch_state import patch_state
from normport.tools.terminal import note, say

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

UNKNOWN_STATE = {"state": "unknown"}


@dataclass(frozen=True)
class Request:
    """The options of ``normport gsm8k``, as the command line has them.

    api_key: goes to the server and nowhere else; no message and no result shows it.
    """

    base_url: str | None
    model: Path | None
    served_model: str | None
    api_key: str | None = field(repr=False)
    chat: bool
    engine_args: str | None
    data: Path | None
    examples: Path | None
    num_questions: int
    num_shots: int
    style: Style
    max_tokens: int
    warmups: int
    retries: int
    retry_wait_s: float
    timeout_s: float
    series: Path | None
    package: Path | None
    out: Path
    resume: bool


def gsm8k_command(request: Request) -> int:
    """Ask, score, write the result and say it. UserError where that cannot be done."""
    _check(request)
    gc.enable()  # the command line turned it off, for runs that are short
    if request.out.exists() and not request.resume:
        # Told before anything is loaded; `ask` would tell it only after.
        raise UserError(
            f"{request.out} exists: go on with it by --resume, or name another with --out."
        )
    state = _patch_state(request)
    # A server is asked for its models first, because the data may take a download; an engine is
    # loaded last, because that takes longer.
    with ExitStack() as stack:
        backend: Backend | None = None
        if request.base_url is not None:
            backend = stack.enter_context(closing(_server(request, request.base_url)))
        problems = load(request.data, request.examples, request.num_shots)
        asked = prompts(problems, request.style, request.num_shots, request.num_questions)
        if len(asked) < request.num_questions:
            note(f"note: {problems.source} has {len(asked)} questions to ask, fewer than wanted.")
        if backend is None:
            backend = stack.enter_context(closing(_engine(request)))
        result = _asked(request, backend, problems, asked, state)
    say(said_result(result))
    note(f"Written to {request.out}.")
    return 0


def _asked(
    request: Request,
    backend: Backend,
    problems: Problems,
    asked: Sequence[Asked],
    state: dict[str, Any],
) -> dict[str, Any]:
    """The result of asking ``backend``, which the file of the request then holds."""
    decoding = Decoding(request.max_tokens, STOPS[request.style])
    run = {
        **backend.about(),
        "patch_series": state,
        "style": request.style.value,
        "num_shots": request.num_shots,
        "num_questions": len(asked),
        "max_tokens": decoding.max_tokens,
        "stop": list(decoding.stop),
        "temperature": 0,
        "data": problems.source,
        "examples": problems.examples_source,
        "warmups": request.warmups,
        "retries": request.retries,
        "timeout_s": request.timeout_s,
        "normport": version("normport"),
    }
    try:
        with progress() as step:
            return ask(
                backend,
                asked,
                decoding,
                request.out,
                run=run,
                warmups=request.warmups,
                resume=request.resume,
                step=step,
            )
    except KeyboardInterrupt:
        note(f"Interrupted; {request.out} has the answers so far, and --resume goes on with it.")
        raise


def compare_command(
    before: Path, after: Path, *, require_identical: bool, json_out: Path | None
) -> int:
    """Compare two result files; 1 where the second is worse in a way that must not pass."""
    found = compare(before, after)
    if json_out is not None:
        write_json(json_out, asdict(found))
    say(said(found))
    return 1 if found.failed(require_identical=require_identical) else 0


def _check(request: Request) -> None:
    if (request.base_url is None) == (request.model is None):
        raise UserError("Name either a server with --base-url or a checkpoint with --model.")
    if request.model is not None and (request.chat or request.served_model is not None):
        raise UserError("--chat and --served-model are about a server; --model has none.")
    if request.base_url is not None and request.engine_args is not None:
        raise UserError("--engine-args is for --model; a server has its own arguments.")
    _engine_args(request.engine_args)
    if request.package is not None and request.series is None:
        raise UserError("--package says where to look for a series: name that with --series.")


def _server(request: Request, base_url: str) -> Backend:
    from normport.tools.gsm8k.policy import Policy

    try:
        from normport.tools.gsm8k.server import Server
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed, which asks a server: run "
            "`pip install '.[evidence]'` where normport's sources are."
        ) from error
    return Server(
        base_url,
        request.served_model,
        Policy(request.retries, request.retry_wait_s, request.timeout_s),
        chat=request.chat,
        key=request.api_key,
        note=note,
    )


def _engine(request: Request) -> Backend:
    from normport.tools.gsm8k.engine import Engine

    assert request.model is not None
    return Engine(request.model, _engine_args(request.engine_args))


def _engine_args(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"--engine-args is not JSON ({error}); give an object.") from error
    if not isinstance(value, dict):
        raise UserError('--engine-args is no JSON object; give it as {"enforce_eager": true}.')
    return value


def _patch_state(request: Request) -> dict[str, Any]:
    if request.series is None:
        return UNKNOWN_STATE
    package = request.package
    if package is None:
        if request.model is None:
            raise UserError(
                "Which vLLM the server runs is not known from here: name its vllm folder with "
                "--package."
            )
        spec = find_spec("vllm")
        if spec is None or spec.origin is None:
            raise UserError("vLLM is not installed here: name its folder with --package.")
        package = Path(spec.origin).parent
    elif not package.is_dir():
        raise UserError(f"{package} is no folder; name the vllm package with --package.")
    return patch_state(package, request.series)


@contextmanager
def progress() -> Iterator[Step]:
    """A bar with rate and remaining time on stderr; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Questions a minute, over the last ones."""

        def render(self, task: Task) -> Text:
            return Text("-- /min" if task.speed is None else f"{task.speed * 60:.1f} /min")

    with Progress(
        TextColumn("questions"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        speed_estimate_period=600,
    ) as bar:
        task = bar.add_task("", total=None)

        def step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            bar.refresh()

        yield step
