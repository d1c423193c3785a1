"""One rule for people: what, why, before and after."""

from __future__ import annotations

from collections.abc import Collection

from normport.codemods.registry import all_rules, as_prefix, matched
from normport.tools.errors import UserError


def explain_rule(code: str) -> str:
    """The rule's page as plain text; of the beginning of several codes, those rules by title.

    Raises UserError for a code that no rule has and none begins with.
    """
    rules = all_rules()
    prefix = as_prefix(code)
    rule = rules.get(prefix)
    if rule is None and (matching := matched(prefix)):
        return list_rules(matching)
    if rule is None:
        known = ", ".join(rules)
        raise UserError(f"There is no rule {code!r}; the known ones are {known}.")
    parts = [f"{rule.code}: {rule.title} ({_KINDS[rule.kind]})", "", rule.why.strip(), ""]
    if rule.do:
        parts += [f"What to do: {rule.do}.", ""]
    for example in rule.examples:
        parts += _example(example.before, example.after)
    return "\n".join(parts).rstrip() + "\n"


def list_rules(codes: Collection[str] | None = None) -> str:
    """Every rule, or those of ``codes``, with its title, one a line."""
    return "".join(
        f"{rule.code}  {_KINDS[rule.kind]:13}  {rule.title}\n"
        for rule in all_rules().values()
        if codes is None or rule.code in codes
    )


_KINDS = {"convert": "converted", "done": "nothing to do", "refuse": "refused"}


def _example(before: str, after: str | None) -> list[str]:
    if after is not None:
        return ["Before:", "", _indented(before), "", "After:", "", _indented(after), ""]
    return ["Left alone:", "", _indented(before), "", *_told(before)]


def _told(source: str) -> list[str]:
    """What a scan says of the example."""
    from normport.codemods.analyze import find_sites

    reasons = [site.reason for site in find_sites(source.encode(), "example") if site.reason]
    return [f"A scan says: {reasons[0]}", ""] if reasons else []


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))
