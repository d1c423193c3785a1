"""Sandwich norms: every rule's examples, and what a conversion keeps."""

from __future__ import annotations

import ast

import pytest

from normport.codemods.registry import Example, Rule, all_rules
from normport.codemods.rules.np500_sandwich import RULES
from normport.codemods.sandwich import convert_sandwiches, find_sandwiches

LAYER = RULES[0].examples[0].before


def _cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, example, id=f"{rule.code}-{number}")
        for rule in all_rules().values()
        if rule.part == "sandwich" and rule.kind == kind
        for number, example in enumerate(rule.examples)
    ]


def convert(source: str) -> str:
    """The converted source; a second run finds nothing more to do."""
    result = convert_sandwiches(source.encode())
    assert convert_sandwiches(result) == result
    assert [site for site in find_sandwiches(result) if site.verdict == "convert"] == []
    return result.decode()


@pytest.mark.parametrize(("rule", "example"), _cases("convert"))
def test_convert(rule: Rule, example: Example) -> None:
    sites = find_sandwiches(example.before.encode())
    assert [(site.code, site.verdict) for site in sites] == [(rule.code, "convert")]
    assert convert(example.before) == example.after


@pytest.mark.parametrize(("rule", "example"), _cases("refuse"))
def test_refuse(rule: Rule, example: Example) -> None:
    source = example.before.encode()
    ast.parse(source)
    sites = find_sandwiches(source)
    assert [(site.code, site.verdict) for site in sites] == [(rule.code, "refuse")]
    assert sites[0].reason is not None
    assert sites[0].reason.endswith(".")
    assert convert_sandwiches(source) == source


def test_a_norm_of_the_sum_is_left_alone() -> None:
    source = LAYER.replace(
        "x = self.post_norm(x)\n        x = residual + x", "x = self.post_norm(x + residual)"
    )
    assert find_sandwiches(source.encode()) == []
    fused = LAYER.replace(
        "x = self.post_norm(x)\n        x = residual + x\n        residual = x",
        "x, residual = self.post_norm(x, residual)",
    )
    assert find_sandwiches(fused.encode()) == []


def test_comments_and_line_ends_stay() -> None:
    source = LAYER.replace("x = residual + x\n", "x = residual + x  # sum\n        # café\n")
    after = convert(source.replace("\n", "\r\n"))
    assert "\n" not in after.replace("\r\n", "")
    assert "        # sum\r\n        # café\r\n        x, residual = self.norm_add_norm(" in after


def test_a_sum_that_is_read_under_three_names_keeps_them() -> None:
    source = LAYER.replace("residual = x\n", "residual = x\n        kept = residual\n").replace(
        "return self.mlp(x), residual", "return self.mlp(x), residual, kept"
    )
    after = convert(source)
    assert "x, residual = self.norm_add_norm(" in after
    assert "        kept = residual\n        return" in after


def test_a_sum_that_nothing_reads_again_is_dropped() -> None:
    source = LAYER.replace("        residual = x\n", "").replace(", residual\n", "\n")
    assert "x, _ = self.norm_add_norm(x, residual, " in convert(source)


def test_a_class_without_an_init_of_its_own_is_refused() -> None:
    subclass = LAYER + "\n\nclass Other(Layer):\n    def __init__(self):\n        self.a = 1\n"
    assert [site.code for site in find_sandwiches(subclass.encode())] == ["NP505"]


def test_a_loop_that_reads_a_name_again_keeps_it() -> None:
    body = LAYER[LAYER.index("        x = self.post_norm(x)") : LAYER.index("        return")]
    loop = "        for _ in self.layers:\n" + "".join(
        f"    {line}\n" for line in body.splitlines()
    )
    after = convert(LAYER.replace(body, loop))
    assert "            x, residual = self.norm_add_norm(" in after


def test_norms_are_known_by_what_builds_them_too() -> None:
    source = LAYER.replace("post_norm(", "behind(").replace("self.post_norm ", "self.behind ")
    source = source.replace("pre_norm(", "before(").replace("self.pre_norm ", "self.before ")
    assert "self.norm_add_norm(x, residual, self.behind, self.before)" in convert(source)
    other = source.replace("self.behind = GemmaRMSNorm(", "self.behind = nn.LayerNorm(")
    assert [site.code for site in find_sandwiches(other.encode())] == ["NP504"]
