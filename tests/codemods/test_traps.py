"""Files in which a class looks convertible and something else in the file says that it is not."""

from __future__ import annotations

import pytest
from norms import LAYER, NORM

from normport.codemods.analyze import Options, find_sites

HEAD = "import os\nimport torch\nfrom torch import nn\n\n"


def verdicts(source: str) -> set[tuple[str, str]]:
    compile(source, "m.py", "exec")
    found = [site for site in find_sites(source.encode(), "m.py") if site.norm == "N"]
    return {(site.code, site.verdict) for site in found}


def test_the_plain_file_converts() -> None:
    assert verdicts(HEAD + NORM + LAYER) == {("NP103", "convert")}


METHOD = "        return (h * self.weight.float()).to(x.dtype)\n"
BUILD = "self.norm = N(config.size, eps=config.eps)"

CHANGES = {
    # The name at the construction may be another thing.
    "parameter of the name": (
        "NP221",
        "def __init__(self, config)",
        "def __init__(self, config, N)",
    ),
    "local import": ("NP221", BUILD, "from fast import N\n        " + BUILD),
    "local variable": ("NP221", BUILD, "N = config.kind\n        " + BUILD),
    "rebound later": ("NP221", LAYER, LAYER + "\n\nN = torch.jit.script(N)\n"),
    "import in try": (
        "NP221",
        "class Layer(",
        "try:\n    from fast import N\nexcept ImportError:\n    pass\n\n\nclass Layer(",
    ),
    "set through global": ("NP221", LAYER, LAYER + "\n\ndef f(x):\n    global N\n    N = x\n"),
    "star import": ("NP221", "import os\n", "from os import *\nimport os\n"),
    # The class is used as an object.
    "patched": ("NP211", LAYER, LAYER + "\n\nN.forward = None\n"),
    "alias": ("NP211", LAYER, LAYER + "\n\nM = N\n"),
    "union in isinstance": (
        "NP211",
        LAYER,
        LAYER + "\n\ndef f(m):\n    return isinstance(m, N | nn.LayerNorm)\n",
    ),
    "match": (
        "NP211",
        LAYER,
        LAYER + "\n\ndef f(m):\n    match m:\n        case N():\n            return 1\n",
    ),
    "name as a string": (
        "NP211",
        LAYER,
        LAYER + "\n\ndef f(m):\n    return type(m).__name__ == 'N'\n",
    ),
    # Methods that somebody calls by convention.
    "load_weights": ("NP211", METHOD, METHOD + "\n    def load_weights(self, w):\n        pass\n"),
    "_load_from_state_dict": (
        "NP211",
        METHOD,
        METHOD + "\n    def _load_from_state_dict(self, *a):\n        pass\n",
    ),
    "__call__": ("NP211", METHOD, METHOD + "\n    def __call__(self, x):\n        return x\n"),
    "weight_loader": (
        "NP211",
        METHOD,
        METHOD + "\n    def weight_loader(self, p, w):\n        pass\n",
    ),
    "decorated forward": (
        "NP211",
        "    def forward(self, x):\n        h",
        "    @wrap\n    def forward(self, x):\n        h",
    ),
    # Effects that would be lost.
    "hook kept in an attribute": (
        "NP212",
        "self.eps = eps\n",
        "self.eps = eps\n        self.h = watch(self)\n",
    ),
    "effect in an assert": (
        "NP212",
        "self.eps = eps\n",
        "self.eps = eps\n        assert watch(self)\n",
    ),
    "argument with an effect": ("NP215", "eps=config.eps)", "eps=config.eps, index=config.next())"),
    # Dtypes.
    "module converted": ("NP222", BUILD, BUILD + "\n        self.to(torch.bfloat16)"),
    "child converted": ("NP222", BUILD, BUILD + "\n        self.a = self.a.to(config.dtype)"),
    # Where it is built, and who else reaches it.
    "built late": (
        "NP222",
        LAYER,
        LAYER.replace(BUILD, "self.norm = None").replace("return", BUILD + "\n        return"),
    ),
    "subclass under if": (
        "NP208",
        LAYER,
        LAYER
        + "\n\nif os.name:\n    class Sub(Layer):\n        def forward(self, x):\n"
        + "            return self.norm(x, x)\n",
    ),
    "generic subclass": (
        "NP214",
        LAYER,
        LAYER
        + "\n\nclass Sub(Layer[int]):\n    def forward(self, x):\n        return self.norm.eps\n",
    ),
    "function that becomes a method": (
        "NP208",
        LAYER,
        LAYER + "\n\ndef f(self, x):\n    return self.norm(x, x)\n\n\nLayer.forward = f\n",
    ),
    "get_submodule": (
        "NP209",
        LAYER,
        LAYER + "\n\ndef f(m):\n    return m.get_submodule('norm').eps\n",
    ),
    "dynamic getattr": ("NP209", "return self.norm(x)", "return getattr(self, x)(self.norm(x))"),
    "scalar weight": ("NP206", BUILD, "self.norm = N(1)"),
}


@pytest.mark.parametrize(("code", "old", "new"), CHANGES.values(), ids=CHANGES)
def test_refused(code: str, old: str, new: str) -> None:
    source = HEAD + NORM.replace("eps=1e-6", "eps=1e-6, index=0") + LAYER
    assert old in source
    assert verdicts(source.replace(old, new, 1)) >= {(code, "refuse")}
    assert ("NP103", "convert") not in verdicts(source.replace(old, new, 1))


CONSTANTS = {
    "set under if": "EPS = 1e-6\nif os.environ.get('X'):\n    EPS = 1e-5\n",
    "changed": "EPS = 1e-6\nEPS *= 10\n",
    "set by a function": "EPS = 1e-6\n\n\ndef f(x):\n    global EPS\n    EPS = x\n",
}


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("use", ["default", "body"])
def test_constant_that_is_not_constant(constant: str, use: str) -> None:
    norm = NORM.replace("eps=1e-6", "eps=EPS")
    if use == "body":
        norm = NORM.replace("self.eps = eps", "self.eps = EPS")
    layer = LAYER.replace(", eps=config.eps", "")
    assert verdicts(f"{HEAD}{constant}\n\n{norm}{layer}") == {("NP210", "refuse")}
    assert verdicts(f"{HEAD}EPS = 1e-6\n\n\n{norm}{layer}") == {("NP103", "convert")}


def test_helper_that_is_defined_twice() -> None:
    norm = NORM.replace("h.pow(2).mean(-1, keepdim=True)", "mean(h)")
    helper = "def mean(h):\n    return h.pow(2).mean(-1, keepdim=True)\n\n\n"
    assert verdicts(HEAD + helper + norm + LAYER) == {("NP103", "convert")}
    twice = f"{HEAD}{helper}from fast import mean\n\n{norm}{LAYER}"
    assert verdicts(twice) == {("NP210", "refuse")}


def test_argument_that_would_be_evaluated_twice() -> None:
    norm = NORM.replace("dim, eps=1e-6", "config").replace("= eps", "= config.eps")
    norm = norm.replace("ones(dim)", "ones(config.size)")
    layer = LAYER.replace("N(config.size, eps=config.eps)", "N(config.stack.pop())")
    assert verdicts(HEAD + norm + layer) == {("NP215", "refuse")}


def test_input_in_another_dtype_than_the_weight() -> None:
    """It multiplies in the input's dtype, RMSNorm in the weight's: equal only for equal dtypes."""
    norm = NORM.replace(
        "return (h * self.weight.float()).to(x.dtype)", "return self.weight * h.to(x.dtype)"
    )
    assert verdicts(HEAD + norm + LAYER) == {("NP104", "convert")}
    for call in ("self.norm(x.float())", "self.norm(x.to(torch.float32))"):
        assert verdicts(HEAD + norm + LAYER.replace("self.norm(x)", call)) == {("NP208", "refuse")}
    layer = LAYER.replace("return self.norm(x)", "x = x.float()\n        return self.norm(x)")
    assert verdicts(HEAD + norm + layer) == {("NP208", "refuse")}


def test_precedence_of_an_argument_is_kept() -> None:
    norm = NORM.replace("dim, eps=1e-6", "config").replace("= eps", "= config.eps")
    norm = norm.replace("ones(dim)", "ones(config.size)")
    layer = LAYER.replace("N(config.size, eps=config.eps)", "N(config.a if config.b else config)")
    site = next(s for s in find_sites((HEAD + norm + layer).encode(), "m.py") if s.norm == "N")
    chosen = "(config.a if config.b else config)"
    assert site.target == f"RMSNorm({chosen}.size, eps={chosen}.eps, dtype=torch.float32)"


def test_a_wide_expression_is_read_in_time() -> None:
    """Each line doubles the expression; only its distinct parts may be looked at."""
    doubled = "".join("        h = h * h\n" for _ in range(200))
    norm = NORM.replace("        h = h * torch", doubled + "        h = h * torch")
    assert verdicts(HEAD + norm + LAYER) == {("NP210", "refuse")}


@pytest.mark.parametrize("signature", ["*args", "self, dim, eps=1e-6, /", "self, /"])
def test_unusual_signatures_are_left_alone(signature: str) -> None:
    norm = NORM.replace("self, dim, eps=1e-6", signature).replace("= eps", "= 1e-6")
    norm = norm.replace("super().__init__()", "dim = 4").replace("self.", "args[0].", 2)
    assert verdicts(HEAD + norm + LAYER) <= {("NP215", "refuse")}


@pytest.mark.parametrize("encoding", ["rot13", "hex", "undefined"])
def test_encodings_that_are_none(encoding: str) -> None:
    source = f"# coding: {encoding}\n{HEAD}{NORM}{LAYER}".encode()
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        find_sites(source, "m.py")


@pytest.mark.parametrize("text", ["config.d, 1", "*config.d", "(d := 4)", "lambda: 4"])
def test_dims_that_are_not_one_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Options(dims={"Layer.norm": text})


@pytest.mark.parametrize(
    ("built", "verdicts_"),
    [
        ("N((width := config.size), config.eps)", {("NP103", "convert")}),
        ("N(dim=(width := config.size))", {("NP103", "convert")}),
        ("N(config.size, eps=(small := torch.tensor(1e-5)))", {("NP210", "refuse")}),
    ],
)
def test_an_argument_that_needs_its_parentheses_is_read(
    built: str, verdicts_: set[tuple[str, str]]
) -> None:
    assert verdicts(HEAD + NORM + LAYER.replace(BUILD, f"self.norm = {built}")) == verdicts_
