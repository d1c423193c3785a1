"""Norms that no top-level class with a forward holds: found where they stand, and refused."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from normport.codemods.analyze import find_sites
from normport.codemods.model import Site

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
NORM = """\
class N(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).to(x.dtype)
"""
FUNCTION = """\
def scaled(x, gain, eps):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * gain.float()).to(x.dtype)
"""


def sites(source: str) -> tuple[Site, ...]:
    compile(source, "m.py", "exec")
    found = find_sites(source.encode(), "m.py")
    assert all(site.verdict == "refuse" and not site.edits for site in found)
    assert all((site.reason or "").endswith(".") for site in found)
    return found


def places(source: str) -> list[tuple[str, str, str]]:
    """``(code, norm, the first line of source there)`` of each finding."""
    lines = source.splitlines()
    return [(s.code, s.norm, lines[s.line - 1][s.column - 1 :]) for s in sites(source)]


def forward(body: str, init: str = "pass") -> str:
    """A layer whose forward has ``body``."""
    return (
        HEAD
        + "class Layer(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n"
        + indent(dedent(init), " " * 8)
        + "\n\n    def forward(self, x):\n"
        + indent(dedent(body), " " * 8)
    )


@pytest.mark.parametrize("root", ["torch.rsqrt({} + 1e-6)", "1 / torch.sqrt({} + 1e-6)"])
@pytest.mark.parametrize("mean", ["var(h)", "self.var(h)"])
def test_a_mean_that_a_helper_takes_is_found(mean: str, root: str) -> None:
    helper = "def var(x):\n    return x.pow(2).mean(-1, keepdim=True)\n"
    source = forward(f"h = self.proj(x).float()\nreturn self.proj(h * ({root.format(mean)}))")
    if mean.startswith("self"):
        source += "\n\n" + indent(helper.replace("(x)", "(self, x)", 1), " " * 4)
    else:
        source = source.replace("class Layer", f"{helper}\n\nclass Layer")
    ((code, norm, _),) = places(source)
    assert (code, norm) == ("NP231", "Layer.forward")


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (f"if torch.cuda.is_available():\n{indent(NORM, '    ')}", "N(4)"),
        (f"try:\n{indent(NORM, '    ')}\nexcept ImportError:\n    pass", "N(4)"),
        (f"def make():\n{indent(NORM, '    ')}\n    return N(4)", "N(4)"),
        (f"class Outer:\n{indent(NORM, '    ')}", "Outer.N(4)"),
    ],
    ids=["if", "try", "function", "class"],
)
def test_a_class_that_is_not_at_the_top(source: str, where: str) -> None:
    if where not in source:
        source += f"\n\nnorm = {where}"
    found = places(HEAD + source)
    assert [(code, norm) for code, norm, _ in found] == [("NP234", "N")]
    assert found[0][2] == where


def test_what_a_nested_class_computes_is_read() -> None:
    (site,) = sites(HEAD + f"def make():\n{indent(NORM, '    ')}\n    return N(4)")
    computes = site.computes
    assert computes is not None
    assert (computes.weight, computes.offset, computes.multiply_in) == ("offset", 1.0, "float32")
    assert (computes.eps, computes.initial, computes.weight_dtype) == ("eps", "zeros", "run dtype")


@pytest.mark.parametrize("name", ["forward_native", "forward_cuda", "__call__", "_forward_impl"])
def test_a_class_that_normalises_in_another_method(name: str) -> None:
    source = HEAD + NORM.replace("def forward(", f"def {name}(").replace("class N", "class Scaler")
    assert [s.code for s in sites(source)] == ["NP235"]
    assert sites(source)[0].norm == "Scaler"
    gated = source.replace(f"{name}(self, x)", f"{name}(self, x, gate)")
    gated = gated.replace("return (h * ", "return (h * F.silu(gate.float()) * ")
    assert [s.code for s in sites(gated)] == ["NP203"]


def test_each_call_of_a_function_is_a_finding() -> None:
    layer = forward(
        "x = self.proj(scaled(x, self.a, 1e-6))\nreturn self.proj(scaled(x, self.b, 1e-6))"
    )
    found = places(layer + "\n\n" + FUNCTION)
    assert [(code, norm, text[:17]) for code, norm, text in found] == [
        ("NP230", "scaled", "scaled(x, self.a,"),
        ("NP230", "scaled", "scaled(x, self.b,"),
    ]


def test_a_function_that_nothing_calls_is_found_where_it_is_defined() -> None:
    (site,) = sites(HEAD + FUNCTION)
    assert (site.code, site.norm, site.line) == ("NP230", "scaled", 5)
    assert site.computes is not None
    assert (site.computes.weight, site.computes.multiply_in) == ("scale", "float32")
    assert site.computes.eps == "eps"


def test_a_local_function_and_a_method() -> None:
    local = forward(indent(FUNCTION, "") + "return self.proj(scaled(x, self.w, 1e-6))")
    assert [code for code, _, _ in places(local)] == ["NP230"]
    method = FUNCTION.replace("(x, gain", "(self, x, gain")
    layer = forward("return self.proj(self.scaled(x, self.w, 1e-6))")
    found = places(layer + "\n\n" + indent(method, "    "))
    assert [(code, norm) for code, norm, _ in found] == [("NP230", "Layer.scaled")]
    assert found[0][2].startswith("self.scaled(x")


def test_a_helper_is_not_reported_again() -> None:
    cls = NORM.replace(
        "        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)\n"
        "        return (h * (1.0 + self.weight.float())).to(x.dtype)\n",
        "        return scaled(x, self.weight, self.eps)\n",
    )
    assert [s.norm for s in sites(HEAD + FUNCTION + "\n\n" + cls)] == ["N"]
    outside = "\n\ndef block(x, w):\n    return torch.relu(scaled(x, w, 1e-6))\n"
    found = sites(HEAD + FUNCTION + "\n\n" + cls + outside)
    assert sorted(s.norm for s in found) == ["N", "scaled"]


def test_a_wrapper_stands_for_what_it_wraps() -> None:
    wrapper = "def wrapped(x, w):\n    return scaled(x, w, 1e-6)\n"
    assert [s.norm for s in sites(HEAD + FUNCTION + "\n\n" + wrapper)] == ["wrapped"]


def test_a_helper_that_returns_the_root() -> None:
    helper = "def inverse(h):\n    return torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\n\n\n"
    source = HEAD + helper + "def block(x, w):\n    return torch.relu((x * inverse(x)) @ w)\n"
    assert [(code, norm) for code, norm, _ in places(source)] == [("NP231", "block")]
    assert [code for code, _, _ in places(HEAD + helper)] == ["NP237"]


INLINE = {
    "one expression": (
        "return self.p((x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True)"
        " + self.eps)).to(x.dtype))",
        "x.float() * torch.rsqrt",
    ),
    "through variables": (
        "h = x.float()\nvariance = (h * h).mean(-1, keepdim=True)\n"
        "return self.p(h * torch.rsqrt(variance + self.eps))",
        "h * torch.rsqrt",
    ),
    "power": (
        "h = self.p(x)\nreturn self.p(h * (h.pow(2).mean(-1, True) + 1e-6) ** -0.5)",
        "h * (h.pow",
    ),
    "division": (
        "h = self.p(x)\nroot = torch.sqrt(torch.mean(h ** 2, dim=-1, keepdim=True) + 1e-6)\n"
        "return self.p(h / root)",
        "h / root",
    ),
    "sum over a size": (
        "h = self.p(x)\ntotal = h.square().sum(-1, keepdim=True) / h.shape[-1]\n"
        "return self.p(h * torch.rsqrt(total + 1e-6))",
        "h * torch.rsqrt",
    ),
    "in place": (
        "h = self.p(x)\nh *= torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)\n"
        "return self.p(h)",
        "h *= torch.rsqrt",
    ),
    "in a loop": (
        "for p in self.all:\n    h = p(x)\n"
        "    x = p(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6))\nreturn x",
        "h * torch.rsqrt",
    ),
}


@pytest.mark.parametrize(("body", "where"), INLINE.values(), ids=INLINE)
def test_inline_code(body: str, where: str) -> None:
    found = places(forward(body))
    assert [(code, norm) for code, norm, _ in found] == [("NP231", "Layer.forward")]
    assert found[0][2].lstrip("(").startswith(where)


def test_what_inline_code_computes() -> None:
    body = (
        "h = self.p(x).float()\nh = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)\n"
        "h = (h * (self.gain + 1.0)).to(x.dtype)\nreturn self.p(h)"
    )
    init = "self.eps = 1e-5\nself.gain = nn.Parameter(torch.zeros(4))"
    (site,) = sites(forward(body, init))
    assert site.computes is not None
    assert (site.computes.weight, site.computes.offset) == ("offset", 1.0)
    assert (site.computes.initial, site.computes.eps) == ("zeros", "1e-05")
    assert "GemmaRMSNorm" in (site.reason or "")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("h = self.p(x)\nv = all_reduce(h.square().mean(-1, True))\n"
         "return self.p(h * torch.rsqrt(v + 1e-6))", "NP205"),
        ("h = self.p(x)\nv = h[..., :8].square().mean(-1, True)\n"
         "return self.p(h * torch.rsqrt(v + 1e-6))", "NP210"),
        ("h = self.p(x)\nv = h.square().mean(-1, True).sqrt().clamp(min=1e-6)\n"
         "return self.p(h / v)", "NP210"),
        ("h = self.p(x)\nreturn self.p(h / h.square().mean(-1, True).sqrt())", "NP231"),
        ("h = self.p(x)\nr = torch.rsqrt(x.square().mean(-1, True) + 1e-6)\n"
         "return self.p(h * r)", "NP237"),
    ],
    ids=["tensor parallel", "slice", "a floor", "no eps", "projection"],
)  # fmt: skip
def test_inline_code_that_no_layer_computes(body: str, code: str) -> None:
    assert [s.code for s in sites(forward(body))] == [code]


NOT_RMS = {
    "a sum": "return self.p(x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6))",
    "layer norm": "m = x.mean(-1, keepdim=True)\nv = (x - m).pow(2).mean(-1, keepdim=True)\n"
    "return self.p((x - m) * torch.rsqrt(v + 1e-6))",
    "a variance by two means": "v = x.square().mean(-1, True) - x.mean(-1, True).square()\n"
    "return self.p(x * torch.rsqrt(v + 1e-6))",
    "a fixed scale": "return self.p(x * self.size ** -0.5)",
    "pixels": "return self.p((x - self.mean.sum()) / torch.sqrt(self.square))",
    "loudness": "return self.p(x / torch.sqrt(x.square().mean()))",
    "mean of no square": "return self.p(x * torch.rsqrt(x.mean(-1, keepdim=True)))",
}


@pytest.mark.parametrize("body", NOT_RMS.values(), ids=NOT_RMS)
def test_what_is_no_rms_norm(body: str) -> None:
    assert sites(forward(body)) == ()


def test_names_prove_nothing() -> None:
    source = HEAD + (
        "def rms_norm_weights(x):\n    return x.sum(-1) * x.size(-1) ** -0.5\n\n\n"
        "class DecoderNormAfterLayer(nn.Module):\n    def forward(self, x):\n"
        "        return self.mlp(x) / torch.sqrt(torch.tensor(2.0))\n\n\n"
        "class FusedInputNorm(nn.Module):\n    def forward(self, pixels):\n"
        "        return (pixels - self.mean) * self.std.rsqrt()\n"
    )
    assert sites(source) == ()


def test_a_layer_with_a_norm_in_its_middle_is_no_norm() -> None:
    """The finding is the expression, not the construction of the layer."""
    body = "h = x * torch.rsqrt(x.square().mean(-1, True) + 1e-6)\nreturn torch.sigmoid(h)"
    found = places(forward(body) + "\n\nlayer = Layer(None)\n")
    assert [(code, norm) for code, norm, _ in found] == [("NP231", "Layer.forward")]


def test_recursion_and_many_calls_end() -> None:
    calls = "".join(f"    h = h + f{n}(h)\n" for n in range(12))
    functions = "".join(
        f"def f{n}(h):\n{calls}    return h * torch.rsqrt(h.square().mean(-1, True) + 1e-6)\n\n\n"
        for n in range(12)
    )
    assert {s.verdict for s in sites(HEAD + functions)} == {"refuse"}


def test_a_check_that_raises_hides_nothing() -> None:
    """A constructor that refuses bad arguments goes on with good ones."""
    checked = NORM.replace(
        "        self.eps = eps\n",
        "        if dim % 2:\n            raise ValueError(dim)\n        self.eps = eps\n",
    )
    source = HEAD + checked + "\n\ndef build(config):\n    return N(config.dim)\n"
    (site,) = sites(source)
    assert (site.code, site.norm) == ("NP212", "N")
    assert site.computes is not None
    assert (site.computes.weight, site.computes.offset) == ("offset", 1.0)


def test_a_tuple_that_begins_with_something_else_is_no_norm() -> None:
    inline = """\
class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj = nn.Linear(size, size)

    def forward(self, q, k, v):
        h = k.float()
        k = (h * h.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(k.dtype)
        return {returned}
"""
    head = "import torch\nfrom torch import nn\n\n\n"
    for returned, code in (("self.proj(q), k, v", "NP231"), ("k, v", "NP216")):
        (site,) = find_sites((head + inline.format(returned=returned)).encode(), "m.py")
        assert (site.code, site.verdict) == (code, "refuse")
