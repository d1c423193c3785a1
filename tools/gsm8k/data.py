"""Question/answer records, from a file or from the ``openai/gsm8k`` data set."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from normport.tools.errors import UserError
from normport.tools.gsm8k.scoring import VLLM_INVALID, vllm_answer

DATASET = "openai/gsm8k"

_ENDS_IN_NUMBER = re.compile(r"#### \S")


@dataclass(frozen=True)
class Record:
    """One problem; ``answer`` is the worked solution, which ends in ``#### NUMBER``."""

    question: str
    answer: str


@dataclass(frozen=True)
class Problems:
    """What is asked, what the few-shot examples are drawn from, and where both came from."""

    questions: tuple[Record, ...]
    examples: tuple[Record, ...]
    source: str
    examples_source: str


def load(data: Path | None, examples: Path | None, shots: int) -> Problems:
    """The problems to ask and the records to draw examples from.

    Without ``examples`` the first ``shots`` records of ``data`` are the examples and are not asked.
    Without ``data`` the data set's test split is asked, with examples from its training split.
    UserError where a file or the data set cannot be read.
    """
    if data is None:
        test = _split("test")
        train = read(examples) if examples else _split("train")
        return Problems(
            test,
            train,
            f"{DATASET} test",
            examples.name if examples else f"{DATASET} train",
        )
    asked = read(data)
    if examples is not None:
        return Problems(asked, read(examples), data.name, examples.name)
    return Problems(asked[shots:], asked[:shots], data.name, f"first {shots} of {data.name}")


def read(path: Path) -> tuple[Record, ...]:
    """The records of a JSON-lines file; blank lines are passed over."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"The questions in {path} cannot be read ({error.strerror or error}); name a file of "
            "question/answer records, one JSON object a line."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; name a file of JSON lines.") from error
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            records.append(_record(line, f"{path}:{number}"))
    if not records:
        raise UserError(f"{path} holds no questions; name a file of question/answer records.")
    return tuple(records)


def _record(line: str, where: str) -> Record:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); each line is one object.") from error
    question, answer = (
        (value.get("question"), value.get("answer")) if isinstance(value, dict) else (None, None)
    )
    if not isinstance(question, str) or not isinstance(answer, str):
        raise UserError(f"{where} lacks a text `question` or `answer`; each line has both.")
    try:
        (question + answer).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} holds half a character ({error.reason}); mend it.") from error
    if not _ENDS_IN_NUMBER.search(answer) or vllm_answer(answer) == VLLM_INVALID:
        raise UserError(f"{where}: the answer does not end in `#### NUMBER`, as GSM8K's do.")
    return Record(question, answer)


def _split(name: str) -> tuple[Record, ...]:
    try:
        import httpx
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed, which {DATASET} is loaded with: run "
            "`pip install '.[evidence]'` where normport's sources are, or name a file with --data."
        ) from error
    try:
        rows = load_dataset(DATASET, "main", split=name)
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"The data set {DATASET} could not be loaded ({said.rstrip('.')}); name a file with "
            "--data instead."
        ) from error
    return tuple(Record(row["question"], row["answer"]) for row in rows)
