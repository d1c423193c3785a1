"""The sites of a series as its manifest records them: old norm, new norm, semantics, proof."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from normport.codemods.model import Computes
from normport.tools.formats.text_format import describe
from normport.tools.review.diffs import FileDiff

Verdict = Literal["safe", "unsafe", "unproven", "refused", "apart"]

DTYPES = ("float32", "float16", "bfloat16")
BUCKETS = ("0", "1", "2-4", "5-16", "17-256", ">256")
"""Distances in ulps, as the proof counts them."""

# Up to an opening bracket, for a construction may stand on the line below its attribute.
_ATTRIBUTE = re.compile(r"self\.(\w+)(?:\s*:[^=]*)?\s*=\s*\(?\s*$")
_SAFETIES: tuple[Verdict, ...] = ("safe", "unsafe", "unproven")
_ENDS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


@dataclass(frozen=True)
class Measured:
    """Old and new in one run dtype; distances in ulps of it, see ``proof.DtypeResult``."""

    dtype: str
    max_ulp: int
    max_ulp_normal: int
    differing: int
    elements: int
    inputs: int
    beyond: int
    nonfinite: int
    zero_signs: int
    worst: str | None
    histogram: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """The differing elements among all, 0 to 1."""
        return self.differing / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class Proof:
    """One table. title: how the norm was called, or what was loaded; empty for the main one.

    counts: it enters the verdict. A checkpoint of another dtype than the run's does not.
    """

    title: str
    results: tuple[Measured, ...]
    counts: bool = True

    @property
    def worst_ulp(self) -> int:
        """The largest distance in it."""
        return max((result.max_ulp for result in self.results), default=0)


@dataclass(frozen=True)
class Site:
    """One construction of a norm, converted or refused.

    attribute: what it is stored in; None where the diff does not show it.
    old: its source before; the name of the norm alone where the diff does not show more.
    computes: the semantics in a few words. formula: the same as a formula.
    facts: the semantics in pairs of name and value.
    """

    path: str
    line: int
    code: str
    norm: str
    verdict: Verdict
    attribute: str | None
    old: str
    new: str | None
    computes: str | None
    formula: str | None
    facts: tuple[tuple[str, str], ...]
    reason: str | None
    proofs: tuple[Proof, ...]
    lost_comments: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.attribute or self.norm

    @property
    def worst_ulp(self) -> int | None:
        """The largest distance of what enters the verdict; None when nothing ran."""
        return max((proof.worst_ulp for proof in self.proofs if proof.counts), default=None)

    @property
    def other_checkpoint_ulp(self) -> int:
        """The largest distance where a float32 checkpoint is served in a narrower dtype."""
        return max((proof.worst_ulp for proof in self.proofs if not proof.counts), default=0)


def read_site(entry: Mapping[str, Any], diffs: Sequence[FileDiff] = ()) -> Site:
    """One record of a manifest's evidence.

    diffs: where the old source may be seen, for its lines are those of the file before them.

    Raises:
        KeyError, TypeError, ValueError: it is no such record.
    """
    path, line, norm = _string(entry["path"]), _count(entry["line"]), _norm(entry)
    old, attribute = _old(diffs, path, line, _count(entry["column"]))
    computes = entry.get("computes")
    record = None if computes is None else Computes(**computes)
    return Site(
        path=path,
        line=line,
        code=_string(entry["code"]),
        norm=norm,
        verdict=_verdict(entry),
        attribute=attribute,
        old=old or norm,
        new=_text(entry.get("target")),
        computes=None if record is None else describe(record),
        formula=None if record is None else formula(record),
        facts=() if record is None else tuple(_facts(record)),
        reason=_text(entry.get("reason")),
        proofs=_proofs(entry.get("equivalence")),
        lost_comments=tuple(map(_string, entry.get("lost_comments", ()))),
    )


def formula(computes: Computes) -> str:
    """What is computed, with where it rounds, e.g. ``round(y · (1 + w))`` for Gemma's norm."""
    inner = "x + residual" if computes.residual else "x"
    if computes.mean_subtracted:
        inner = f"{inner} - mean({inner})"
    eps = computes.eps or "eps"
    steps = [f"y = ({inner}) / sqrt(mean(({inner})²) + {eps}) in float32"]
    if inner == "x":
        steps = [f"y = x / sqrt(mean(x²) + {eps}) in float32"]
    factor = {"none": "", "scale": "w", "offset": f"({computes.offset:g} + w)"}[computes.weight]
    if not factor:
        steps.append("result = round(y)")
    elif computes.multiply_in == "float32":
        steps.append(f"result = round(y · {factor}), one rounding after a float32 product")
    elif computes.multiply_in is None:
        steps.append(f"result = y · {factor}")
    else:
        steps.append(f"result = round(y) · {factor}, rounded before the product")
    return "\n".join(steps)


def _norm(entry: Mapping[str, Any]) -> str:
    if "norm" in entry:
        return _string(entry["norm"])
    # A place where two norms follow each other, with a residual between them.
    second = f", add, {entry['second']}" if entry.get("second") else ""
    return f"{entry['function']}: {entry['first']}{second}"


def _verdict(entry: Mapping[str, Any]) -> Verdict:
    if entry["verdict"] == "refuse":
        return "apart" if str(entry["code"]).startswith("NP4") else "refused"
    safety = entry.get("safety")
    for known in _SAFETIES:
        if safety == known:
            return known
    proofs = [proof for proof in _proofs(entry.get("equivalence")) if proof.counts]
    measured = [result for proof in proofs for result in proof.results]
    if not measured:
        return "unproven"
    return "unsafe" if any(m.differing or m.nonfinite for m in measured) else "safe"


def _text(value: object) -> str | None:
    return None if value is None else _string(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"no number of things: {value!r}")
    return value


def _facts(computes: Computes) -> list[tuple[str, str]]:
    weight = {
        "none": "none",
        "scale": "scale: y · w",
        "offset": f"offset: y · ({computes.offset:g} + w)",
    }[computes.weight]
    facts = [("weight", weight)]
    if computes.weight != "none":
        facts += [
            ("product in", computes.multiply_in or "not known"),
            ("weight stored in", computes.weight_dtype or "not known"),
            ("weight starts as", computes.initial or "not known"),
        ]
    facts.append(("eps", computes.eps or "not known"))
    extras = [
        name
        for name, there in (
            ("adds a residual", computes.residual),
            ("groups", computes.grouped),
            ("gate", computes.gated),
            ("bias", computes.bias),
            ("subtracts the mean", computes.mean_subtracted),
        )
        if there
    ]
    if extras:
        facts.append(("also", ", ".join(extras)))
    return facts


def _proofs(equivalence: Mapping[str, Any] | None) -> tuple[Proof, ...]:
    if not equivalence:
        return ()
    main = {name: equivalence[name] for name in equivalence if name in DTYPES}
    found = [Proof("", _measured(main))] if main else []
    if more := equivalence.get("forms"):
        found += [Proof(f"called as {form}", _measured(result)) for form, result in more.items()]
    if loaded := equivalence.get("float32_checkpoint"):
        title = "a float32 checkpoint served in a narrower dtype, which enters no verdict"
        found.append(Proof(title, _measured(loaded), counts=False))
    return tuple(found)


def _measured(results: Mapping[str, Mapping[str, Any]]) -> tuple[Measured, ...]:
    found = tuple(
        Measured(
            dtype=dtype,
            **{name: _count(results[dtype][name]) for name in _COUNTS},
            worst=_text(results[dtype]["worst"]),
            histogram=tuple((b, _count(results[dtype]["histogram"][b])) for b in BUCKETS),
        )
        for dtype in DTYPES
        if dtype in results
    )
    for one in found:
        # A page that contradicts itself would show neither number to be right.
        equal, *apart = (count for _, count in one.histogram)
        if equal + sum(apart) != one.elements or sum(apart) != one.differing:
            raise ValueError(f"the distances in {one.dtype} do not add up")
    return found


_COUNTS = (
    "max_ulp",
    "max_ulp_normal",
    "differing",
    "elements",
    "inputs",
    "beyond",
    "nonfinite",
    "zero_signs",
)


def _old(
    diffs: Sequence[FileDiff], path: str, line: int, column: int
) -> tuple[str | None, str | None]:
    """The construction at that place and the attribute that it is stored in, from the old side."""
    for diff in diffs:
        source = diff.source() if diff.path == path else {}
        text = source.get(line)
        if text is None:
            continue
        before = text[: column - 1]
        attribute = _ATTRIBUTE.search(before if before.strip() else source.get(line - 1, ""))
        return _expression(source, line, column), attribute[1] if attribute else None
    return None, None


def _expression(source: Mapping[int, str], line: int, column: int) -> str | None:
    """From the place to where its brackets are closed; None when the diff ends before."""
    depth = 0
    parts: list[str] = []
    for number in range(line, line + 40):
        if number not in source:
            return None
        text = source[number][column - 1 :] if number == line else source[number].strip()
        for at, char in enumerate(text):
            depth += _ENDS.get(char, 0)
            if depth == 0 and char in ")]}":
                return _joined([*parts, text[: at + 1]])
        if depth == 0:
            return None  # no call: its name says as much
        parts.append(text)
    return None


def _joined(parts: Sequence[str]) -> str:
    text = " ".join(part.strip() for part in parts)
    text = re.sub(r"([(\[{]) ", r"\1", text)
    return re.sub(r",? ([)\]}])", r"\1", text)
