"""Every rule's examples do what the rule says; a second run changes nothing."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import find_sites, plan
from normport.codemods.edit import apply_plan
from normport.codemods.registry import Example, Rule, all_rules

# Decided from other files, or after the analysis; see test_analyze.py and the CLI's tests.
WITHOUT_EXAMPLE = {"NP100", "NP220", "NP226", "NP301", "NP302"}


def _cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, example, id=f"{rule.code}-{number}")
        for rule in all_rules().values()
        if rule.kind == kind and rule.part == "norms"
        for number, example in enumerate(rule.examples)
    ]


def test_every_rule_has_an_example() -> None:
    missing = {code for code, rule in all_rules().items() if not rule.examples}
    assert missing == WITHOUT_EXAMPLE


@pytest.mark.parametrize(("rule", "example"), _cases("convert"))
def test_convert(rule: Rule, example: Example) -> None:
    source = example.before.encode()
    sites = find_sites(source, "example.py")
    assert [(site.code, site.verdict) for site in sites] == [(rule.code, "convert")]
    assert sites[0].proof is not None
    result = apply_plan(source, plan(source, sites)).source
    assert example.after is not None
    assert result.decode() == example.after
    compile(result, "example.py", "exec")
    again = find_sites(result, "example.py")
    assert {site.verdict for site in again} == {"done"}
    assert apply_plan(result, plan(result, again)).source == result


@pytest.mark.parametrize(("rule", "example"), _cases("refuse"))
def test_refuse(rule: Rule, example: Example) -> None:
    compile(example.before, "example.py", "exec")
    sites = find_sites(example.before.encode(), "example.py")
    assert [(site.code, site.verdict) for site in sites] == [(rule.code, "refuse")]
    assert sites[0].reason is not None
    assert sites[0].reason.endswith(".")
    assert sites[0].target is None
    assert plan(example.before.encode(), sites).edits == ()
