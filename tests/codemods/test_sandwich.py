"""Sandwich norms: every rule's examples, and what a conversion keeps."""

from __future__ import annotations

import ast

import pytest

from normport.codemods.registry import Example, Rule, all_rules
from normport.codemods.rules.np500_sandwich import RULES
from normport.codemods.sandwich import convert_sandwiches, find_sandwiches
from normport.codemods.sandwich_cases import sandwich_cases

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


def body(*lines: str) -> str:
    """``LAYER`` with other statements in ``forward``, and two more norms."""
    head, _, _ = LAYER.partition("        x = self.post_norm(x)")
    built = "        self.pre_norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)\n"
    more = "".join(built.replace("self.pre_norm", f"self.{name}") for name in ("last", "other"))
    assert built in head
    return head.replace(built, built + more) + "".join(f"        {line}\n" for line in lines)


@pytest.mark.parametrize(
    "rest",
    [
        ("x = self.mlp(self.pre_norm(total), total)", "return x"),
        ("x = self.pre_norm(total)", "total += x", "return total"),
        ("x = self.pre_norm(total)", "del total", "return x"),
        ("return self.mlp(self.pre_norm(total), total)",),
        ("return self.pre_norm(total), total",),
    ],
)
def test_a_sum_that_is_needed_again_keeps_its_name(rest: tuple[str, ...]) -> None:
    after = convert(body("total = residual + self.post_norm(x)", *rest))
    assert ", total = self.norm_add_norm(x, residual, self.post_norm, self.pre_norm)" in after


def test_a_sum_of_the_module_keeps_its_name() -> None:
    after = convert(
        body("global total", "total = residual + self.post_norm(x)", "return self.pre_norm(total)")
    )
    assert "normed, total = self.norm_add_norm(" in after


@pytest.mark.parametrize(
    "second",
    [
        ("x = self.last(self.mlp(self.pre_norm(x))) + x",),
        ("y = self.last(self.pre_norm(x))", "x = x + y"),
    ],
)
def test_a_sum_that_begins_where_another_ends_is_refused(second: tuple[str, ...]) -> None:
    source = body("x = residual + self.post_norm(x)", *second, "x = self.other(x)", "return x")
    assert [site.code for site in find_sandwiches(source.encode())] == ["NP501", "NP505"]
    after = convert_sandwiches(source.encode()).decode()
    assert "self.last(" in after
    assert "x = self.other(x)" in after


def test_a_name_that_is_given_inside_of_the_norm_is_refused() -> None:
    source = body(
        "x = residual + self.post_norm((residual := self.mlp(x)))", "x = self.pre_norm(x)"
    )
    assert [site.code for site in find_sandwiches(source.encode())] == ["NP505"]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (("x = self.post_norm(x)", "x *= self.scale"), "NP502"),
        (("x = self.post_norm(x)[0]",), "NP502"),
        (("x = -self.post_norm(x)",), "NP502"),
        (("x: Tensor = self.post_norm(x)",), "NP505"),
    ],
)
def test_no_sum_with_a_norm_is_passed_over(first: tuple[str, ...], code: str) -> None:
    source = body(*first, "x = residual + x", "x = self.pre_norm(x)", "return x")
    assert [site.code for site in find_sandwiches(source.encode())] == [code]


@pytest.mark.parametrize(
    "more",
    [
        "    def norm_add_norm(self):\n        pass\n",
        "    norm_add_norm = None\n",
        "    def build(self):\n        self.norm_add_norm = Other()\n",
        "\n\nclass Between(Layer):\n    pass\n\n\nclass Last(Between):\n"
        "    def __init__(self):\n        nn.Module.__init__(self)\n",
    ],
)
def test_a_class_that_cannot_hold_the_layer_is_refused(more: str) -> None:
    assert [site.code for site in find_sandwiches((LAYER + more).encode())] == ["NP505"]


def test_an_init_in_one_line_is_refused() -> None:
    head, rest = LAYER[: LAYER.index("    def __init__")], LAYER[LAYER.index("    def forward") :]
    norms = "self.post_norm = GemmaRMSNorm(8); self.pre_norm = GemmaRMSNorm(8)"
    source = f"{head}    def __init__(self): super().__init__(); {norms}\n\n{rest}"
    assert [site.code for site in find_sandwiches(source.encode())] == ["NP505"]


def test_comments_in_the_call_of_the_second_norm_stay() -> None:
    second = (
        "x = self.mlp(",
        "    self.pre_norm(  # one",
        "        x  # two",
        "    ),  # three",
        ")",
    )
    after = convert(body("x = residual + self.post_norm(x)", *second, "return x"))
    assert all(f"# {word}\n" in after for word in ("one", "two", "three"))


def test_methods_that_are_run_for_the_proof() -> None:
    source = LAYER.replace("(self, x, residual)", "(self, x=None, residual=None)").encode()
    assert len(sandwich_cases(source, convert_sandwiches(source), "Layer.forward", "")) == 1
    source = LAYER.replace("(self, x, residual)", "(self, *args)").encode()
    assert sandwich_cases(source, convert_sandwiches(source), "Layer.forward", "") == []
    source = LAYER.replace(
        "    def forward", "    @overload\n    def forward(self): ...\n\n    def forward"
    ).encode()
    cases = sandwich_cases(source, convert_sandwiches(source), "Layer.forward", "")
    assert all("self.norm_add_norm(" in case.module for case in cases)
    assert cases
