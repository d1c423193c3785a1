"""One rule for people: what, why, before and after."""

from __future__ import annotations

from normport.codemods.registry import all_rules
from normport.tools.errors import UserError


def explain_rule(code: str) -> str:
    """The rule's page as plain text.

    Raises UserError for a code that no rule has.
    """
    rules = all_rules()
    rule = rules.get(code.upper())
    if rule is None:
        known = ", ".join(rules)
        raise UserError(f"There is no rule {code!r}; the known ones are {known}.")
    parts = [f"{rule.code}: {rule.title} ({_KINDS[rule.kind]})", "", rule.why.strip(), ""]
    for example in rule.examples:
        parts += _example(example.before, example.after)
    return "\n".join(parts).rstrip() + "\n"


def list_rules() -> str:
    """Every rule with its title, one a line."""
    return "".join(
        f"{rule.code}  {_KINDS[rule.kind]:13}  {rule.title}\n" for rule in all_rules().values()
    )


_KINDS = {"convert": "converted", "done": "nothing to do", "refuse": "refused"}


def _example(before: str, after: str | None) -> list[str]:
    parts = ["Before:" if after is not None else "Left alone:", "", _indented(before), ""]
    if after is not None:
        parts += ["After:", "", _indented(after), ""]
    return parts


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))
