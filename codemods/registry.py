"""Rules: what can be converted, what is refused, and why. Found by walking ``rules/``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from normport.codemods import rules
from normport.codemods.model import Computes


@dataclass(frozen=True)
class NormSite:
    """What a rule needs to write its target.

    size: source text of the normalised size in the constructing scope.
    eps: source text of the epsilon there.
    """

    computes: Computes
    size: str
    eps: str


@dataclass(frozen=True)
class Target:
    """A replacement: ``text`` on one line, what it imports, and a sentence when it needs one.

    layer: the standard layer's class name.
    """

    layer: str
    text: str
    imports: dict[str, tuple[str, ...]]
    reason: str | None = None


STARTS = {"RMSNorm": "ones", "GemmaRMSNorm": "zeros"}
"""What the weight of a standard layer is before a checkpoint is loaded."""


def starts_otherwise(computes: Computes, layer: str) -> str | None:
    """A sentence where the local weight starts as something else than ``layer``'s."""
    if computes.initial in (None, "empty", STARTS[layer]):
        return None
    return (
        f"The local weight starts as {computes.initial}, {layer}'s as {STARTS[layer]}; "
        "a checkpoint overwrites both."
    )


@dataclass(frozen=True)
class Example:
    """Source before and after; ``after`` is None where the rule refuses."""

    before: str
    after: str | None


@dataclass(frozen=True)
class Rule:
    """One kind of finding.

    applies, target: for ``convert`` rules only. ``target(site, unsafe)`` writes the
    replacement; ``unsafe`` asks for the variant that is equal within a bound only.
    part: the pass that the rule belongs to: over norms, or over sandwiches of them (opt-in).
    do: of a rule that refuses: what a maintainer can do, as the end of a sentence.
    """

    code: str
    kind: Literal["convert", "done", "refuse"]
    title: str
    why: str
    examples: tuple[Example, ...]
    applies: Callable[[Computes], bool] | None = None
    target: Callable[[NormSite, bool], Target] | None = None
    part: Literal["norms", "sandwich"] = "norms"
    do: str = ""


def refusal(code: str, title: str, why: str, *examples: Example, do: str) -> Rule:
    """A rule that refuses."""
    return Rule(code=code, kind="refuse", title=title, why=why, examples=examples, do=do)


def changed(source: str, *changes: tuple[str, str]) -> Example:
    """An example of a refusal: ``source`` with each ``(old, new)`` carried out.

    Raises ValueError when an ``old`` does not occur.
    """
    for old, new in changes:
        if old not in source:
            raise ValueError(f"the example does not contain {old!r}")
        source = source.replace(old, new)
    return Example(before=source, after=None)


LAYERNORM = "vllm.model_executor.layers.layernorm"


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in order of code.

    Raises ValueError when two files claim one code.
    """
    found: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(rules.__path__, rules.__name__ + "."):
        module = importlib.import_module(info.name)
        for rule in module.RULES:
            if rule.code in found:
                raise ValueError(f"two rules claim the code {rule.code}")
            found[rule.code] = rule
    return dict(sorted(found.items()))


ALL = "NP"
"""What every code begins with; ``ALL`` is another word for it."""


def as_prefix(name: str) -> str:
    """A code, or the beginning of several, as it is written in upper or lower case."""
    text = name.strip().upper()
    return ALL if text == "ALL" else text


def matched(prefix: str) -> list[str]:
    """The codes that begin with ``prefix``; none where that is no beginning of a code."""
    return [code for code in all_rules() if prefix.startswith(ALL) and code.startswith(prefix)]


def conversion(computes: Computes) -> Rule | None:
    """The rule that converts what ``computes`` describes."""
    for rule in all_rules().values():
        if rule.applies is not None and rule.applies(computes):
            return rule
    return None
