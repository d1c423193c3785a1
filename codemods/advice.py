"""The second half of a refusal's sentence: what a maintainer can do about it.

A sentence says what is there and, behind a semicolon, what to do. Where whoever refuses knows
nothing more telling, that is what the rule says.
"""

from __future__ import annotations

import re

from normport.codemods.model import Site
from normport.codemods.registry import all_rules

_QUOTED = re.compile(r"`[^`]*`")


def action(sentence: str) -> str | None:
    """What the sentence says to do; source text in it, which is quoted, says nothing."""
    head, semicolon, _ = _QUOTED.sub(lambda m: "_" * len(m[0]), sentence).rpartition("; ")
    return sentence[len(head) + 2 :] if semicolon else None


def advised(code: str, sentence: str) -> str:
    """The sentence, with what the rule ``code`` says to do where it says nothing itself."""
    rule = all_rules().get(code)
    if rule is None or not rule.do or action(sentence) is not None:
        return sentence
    return f"{sentence.removesuffix('.')}; {rule.do}."


def with_advice(site: Site) -> Site:
    """The site, with the whole sentence where it is refused."""
    if site.verdict != "refuse" or site.reason is None:
        return site
    return site.refused(site.code, advised(site.code, site.reason))
