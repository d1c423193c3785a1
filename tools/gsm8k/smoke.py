"""Ask the questions one after the other, and keep each answer as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.evidence_files import write_json
from normport.tools.gsm8k.backend import Backend, Decoding
from normport.tools.gsm8k.prompts import Asked
from normport.tools.gsm8k.results import KIND, RESUMED, SCHEMA, entry, read_result, summary

Step = Callable[[int, int], None]
"""Told how many questions are done, of how many."""

_MAY_DIFFER = {"num_questions", "warmups", "retries", "timeout_s", "normport", RESUMED}
"""What a resumed run may have otherwise than the run that it goes on with."""


def ask(
    backend: Backend,
    asked: Sequence[Asked],
    decoding: Decoding,
    out: Path,
    *,
    run: dict[str, Any],
    warmups: int = 1,
    resume: bool = False,
    step: Step = lambda *_: None,
) -> dict[str, Any]:
    """The result of all questions, which ``out`` then holds.

    run: what the file says about the run. warmups: answers to the first question that are
    thrown away before, none where all questions are answered already. UserError where ``out``
    exists and ``resume`` is not given, where it is from another run, or where the backend gives
    up; what was answered until then is kept in ``out``.
    """
    kept, before = _kept(out, asked, run, resume)
    missing = [question for question in asked if question.index not in kept]
    if before or (kept and missing):
        # The latencies are of more than one session then, perhaps on a machine of another load.
        run = {**run, RESUMED: [*before, *([len(kept)] if missing else [])]}
    step(len(kept), len(asked))

    def save() -> dict[str, Any]:
        questions = [kept[index] for index in sorted(kept)]
        result = {
            "schema": SCHEMA,
            "kind": KIND,
            "complete": len(kept) == len(asked),
            "run": run,
            "summary": summary(questions),
            "questions": questions,
        }
        write_json(out, result)
        return result

    result = save()  # now, so that a file that cannot be written costs no answer
    try:
        for _ in range(warmups if missing else 0):
            backend.generate(missing[0].prompt, decoding)
        for question in missing:
            kept[question.index] = entry(question, backend.generate(question.prompt, decoding))
            result = save()
            step(len(kept), len(asked))
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.')}; {len(kept)} of {len(asked)} questions are answered in "
            f"{out}, and --resume goes on with it."
        ) from error
    return result


def _kept(
    out: Path, asked: Sequence[Asked], run: dict[str, Any], resume: bool
) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """The answers that ``out`` has to these questions, by index, and its ``RESUMED``."""
    if not out.exists():
        return {}, []
    if not resume:
        raise UserError(f"{out} exists: go on with it by --resume, or name another with --out.")
    former = read_result(out)
    for name in sorted((former["run"].keys() | run.keys()) - _MAY_DIFFER):
        if former["run"].get(name) != run.get(name):
            raise UserError(
                f"{out} is from another run: its {name} is {former['run'].get(name)!r} and not "
                f"{run.get(name)!r}; name another file with --out."
            )
    digests = {question.index: question.digest for question in asked}
    kept = {}
    for question in former["questions"]:
        index = question["index"]
        if index not in digests:
            raise UserError(
                f"{out} has answers to more questions than are asked now: ask for as many with "
                "--num-questions, or name another file with --out."
            )
        if digests[index] != question["prompt_sha256"]:
            raise UserError(
                f"{out} has another prompt for question {index}: name the same data, or another "
                "file with --out."
            )
        kept[index] = question
    return kept, former["run"].get(RESUMED, []) if kept else []
