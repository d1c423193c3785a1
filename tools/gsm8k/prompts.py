"""Few-shot prompts as two known evaluations write them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from normport.tools.errors import UserError
from normport.tools.gsm8k.data import Problems, Record

HARNESS_SEED = 1234
"""lm-evaluation-harness's default seed of the generator that draws the examples."""

MAX_TOKENS = 256
"""Default length of an answer, the same in both evaluations."""


class Style(StrEnum):
    """Whose prompts and stop strings are used."""

    harness = "lm-eval"
    vllm = "vllm"


STOPS = {
    Style.harness: ("Question:", "</s>", "<|im_end|>"),
    Style.vllm: ("Question", "Assistant:", "<|separator|>"),
}


@dataclass(frozen=True)
class Asked:
    """One question as it is sent; ``index`` counts from 0 in the order of the data."""

    index: int
    prompt: str
    reference: str

    @property
    def digest(self) -> str:
        """sha256 of the prompt's UTF-8 bytes, in hexadecimal."""
        return sha256(self.prompt)


def sha256(text: str) -> str:
    """sha256 of UTF-8 bytes, in hexadecimal; a lone surrogate counts as Python's own encoding."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def prompts(problems: Problems, style: Style, shots: int, count: int) -> tuple[Asked, ...]:
    """The first ``count`` questions, each behind its ``shots`` examples.

    The harness draws anew for each question, from one generator over all of them, so a prompt
    depends on its place; vLLM's evaluation takes the first records for all.
    """
    if len(problems.examples) < shots:
        raise UserError(
            f"{problems.examples_source} has {len(problems.examples)} records, too few for "
            f"{shots} examples; name more with --examples or ask for fewer with --num-shots."
        )
    if not problems.questions:
        raise UserError(
            f"{problems.source} has no question left to ask: its first {shots} records are the "
            "examples; name those with --examples."
        )
    draw = random.Random(HARNESS_SEED)
    asked = []
    for index, record in enumerate(problems.questions[:count]):
        examples = (
            draw.sample(problems.examples, shots)
            if style is Style.harness
            else problems.examples[:shots]
        )
        asked.append(Asked(index, _prompt(examples, record), record.answer))
    return tuple(asked)


def _prompt(examples: Sequence[Record], record: Record) -> str:
    solved = (f"Question: {each.question}\nAnswer: {each.answer}\n\n" for each in examples)
    return "".join(solved) + f"Question: {record.question}\nAnswer:"
