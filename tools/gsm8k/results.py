"""The result file: one entry per question, and what they amount to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.evidence_files import read_object
from normport.tools.gsm8k.backend import Output
from normport.tools.gsm8k.prompts import Asked, sha256
from normport.tools.gsm8k.scoring import SCORERS, VERDICTS, score
from normport.tools.plural import many

SCHEMA = 1
KIND = "normport gsm8k"
RESUMED = "resumed_after"
"""Of a run that was resumed: how many questions were answered each time."""


def entry(asked: Asked, output: Output) -> dict[str, Any]:
    """One question of the result file. Times in milliseconds; a token's includes the prompt's."""
    ms = output.latency_s * 1000
    return {
        "index": asked.index,
        "prompt_sha256": asked.digest,
        "output_sha256": sha256(output.text),
        "output": output.text,
        "finish_reason": output.finish_reason,
        "scores": {
            name: {"answer": scored.answer, "verdict": scored.verdict}
            for name, scored in score(output.text, asked.reference).items()
        },
        "prompt_tokens": output.prompt_tokens,
        "output_tokens": output.output_tokens,
        "latency_ms": ms,
        "ttft_ms": None if output.ttft_s is None else output.ttft_s * 1000,
        "ms_per_token": ms / output.output_tokens if output.output_tokens else None,
        "tokens": output.tokens,
        "attempts": output.attempts,
    }


def summary(questions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy and invalid outputs per scorer, and the spread of ms/token over the questions."""
    count = len(questions)
    scores = {}
    for name in SCORERS:
        verdicts = [question["scores"][name]["verdict"] for question in questions]
        scores[name] = {
            "correct": verdicts.count("correct"),
            "accuracy": verdicts.count("correct") / count if count else None,
            "invalid": verdicts.count("invalid"),
        }
    return {
        "questions": count,
        "scores": scores,
        "ms_per_token": spread([q["ms_per_token"] for q in questions]),
        "prompt_tokens": _total([q["prompt_tokens"] for q in questions]),
        "output_tokens": _total([q["output_tokens"] for q in questions]),
    }


def spread(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Number, mean, sample standard deviation and range of the values that are known."""
    known = [value for value in values if value is not None]
    return {
        "n": len(known),
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "min": min(known, default=None),
        "max": max(known, default=None),
    }


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def read_result(path: Path) -> dict[str, Any]:
    """A result file that this normport understands; UserError otherwise."""
    what = "a result file that `normport gsm8k` wrote"
    result = read_object(path, what)
    if result.get("kind") != KIND or result.get("schema") != SCHEMA:
        raise UserError(f"{path} is not {what}, or one of another normport; name another.")
    questions = result.get("questions")
    if not isinstance(questions, list) or not isinstance(result.get("run"), dict):
        raise UserError(f"{path} lacks its run or its questions; write it again.")
    indices = set()
    for place, question in enumerate(questions):
        if not _is_entry(question):
            raise UserError(f"{path}: entry {place} of its questions is damaged; write it again.")
        indices.add(question["index"])
    if len(indices) < len(questions):
        raise UserError(f"{path} answers a question twice; write it again.")
    return result


def _is_entry(value: Any) -> bool:
    """Whether ``value`` has what ``entry`` makes; a file may have been edited."""
    if not isinstance(value, dict) or value.keys() != _ENTRY:
        return False
    scores, tokens = value["scores"], value["tokens"]
    return (
        _counts(value["index"])
        and all(isinstance(value[name], str) for name in ("prompt_sha256", "output"))
        and value["output_sha256"] == _digest(value["output"])
        and isinstance(scores, dict)
        and scores.keys() == SCORERS.keys()
        and all(isinstance(one, dict) and one.get("verdict") in VERDICTS for one in scores.values())
        and all(value[name] is None or _counts(value[name]) for name in _TOKENS)
        and all(value[name] is None or _measures(value[name]) for name in _TIMES)
        and (tokens is None or (isinstance(tokens, list) and all(map(_counts, tokens))))
    )


_TOKENS = ("prompt_tokens", "output_tokens")
_TIMES = ("latency_ms", "ttft_ms", "ms_per_token")
_ENTRY = {
    *("index", "prompt_sha256", "output_sha256", "output", "finish_reason", "scores", "tokens"),
    *("attempts", *_TOKENS, *_TIMES),
}


def _digest(text: str) -> str | None:
    try:
        return sha256(text)
    except UnicodeEncodeError:
        return None


def _counts(value: Any) -> bool:
    return type(value) is int and value >= 0


def _measures(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def said(result: dict[str, Any]) -> str:
    """The summary as text, for the terminal."""
    amounts, run = result["summary"], result["run"]
    lines = [
        f"{run['model']}: {many(amounts['questions'], 'question')}, {run['num_shots']}-shot, "
        f"{run['style']}"
    ]
    for name, scores in amounts["scores"].items():
        accuracy = (
            "none asked" if scores["accuracy"] is None else f"{scores['accuracy']:.1%} correct"
        )
        lines.append(f"  {name:<17}{accuracy} ({scores['correct']}), {scores['invalid']} invalid")
    speed = amounts["ms_per_token"]
    if speed["mean"] is None:
        lines.append("  ms/token         unknown: the server does not count tokens")
    else:
        sd = "" if speed["sd"] is None else f", standard deviation {speed['sd']:.2f}"
        lines.append(f"  ms/token         {speed['mean']:.2f} (mean of {speed['n']}{sd})")
    return "\n".join(lines)
