"""Traps about where a construction comes from and where it goes."""

from __future__ import annotations

import pytest
from norms import BUILD, CALL, MODEL, NEW, changed, converted, refused, sites

FLOAT32 = "dtype=torch.float32"
PARTIAL = f"functools.partial(RMSNorm, {FLOAT32})"


def built(text: str, call: str = CALL, after: str = "") -> str:
    """The model with another construction and another call."""
    return changed(MODEL, (BUILD, text.replace("\n", "\n        ")), (CALL, call)) + after


CHOSEN = {
    "alias at the top": (
        built("self.norm = M(config.size, config.eps)", after="\n\nM = N\n"),
        f"M = {PARTIAL}",
    ),
    "alias in the constructor": (built("M = N\nself.norm = M(config.size)"), f"M = {PARTIAL}"),
    "conditional": (
        built(
            "cls = N if config.a else nn.LayerNorm\nself.norm = cls(config.size, eps=config.eps)"
        ),
        PARTIAL,
    ),
    "conditional on the spot": (
        built("self.norm = (N if config.a else nn.Identity)(config.size)"),
        f"({PARTIAL} if config.a else nn.Identity)(",
    ),
    "dict": (
        built("self.norm = {'a': N, 'b': nn.LayerNorm}[config.kind](config.size, eps=config.eps)"),
        f"'a': {PARTIAL}",
    ),
    "partial": (
        "from functools import partial\n" + built("cls = partial(N, eps=1e-5)\nself.norm = cls(4)"),
        f"cls = partial(RMSNorm, eps=1e-5, {FLOAT32})",
    ),
}


@pytest.mark.parametrize(("source", "words"), CHOSEN.values(), ids=CHOSEN)
def test_a_class_that_is_chosen(source: str, words: str) -> None:
    after = converted(source)
    assert "".join(words.split()) in "".join(after.split()).replace(",)", ")").replace("(,", "(")
    assert "class N(" not in after


def test_a_class_that_needs_nothing_more_is_replaced_by_a_name() -> None:
    source = built("cls = N if config.a else nn.LayerNorm\nself.norm = cls(config.size)")
    source = changed(
        source, ("(h * self.weight.float()).to(x.dtype)", "h.to(x.dtype) * self.weight")
    )
    assert "cls = RMSNorm if config.a else nn.LayerNorm" in converted(source)


def test_a_default_that_the_layer_has_not_is_passed() -> None:
    source = built("cls = N if config.a else nn.LayerNorm\nself.norm = cls(config.size)")
    after = converted(changed(source, ("eps=1e-6", "eps=1e-5")))
    assert f"functools.partial(RMSNorm, eps=1e-5, {FLOAT32})" in after


NOT_CHOSEN = {
    "other arguments": (
        "NP225",
        "size first, eps",
        built("cls = N if config.a else nn.LayerNorm\nself.norm = cls(dim=config.size)"),
    ),
    "needs two layers": (
        "NP225",
        "different layers",
        changed(
            built(
                "M = N\nself.norm = M(4)\nself.b = M(4, eps=config.eps)",
                "return self.b(self.norm(x))",
            ),
            ("eps=1e-6", "eps=1e-5"),
        ),
    ),
    "variable set twice": ("NP225", "line 20", built("cls = N\ncls = f(cls)\nself.norm = cls(4)")),
    "variable passed on": ("NP225", "line 20", built("cls = N\nself.norm = f(cls)(4)")),
    "table of the file": (
        "NP225",
        "line 26",
        built("self.norm = NORMS[config.kind](4)", after='\n\nNORMS = {"a": N}\n'),
    ),
    "helper that gives the class": (
        "NP225",
        "line 27",
        built("self.norm = pick(config)(4)", after="\n\ndef pick(c):\n    return N\n"),
    ),
    "factory by name": ("NP211", "string", built(BUILD, after='\n\nx = getattr(nn, "N", None)\n')),
}


@pytest.mark.parametrize(("code", "words", "source"), NOT_CHOSEN.values(), ids=NOT_CHOSEN)
def test_a_choice_that_is_not_followed(code: str, words: str, source: str) -> None:
    found = refused(source)
    assert found[0] == code
    assert words in found[1]


def test_the_constructions_of_one_choice_are_converted_together() -> None:
    source = built("M = N\nself.norm = M(4)\nself.b = M(4)", "return f(self.b, self.norm(x))")
    found = sites(source.encode())
    assert [(site.code, site.verdict) for site in found] == [
        ("NP226", "refuse"),
        ("NP209", "refuse"),
    ]
    assert "its construction in line 22 is refused: `self.b` is passed on" in (
        found[0].reason or ""
    )


HELD = {
    "variable": built("norm = N(config.size, eps=config.eps)\nself.norm = norm"),
    "function": built(
        "self.norm = make(config)",
        after="\n\ndef make(config):\n    return N(config.size, eps=config.eps)\n",
    ),
    "function, for two": built(
        "self.norm = make(config)\nself.b = make(config)",
        "return self.b(self.norm(x))",
        "\n\ndef make(config):\n    norm = N(config.size, eps=config.eps)\n    return norm\n",
    ),
    "list": built(
        "self.norms = nn.ModuleList([N(config.size, eps=config.eps)])",
        "return self.norms[0](x) * len(self.norms)",
    ),
    "comprehension": built(
        "self.norms = nn.ModuleList([N(config.size, eps=config.eps) for _ in range(3)])",
        "for norm in self.norms:\n            x = norm(x)\n        return x",
    ),
    "list in step with another": built(
        "self.norms = nn.ModuleList([N(config.size, eps=config.eps) for _ in range(3)])",
        "for a, norm in zip(x, self.norms):\n            x = norm(a)\n        return x",
    ),
    "dict": built(
        "self.norms = nn.ModuleDict({'q': N(config.size, eps=config.eps)})",
        "return self.norms['q'](x)",
    ),
    "generator": built(
        "self.norms = nn.ModuleList(N(config.size, eps=config.eps) for _ in range(3))",
        "for norm in self.norms:\n            x = norm(x)\n        return x",
    ),
    "dict comprehension": built(
        "self.norms = nn.ModuleDict({k: N(config.size, eps=config.eps) for k in 'qk'})",
        "return self.norms['q'](x)",
    ),
    "sequence": built("self.norm = nn.Sequential(nn.Linear(1, 2), N(config.size, eps=config.eps))"),
}


@pytest.mark.parametrize("source", HELD.values(), ids=HELD)
def test_what_holds_the_norm_is_seen_through(source: str) -> None:
    after = converted(source)
    assert "".join(NEW.split()) in "".join(after.split()).replace(",)", ")")
    assert "class N(" not in after


LOST = {
    "list passed on": built("self.norms = nn.ModuleList([N(4)])", "return f(self.norms, x)"),
    "item passed on": built("self.norms = nn.ModuleList([N(4)])", "return f(self.norms[0])"),
    "weight of an item": built("self.norms = nn.ModuleList([N(4)])", "return self.norms[0].weight"),
    "item kept": built(
        "self.norms = nn.ModuleList([N(4)])",
        "for n in self.norms:\n            x = n(x)\n        return x, n",
    ),
    "appended": built(
        "self.norms = nn.ModuleList()\nself.norms.append(N(4))", "return self.norms[0](x)"
    ),
    "variable used twice": built("norm = N(4)\nself.norm = norm\nself.b = norm"),
    "function passed on": built(
        "self.norm = make()", after="\n\ndef make():\n    return N(4)\n\n\nf(make)\n"
    ),
    "function that is wrapped": built(
        "self.norm = make()", after="\n\n@wrap\ndef make():\n    return N(4)\n"
    ),
    "method": built(
        "self.norm = self.make()", after="\n    def make(self):\n        return N(4)\n"
    ),
    "list of lists": built("self.norms = nn.ModuleList([nn.ModuleList([N(4)])])"),
}


@pytest.mark.parametrize("source", LOST.values(), ids=LOST)
def test_what_is_not_seen_through(source: str) -> None:
    assert refused(source.replace("return self.norm(x)", "return x"))[0] == "NP209"


def test_a_sequence_is_called_with_the_input_alone() -> None:
    assert refused(built("self.norm = nn.Sequential(N(4))", "return self.norm(x, x)"))[0] == "NP208"


SPREAD = {
    "tuple": "self.norm = N(*(config.size, config.eps))",
    "tuple and more": "self.norm = N(*(config.size,), eps=config.eps)",
    "dict": "self.norm = N(config.size, **{'eps': config.eps})",
    "dict by its name": "self.norm = N(**dict(dim=config.size, eps=config.eps))",
}


@pytest.mark.parametrize("text", SPREAD.values(), ids=SPREAD)
def test_arguments_that_are_spread_on_the_spot(text: str) -> None:
    assert f"self.norm = {NEW}" in converted(built(text))


def test_arguments_that_are_spread_from_a_variable() -> None:
    code, reason = refused(built("args = (config.size, config.eps)\nself.norm = N(*args)"))
    assert code == "NP215"
    assert reason == "N: its arguments come out of `*args`; write them out in the call."
    code, reason = refused(built("self.norm = N(*config.norm_arguments)"))
    assert code == "NP215"
    assert reason.startswith("N: its arguments are spread with * or **; write ")


def test_what_such_a_class_computes_is_told_all_the_same() -> None:
    source = changed(
        built("args = (config.size, config.eps)\nself.norm = N(*args)"),
        ("h = x.float()\n", "h = x.float()\n        h = h - h.mean(-1, keepdim=True)\n"),
    )
    assert refused(source)[0] == "NP201"
