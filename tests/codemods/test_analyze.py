"""What the analysis reads off a class, and how it decides about each use of it."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import Options, find_sites, may_hold_norm, plan
from normport.codemods.model import Site

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"


def norm(forward: str, init: str = "", signature: str = "dim, eps=1e-6") -> str:
    """A norm class with the given forward body, and extra constructor lines."""
    extra = "".join(f"        {line}\n" for line in init.splitlines())
    body = "".join(f"        {line}\n" for line in forward.splitlines())
    return (
        f"class N(nn.Module):\n    def __init__(self, {signature}):\n"
        "        super().__init__()\n        self.eps = eps\n"
        f"        self.weight = nn.Parameter(torch.ones(dim))\n{extra}\n"
        f"    def forward(self, x):\n{body}\n\n"
    )


LAYER = """\
class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = N(config.size, eps=config.eps)

    def forward(self, x):
        return self.norm(x)
"""


def sites(source: str, **options: object) -> tuple[Site, ...]:
    return find_sites(source.encode(), "m.py", Options(**options))  # type: ignore[arg-type]


def one(source: str, **options: object) -> Site:
    found = sites(source, **options)
    assert len(found) == 1, found
    return found[0]


FLOAT32_SCALE = {
    "pow": "h = x.float()\n"
    "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)\n"
    "return (h * self.weight.float()).type_as(x)",
    "product": "h = x.to(torch.float32)\nv = (h * h).mean(dim=-1, keepdim=True)\n"
    "return (self.weight.float() * (h * (v + self.eps).rsqrt())).to(x.dtype)",
    "operator": "h = x.float()\nv = torch.mean(h ** 2, dim=-1, keepdim=True)\n"
    "h = torch.rsqrt(self.eps + v) * h\nreturn torch.mul(h, self.weight.float()).to(x.dtype)",
    "square": "dtype = x.dtype\nh = x.float()\nv = torch.square(h).mean([-1], True)\n"
    "h *= torch.rsqrt(v + self.eps)\nreturn (h * self.weight.float()).to(dtype)",
    "power": "h = x.float()\nv = h.square().mean(-1, keepdim=True)\n"
    "return (h * torch.pow(v + self.eps, -0.5) * self.weight.float()).to(x.dtype)",
    "root": "h = x.float()\nv = h.pow(2).mean(-1, keepdim=True)\n"
    "return (h / torch.sqrt(v + self.eps) * self.weight.float()).to(x.dtype)",
    "power in one call": "h = x.float()\nv = h.pow(2).mean(-1, keepdim=True)\n"
    "return (h / (v + self.eps).pow(0.5) * self.weight.float()).to(x.dtype)",
    "short power": "h = x.float()\nv = h.pow(2).mean(-1, keepdim=True)\n"
    "return (h * (v + self.eps).pow(-.5) * self.weight.float()).to(x.dtype)",
    "a half": "h = x.float()\nv = h.pow(2).mean(-1, keepdim=True)\n"
    "return (h / (v + self.eps) ** (1 / 2) * self.weight.float()).to(x.dtype)",
    "zero offset": "h = x.float()\n"
    "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)\n"
    "return (h * (self.weight.float() + 0)).to(x.dtype)",
}


@pytest.mark.parametrize("forward", FLOAT32_SCALE.values(), ids=FLOAT32_SCALE)
def test_spellings_of_a_float32_scale(forward: str) -> None:
    site = one(HEAD + norm(forward) + LAYER)
    assert (site.code, site.verdict) == ("NP103", "convert")
    assert site.target == "RMSNorm(config.size, eps=config.eps, dtype=torch.float32)"
    assert site.computes is not None
    assert (site.computes.weight, site.computes.multiply_in) == ("scale", "float32")
    assert site.computes.eps == "config.eps"


ROUNDED = {
    "after the cast": "h = x.float()\n"
    "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)\n"
    "return self.weight * h.to(x.dtype)",
    "by name": "dtype = x.dtype\nx = x.to(torch.float32)\nv = x.pow(2).mean(-1, keepdim=True)\n"
    "x = x * torch.rsqrt(v + self.eps)\nreturn x.to(dtype) * self.weight",
    "to the weight": "h = x.float()\nv = h.pow(2).mean(-1, keepdim=True)\n"
    "h = h * torch.rsqrt(v + self.eps)\nreturn (h.to(self.weight.dtype) * self.weight).to(x.dtype)",
}


@pytest.mark.parametrize("forward", ROUNDED.values(), ids=ROUNDED)
def test_spellings_of_a_rounded_scale(forward: str) -> None:
    site = one(HEAD + norm(forward) + LAYER)
    assert (site.code, site.target) == ("NP104", "RMSNorm(config.size, eps=config.eps)")


def test_unsafe_prefers_the_plain_layer() -> None:
    site = one(HEAD + norm(FLOAT32_SCALE["pow"]) + LAYER, unsafe=True)
    assert site.target == "RMSNorm(config.size, eps=config.eps)"
    assert site.imports == {"vllm.model_executor.layers.layernorm": ("RMSNorm",)}
    assert "one rounding step" in (site.reason or "")


def test_weight_stored_in_float32_needs_no_reservation() -> None:
    source = HEAD + norm(FLOAT32_SCALE["pow"]).replace(
        "ones(dim)", "ones(dim, dtype=torch.float32)"
    )
    site = one(source + LAYER)
    assert site.code == "NP103"
    assert "for every checkpoint" in (site.reason or "")


def test_helpers_and_flags_are_followed() -> None:
    source = (
        HEAD
        + """\
def _rms(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class N(nn.Module):
    offset = 1.0

    def __init__(self, dim, *, eps=1e-6, unit_offset=False):
        super().__init__()
        self.variance_epsilon = eps
        self.shift = self.offset if unit_offset else 0.0
        self.weight = nn.Parameter(torch.zeros(dim))

    def _scale(self):
        return self.shift + self.weight.float()

    def forward(self, x):
        return (_rms(x.float(), self.variance_epsilon) * self._scale()).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.a = N(config.size, eps=config.eps, unit_offset=True)
        self.b = N(config.size, unit_offset=False)
        self.c = N(config.size, unit_offset=config.flag)

    def forward(self, x):
        return self.c(self.b(self.a(x)))
"""
    )
    found = sites(source)
    assert [(s.attribute, s.code) for s in found] == [
        ("a", "NP101"),
        ("b", "NP103"),
        ("c", "NP210"),
    ]
    assert found[1].target == "RMSNorm(config.size, eps=1e-6, dtype=torch.float32)"
    edits = plan(source.encode(), found)
    assert edits.dead == (), "the class keeps a use"
    assert [edit.line for edit in edits.edits] == [29, 30]


def test_dead_helpers_go_with_the_class() -> None:
    source = HEAD + norm("return _rms(x.float(), self.eps).to(x.dtype) * self.weight") + LAYER
    source = source.replace(
        "class N(",
        "def _rms(x, eps):\n"
        "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)\n\n\nclass N(",
    )
    found = sites(source)
    assert plan(source.encode(), found).dead == ("N", "_rms")
    outside = Options(outside_uses=frozenset({"_rms"}))
    assert plan(source.encode(), found, outside).dead == ("N",)


NOT_NORMS = {
    "plain layer": "return x * torch.sqrt(self.weight.sum())",
    "scaled attention": "return x / math.sqrt(self.eps) + x.mean(-1, keepdim=True)",
    "pixel scaling": "return (x - 0.5) / 0.5 * x.mean()",
}


@pytest.mark.parametrize("forward", NOT_NORMS.values(), ids=NOT_NORMS)
def test_names_prove_nothing(forward: str) -> None:
    assert sites(HEAD + norm(forward) + LAYER) == ()


REFUSED = {
    "another axis": ("NP210", "mean(-1, keepdim=True)", "mean(1, keepdim=True)"),
    "no keepdim": ("NP210", "mean(-1, keepdim=True)", "mean(-1)"),
    "eps outside the root": ("NP210", "keepdim=True) + self.eps)", "keepdim=True)) + self.eps"),
    "weight twice": ("NP210", "self.weight.float())", "self.weight.float() * self.weight.float())"),
    "slice": ("NP210", "h.pow(2)", "h[..., :64].pow(2)"),
    "in-place on the input": ("NP212", "h = x.float()", "x.mul_(2)\n        h = x.float()"),
    "counts its calls": ("NP212", "h = x.float()", "self.calls = 1\n        h = x.float()"),
    "loop": (
        "NP210",
        "h = x.float()",
        "for _ in range(2):\n            x = x * 2\n        h = x.float()",
    ),
}


@pytest.mark.parametrize(("code", "old", "new"), REFUSED.values(), ids=REFUSED)
def test_refused_computations(code: str, old: str, new: str) -> None:
    source = norm(FLOAT32_SCALE["pow"])
    assert old in source
    site = one(HEAD + source.replace(old, new, 1) + LAYER)
    assert (site.verdict, site.code) == ("refuse", code), site.reason


REFUSED_PARAMETERS = {
    "custom loader": ("NP212", "set_weight_attrs(self.weight, {'weight_loader': load})"),
    "unused bias": ("NP206", "self.bias = nn.Parameter(torch.zeros(dim))"),
    "buffer": ("NP212", "self.register_buffer('weight', torch.ones(dim))"),
    "half weight": ("NP206", "self.weight = nn.Parameter(torch.ones(dim, dtype=torch.float16))"),
}


@pytest.mark.parametrize(("code", "line"), REFUSED_PARAMETERS.values(), ids=REFUSED_PARAMETERS)
def test_refused_parameters(code: str, line: str) -> None:
    site = one(HEAD + norm(FLOAT32_SCALE["pow"], init=line) + LAYER)
    assert (site.verdict, site.code) == ("refuse", code), site.reason


REFUSED_USES = {
    "calls of a base class": (
        "NP209",
        LAYER.replace("nn.Module", "Imported").replace("self.norm(x)", "super().forward(x)"),
    ),
    "by name": ("NP209", LAYER.replace("self.norm(x)", "getattr(self, 'norm')(x)")),
    "residual passed by a subclass": (
        "NP208",
        LAYER
        + "\n\nclass Sub(Layer):\n    def forward(self, x):\n        return self.norm(x, x)\n",
    ),
    "residual passed by a base": (
        "NP208",
        "class Base(nn.Module):\n    def run(self, x):\n"
        "        return self.norm(x, residual=x)\n\n\n" + LAYER.replace("nn.Module", "Base"),
    ),
    "weight read by another object": ("NP214", LAYER + "\n\ndef f(m):\n    return m.norm.weight\n"),
    "weight set": ("NP214", LAYER.replace("return", "self.norm.weight = x\n        return")),
    "compiled": ("NP209", LAYER.replace("N(config.size, eps=config.eps)", "torch.compile(N(4))")),
    "built in a lambda": ("NP209", LAYER.replace("= N(", "= lambda: N(")),
    "keyword arguments spread": ("NP215", LAYER.replace("eps=config.eps", "**config.norm")),
    "too many arguments": ("NP215", LAYER.replace("eps=config.eps", "1e-6, 2, 3")),
}


@pytest.mark.parametrize(("code", "layer"), REFUSED_USES.values(), ids=REFUSED_USES)
def test_refused_uses(code: str, layer: str) -> None:
    site = one(HEAD + norm(FLOAT32_SCALE["pow"]) + layer)
    assert (site.verdict, site.code) == ("refuse", code), site.reason


def test_another_class_with_the_same_attribute_is_no_obstacle() -> None:
    other = (
        "\n\nclass Other(nn.Module):\n    def forward(self, x):\n        return self.norm(x, x)\n"
    )
    assert one(HEAD + norm(FLOAT32_SCALE["pow"]) + LAYER + other).verdict == "convert"


def test_none_checks_and_alternatives_are_no_obstacle() -> None:
    layer = LAYER.replace(
        "self.norm = N(config.size, eps=config.eps)",
        "self.norm: N | None\n"
        "        self.norm = N(config.size, eps=config.eps) if config.use else nn.Identity()",
    ).replace(
        "return self.norm(x)",
        "if self.norm is None:\n            return x\n        return self.norm(x)",
    )
    source = HEAD + norm(FLOAT32_SCALE["pow"]) + layer
    site = one(source)
    assert site.verdict == "convert"
    assert [(edit.old, edit.new) for edit in plan(source.encode(), [site]).edits] == [
        ("N", "RMSNorm"),
        ("N(config.size, eps=config.eps)", site.target),
    ]


def test_imported_by_other_files_is_refused() -> None:
    site = one(HEAD + norm(FLOAT32_SCALE["pow"]) + LAYER, outside_uses=frozenset({"N"}))
    assert (site.code, site.verdict) == ("NP220", "refuse")


def test_columns_count_code_points() -> None:
    line = "        s = 'é€😀'; self.norm = N(config.size, eps=config.eps)"
    layer = LAYER.replace("        self.norm = N(config.size, eps=config.eps)", line)
    site = one(HEAD + norm(FLOAT32_SCALE["pow"]) + layer)
    assert site.column == line.index("N(") + 1


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_endings(newline: str) -> None:
    source = (HEAD + norm(FLOAT32_SCALE["pow"]) + "\x0c\n" + LAYER).replace("\n", newline)
    found = find_sites(source.encode(), "m.py")
    assert [(s.line, s.verdict) for s in found] == [
        (
            source.replace(newline, "\n")
            .split("\n")
            .index("        self.norm = N(config.size, eps=config.eps)")
            + 1,
            "convert",
        )
    ]


def test_encodings() -> None:
    text = "# -*- coding: latin-1 -*-\n# é\n" + HEAD + norm(FLOAT32_SCALE["pow"]) + LAYER
    assert find_sites(text.encode("latin-1"), "m.py")[0].verdict == "convert"
    assert find_sites(b"\xef\xbb\xbf" + text[26:].encode(), "m.py")[0].verdict == "convert"
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        find_sites(b"x = '\xff'\nmean(sqrt(1))\n", "m.py")


def test_files_without_a_norm_are_not_parsed() -> None:
    assert not may_hold_norm(b"def broken(:\n")
    assert find_sites(b"def broken(:\n", "m.py") == ()


@pytest.mark.parametrize("dims", [{"norm": "4"}, {"Layer.norm": "4 +"}])
def test_dims_are_checked(dims: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is not"):
        Options(dims=dims)
