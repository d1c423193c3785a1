"""Two runs over the same questions: what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normport.tools.bootstrap import LEVEL, Interval, paired_change
from normport.tools.errors import UserError
from normport.tools.gsm8k.results import RESUMED, read_result
from normport.tools.gsm8k.scoring import SCORERS
from normport.tools.plural import many

CONTEXT = 30
"""Characters shown on each side of the first difference."""


@dataclass(frozen=True)
class Divergence:
    """Where the outputs to one question part.

    character, token: counted from 0; token is None where a run has no token ids. before, after:
    the text from shortly before that place on.
    """

    index: int
    character: int
    token: int | None
    before: str
    after: str


@dataclass(frozen=True)
class Comparison:
    """What differs from the run before to the run after.

    scores: per scorer, accuracy and invalid outputs, before and after. lost, new_invalid: scorer
    and question index. change_percent: of the mean ms/token over the questions that both time.
    settings: names of what was set otherwise, with both values. resumed: whether a run is timed
    in more than one session.
    """

    questions: int
    divergences: tuple[Divergence, ...]
    scores: dict[str, dict[str, float | int]]
    lost: tuple[tuple[str, int], ...]
    gained: tuple[tuple[str, int], ...]
    new_invalid: tuple[tuple[str, int], ...]
    timed: int
    change_percent: float | None
    interval: Interval | None
    settings: tuple[tuple[str, Any, Any], ...]
    resumed: bool

    def failed(self, *, require_identical: bool) -> bool:
        """Whether the second run is worse in a way that must not pass."""
        return bool(self.lost or self.new_invalid or (require_identical and self.divergences))


def compare(before: Path, after: Path) -> Comparison:
    """Compare two result files; UserError where they do not answer the same questions."""
    first, second = read_result(before), read_result(after)
    pairs = _paired(first, second, before, after)
    lost, gained, invalid = [], [], []
    scores: dict[str, dict[str, float | int]] = {}
    for name in SCORERS:
        verdicts = [
            (one["scores"][name]["verdict"], two["scores"][name]["verdict"]) for one, two in pairs
        ]
        for (one, _), (had, has) in zip(pairs, verdicts, strict=True):
            if had == has:
                continue
            if had == "correct":
                lost.append((name, one["index"]))
            if has == "correct":
                gained.append((name, one["index"]))
            if has == "invalid":
                invalid.append((name, one["index"]))
        firsts, seconds = zip(*verdicts, strict=True)
        scores[name] = {
            "accuracy_before": firsts.count("correct") / len(pairs),
            "accuracy_after": seconds.count("correct") / len(pairs),
            "invalid_before": firsts.count("invalid"),
            "invalid_after": seconds.count("invalid"),
        }
    timed = [
        (one["ms_per_token"], two["ms_per_token"])
        for one, two in pairs
        if one["ms_per_token"] and two["ms_per_token"]
    ]
    change, interval = None, None
    if timed:
        change, interval = paired_change([t[0] for t in timed], [t[1] for t in timed])
    return Comparison(
        questions=len(pairs),
        divergences=tuple(
            _divergence(one, two)
            for one, two in pairs
            if one["output_sha256"] != two["output_sha256"]
        ),
        scores=scores,
        lost=tuple(lost),
        gained=tuple(gained),
        new_invalid=tuple(invalid),
        timed=len(timed),
        change_percent=change,
        interval=interval,
        settings=_settings(first["run"], second["run"]),
        resumed=any(RESUMED in result["run"] for result in (first, second)),
    )


def _paired(
    first: dict[str, Any], second: dict[str, Any], before: Path, after: Path
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    for path, result in ((before, first), (after, second)):
        if not result.get("complete"):
            raise UserError(f"{path} is not complete: finish the run with --resume.")
        if not result["questions"]:
            raise UserError(f"{path} has no question; nothing can be compared.")
    ours = {q["index"]: q for q in first["questions"]}
    theirs = {q["index"]: q for q in second["questions"]}
    if ours.keys() != theirs.keys():
        raise UserError(
            f"{before} answers {many(len(ours), 'question')} and {after} {len(theirs)}, not the "
            "same ones: run both with the same --num-questions."
        )
    for index, question in ours.items():
        if question["prompt_sha256"] != theirs[index]["prompt_sha256"]:
            raise UserError(
                f"{before} and {after} have different prompts for question {index}: run both "
                "with the same data, --style and --num-shots."
            )
    return [(ours[index], theirs[index]) for index in sorted(ours)]


def _divergence(one: dict[str, Any], two: dict[str, Any]) -> Divergence:
    before, after = one["output"], two["output"]
    place = _first_difference(before, after)
    token = None
    if one["tokens"] is not None and two["tokens"] is not None:
        token = _first_difference(one["tokens"], two["tokens"])
    start = max(0, place - CONTEXT)
    return Divergence(
        one["index"],
        place,
        token,
        before[start : place + CONTEXT],
        after[start : place + CONTEXT],
    )


def _first_difference(one: Sequence[Any], two: Sequence[Any]) -> int:
    same = (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return next(same, min(len(one), len(two)))


def _settings(one: dict[str, Any], two: dict[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    return tuple(
        (name, one.get(name), two.get(name))
        for name in sorted(one.keys() | two.keys())
        if one.get(name) != two.get(name)
    )


def said(found: Comparison) -> str:
    """The comparison as text, for the terminal."""
    lines = [f"{many(found.questions, 'question')}, the same in both"]
    lines += [
        f"  {name}: {_short(one)} before, {_short(two)} after" for name, one, two in found.settings
    ]
    same = found.questions - len(found.divergences)
    lines.append(f"outputs: {same} identical, {len(found.divergences)} different")
    for each in found.divergences:
        token = "" if each.token is None else f", token {each.token}"
        lines += [
            f"  question {each.index}: from character {each.character}{token} on",
            f"    before {each.before!r}",
            f"    after  {each.after!r}",
        ]
    for name, score in found.scores.items():
        lines.append(
            f"{name}: {score['accuracy_before']:.1%} -> {score['accuracy_after']:.1%} correct, "
            f"{score['invalid_before']} -> {score['invalid_after']} invalid"
        )
    for label, entries in (
        ("lost", found.lost),
        ("gained", found.gained),
        ("newly invalid", found.new_invalid),
    ):
        lines += [f"  {label}: question {index} by {name}" for name, index in entries]
    lines.append(_speed(found))
    return "\n".join(lines)


def _speed(found: Comparison) -> str:
    if found.change_percent is None:
        return "ms/token: unknown, a run does not count tokens"
    text = f"ms/token: {found.change_percent:+.2f} % (lower is better)"
    if found.resumed:
        return f"{text}; a resumed run was timed in more than one session, so no claim"
    if found.interval is None:
        return f"{text}; one question says nothing about the spread, so no claim"
    low, high = found.interval.low, found.interval.high
    claim = "" if low > 0 or high < 0 else "; no change is shown, the interval holds 0"
    over = f"{LEVEL:.0%} interval {low:+.2f} to {high:+.2f} over {found.timed} questions"
    return f"{text}, {over}{claim}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        parts = [
            f"{name} {len(each) if isinstance(each, list) else each}"
            for name, each in value.items()
        ]
        text = ", ".join(parts)
    else:
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
