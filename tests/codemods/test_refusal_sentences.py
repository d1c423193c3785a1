"""Every refusal is one sentence that says what is there and what a maintainer can do about it."""

from __future__ import annotations

import pytest
from norms import MODEL, changed, refused
from sentences import assert_actionable

from normport.codemods.advice import action, advised
from normport.codemods.analyze import find_sites
from normport.codemods.registry import Example, Rule, all_rules
from normport.tools.explain import explain_rule

REFUSALS = [rule for rule in all_rules().values() if rule.kind == "refuse" and rule.part == "norms"]
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.code}-{number}")
    for rule in REFUSALS
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.code)
def test_every_rule_says_what_to_do(rule: Rule) -> None:
    assert_actionable(advised(rule.code, f"N: {rule.title}."))
    assert f"What to do: {rule.do}." in explain_rule(rule.code)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_every_example_says_what_to_do(rule: Rule, example: Example) -> None:
    (site,) = find_sites(example.before.encode(), "example.py")
    assert site.reason is not None
    assert_actionable(site.reason)
    assert f"A scan says: {site.reason}" in explain_rule(rule.code)


def test_what_a_sentence_says_to_do() -> None:
    assert action("N: it adds a bias.") is None
    assert action("N: it adds a bias; leave it.") == "leave it."
    assert action("N: it adds `a; b`.") is None
    assert action("N: it adds `a; b`; drop `c; d` there.") == "drop `c; d` there."
    assert advised("NP204", "N: it adds `a; b`.").startswith("N: it adds `a; b`; leave it")
    assert advised("NP204", "N: it adds a bias; drop it.") == "N: it adds a bias; drop it."
    with pytest.raises(AssertionError):
        assert_actionable("N: it adds a bias.")
    with pytest.raises(AssertionError):
        assert_actionable("N: it adds a bias; that is so.")


MEAN = "h.pow(2).mean(-1, keepdim=True)"
WORDS = {
    "a column": (
        "NP210",
        "it views the mean of squares as one column, which fits a 2-D input alone;",
        f"h = h * torch.rsqrt({MEAN[:-15]}).view(-1, 1) + self.eps)",
    ),
    "a column of roots": (
        "NP210",
        "it views the mean of squares as one column,",
        f"h = h * torch.rsqrt({MEAN[:-15]}) + self.eps).reshape((-1, 1))",
    ),
    "groups": ("NP202", "it reshapes its input", "h = h.view(-1, 4, 8)\n        h = h * RMS"),
    "the epsilon in the sum": (
        "NP210",
        "it adds something to the sum of squares before it divides that by a number,",
        "h = h * torch.rsqrt((h.pow(2).sum(-1, keepdim=True) + self.eps) / x.shape[-1])",
    ),
    "the epsilon in the sum, times": (
        "NP210",
        "it adds something to the sum of squares before it divides that by a number,",
        "h = h * torch.rsqrt((h.pow(2).sum(-1, keepdim=True) + self.eps) * 0.125)",
    ),
    "a sum": (
        "NP210",
        "it takes the root of the sum of squares, not of their mean;",
        "h = h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + self.eps)",
    ),
    "a narrow mean": (
        "NP218",
        "it takes the mean of squares in another dtype, not in float32;",
        f"h = h * torch.rsqrt({MEAN[:-1]}, dtype=torch.float16) + self.eps)",
    ),
    "a narrow root": (
        "NP218",
        "it takes the root in the input's dtype, not in float32;",
        f"h = h * torch.rsqrt(({MEAN} + self.eps).to(x.dtype))",
    ),
    "a narrow product": (
        "NP218",
        "it multiplies its input by the root in the input's dtype, not in float32;",
        "h = x * RMS",
    ),
    "a narrow norm": (
        "NP218",
        "it normalises in the input's dtype, not in float32;",
        "h = x\n        h = h * RMS",
    ),
    "a bounded length": (
        "NP210",
        "it divides by the length of its input, which it bounds from below, and multiplies",
        "h = F.normalize(h, dim=-1, eps=self.eps) * self.dim**0.5",
    ),
    "a variance and a mean": (
        "NP210",
        "it takes the variance and the square of the mean together, which no standard layer does;",
        "v = h.var(-1, keepdim=True, correction=0) + h.mean(-1, keepdim=True) ** 2\n"
        "        h = h * torch.rsqrt(v + self.eps)",
    ),
    "a length and an epsilon": (
        "NP210",
        "it divides by the length of its input, to which it adds an epsilon, and multiplies",
        "h = h / (h.norm(dim=-1, keepdim=True) + self.eps) * self.dim**0.5",
    ),
}


@pytest.mark.parametrize(("code", "words", "line"), WORDS.values(), ids=WORDS)
def test_what_a_sentence_says_is_there(code: str, words: str, line: str) -> None:
    rms = f"torch.rsqrt({MEAN} + self.eps)"
    source = changed(
        MODEL,
        (f"h = h * {rms}", line.replace("RMS", rms)),
        ("import torch\n", "import torch\nimport torch.nn.functional as F\n"),
        ("self.eps = eps", "self.eps = eps\n        self.dim = dim"),
    )
    found = refused(source)
    assert found[0] == code
    assert f"N: {words}" in found[1]


@pytest.mark.parametrize("namespace", ["vars(nn)", "nn.__dict__", "vars(torch.nn)"])
def test_a_look_up_by_name_is_named(namespace: str) -> None:
    source = f"import torch\nfrom torch import nn\n\nNorm = {namespace}['RMSNorm']\n"
    (site,) = find_sites(source.encode(), "m.py")
    assert (site.line, site.code, site.verdict) == (4, "NP209", "refuse")
    assert site.reason is not None
    assert_actionable(site.reason)
    assert find_sites(source.replace(namespace, "KINDS").encode(), "m.py") == ()


def test_the_dtype_case_is_explained() -> None:
    page = explain_rule("NP208")
    assert "converts the input to another dtype" in page
    assert "convert after the norm instead" in page
