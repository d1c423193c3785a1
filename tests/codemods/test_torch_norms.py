"""``torch.nn.RMSNorm`` and ``F.rms_norm``: what converts, what is refused, and what torch does."""

from __future__ import annotations

import dataclasses

import pytest

from normport.codemods.analyze import find_sites, plan
from normport.codemods.edit import apply_plan
from normport.codemods.model import Site

EPS = "1.1920928955078125e-07"


def layer(call: str, head: str = "import torch\nfrom torch import nn\n", use: str = "x") -> str:
    return (
        f"{head}\n\nclass Layer(nn.Module):\n    def __init__(self, n, eps):\n"
        f"        super().__init__()\n        self.norm = {call}\n\n    def forward(self, x):\n"
        f"        return self.norm({use})\n"
    )


def one(source: str) -> Site:
    compile(source, "m.py", "exec")
    (site,) = find_sites(source.encode(), "m.py")
    return site


@pytest.mark.parametrize(
    ("call", "target"),
    [
        ("nn.RMSNorm(n)", f"RMSNorm(n, eps={EPS}, dtype=torch.float32)"),
        ("nn.RMSNorm(n, None)", f"RMSNorm(n, eps={EPS}, dtype=torch.float32)"),
        ("nn.RMSNorm(n, eps)", "RMSNorm(n, eps=eps, dtype=torch.float32)"),
        ("nn.RMSNorm((n,), eps=1e-6)", "RMSNorm(n, eps=1e-6, dtype=torch.float32)"),
        ("nn.RMSNorm([8], 1e-6, True)", "RMSNorm(8, eps=1e-6, dtype=torch.float32)"),
        ("nn.RMSNorm(normalized_shape=n, dtype=torch.float32)",
         f"RMSNorm(n, eps={EPS}, dtype=torch.float32)"),
        ("nn.RMSNorm(n, elementwise_affine=False)", f"RMSNorm(n, eps={EPS}, has_weight=False)"),
        ("torch.nn.RMSNorm(n, 1e-5, False)", "RMSNorm(n, eps=1e-5, has_weight=False)"),
        ("getattr(nn, 'RMSNorm', nn.LayerNorm)(n, eps=eps)",
         "RMSNorm(n, eps=eps, dtype=torch.float32)"),
        ("getattr(nn, 'RMSNorm')(n)", f"RMSNorm(n, eps={EPS}, dtype=torch.float32)"),
        ('getattr(\n            nn,\n            "RMSNorm",\n        )(n, eps)',
         "RMSNorm(n, eps=eps, dtype=torch.float32)"),
        ("(nn\n            .RMSNorm(n, eps))", "RMSNorm(n, eps=eps, dtype=torch.float32)"),
        ("torch.nn.modules.normalization.RMSNorm(n, eps)",
         "RMSNorm(n, eps=eps, dtype=torch.float32)"),
    ],
)  # fmt: skip
def test_constructions_that_convert(call: str, target: str) -> None:
    site = one(layer(call))
    assert (site.code, site.verdict, site.target) == ("NP105", "convert", target)
    assert site.proof is not None
    assert (site.proof.eps is None) == ("eps" in call.replace("eps=1e-6", ""))


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import torch.nn as nn\n", "nn.RMSNorm(n)"),
        ("from torch import nn as t\nfrom torch import nn\n", "t.RMSNorm(n)"),
        ("from torch import nn\nfrom torch.nn import RMSNorm as TorchNorm\n", "TorchNorm(n)"),
        ("from torch import nn\nfrom torch.nn.modules.normalization import RMSNorm as R\n", "R(n)"),
        ("import torch as th\nnn = th.nn\nfrom torch import nn\n", "th.nn.RMSNorm(n)"),
        (
            "from torch import nn\nfrom torch.nn import (\n    Linear,\n    RMSNorm as R,\n)\n",
            "R(n)",
        ),
        ("from torch import nn\nfrom torch.nn import (  # (all)\n    RMSNorm,\n)\n", "RMSNorm(n)"),
        ("from torch import nn\nfrom torch.nn import Linear, \\\n    RMSNorm\n", "RMSNorm(n)"),
    ],
)
def test_every_spelling_of_the_import(head: str, call: str) -> None:
    assert one(layer(call, head)).code == "NP105"


@pytest.mark.parametrize(
    ("call", "use", "code"),
    [
        ("nn.RMSNorm((2, n))", "x", "NP232"),
        ("nn.RMSNorm(n, elementwise_affine=eps)", "x", "NP232"),
        ("nn.RMSNorm(n, device='cuda')", "x", "NP232"),
        ("nn.RMSNorm(self.shape[1:])", "x", "NP232"),
        ("nn.RMSNorm(self.a.shape)", "x", "NP232"),
        ("nn.RMSNorm(n.size())", "x", "NP232"),
        ("nn.RMSNorm(n, dtype=torch.bfloat16)", "x", "NP206"),
        ("nn.RMSNorm(*eps)", "x", "NP215"),
        ("nn.RMSNorm(n, bias=True)", "x", "NP215"),
        ("wrapped(nn.RMSNorm(n))", "x", "NP209"),
        ("make(nn.RMSNorm)", "x", "NP209"),
        ("nn.RMSNorm(n)", "x, x", "NP208"),
    ],
)
def test_constructions_that_are_refused(call: str, use: str, code: str) -> None:
    site = one(layer(call, use=use))
    assert (site.code, site.verdict) == (code, "refuse")
    assert (site.reason or "").startswith("torch.nn.RMSNorm: ")


@pytest.mark.parametrize(
    ("held", "use"),
    [
        ("nn.ModuleList([nn.RMSNorm(n)])", "self.norm[0](x)"),
        ("nn.ModuleList([nn.RMSNorm(n) for _ in range(2)])", "self.norm[1](x)"),
        ("nn.ModuleList(nn.RMSNorm(n) for _ in range(2))", "self.norm[1](x)"),
        ("nn.ModuleDict({k: nn.RMSNorm(n) for k in 'qk'})", "self.norm['q'](x)"),
        ("nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(n))", "self.norm(x)"),
    ],
)
def test_what_holds_the_norm_is_seen_through(held: str, use: str) -> None:
    source = layer(held).replace("self.norm(x)", use)
    site = one(source)
    assert (site.code, site.verdict) == ("NP105", "convert"), site.reason
    new = apply_plan(source.encode(), plan(source.encode(), [site])).source.decode()
    wanted = held.replace("nn.RMSNorm(n)", site.target or "?")
    assert "".join(wanted.split()) in "".join(new.split())
    passed_on = one(source.replace(use, f"{use} + f(self.norm)"))
    assert (passed_on.code, passed_on.verdict) == ("NP209", "refuse")


@pytest.mark.parametrize("made", ["e = None if eps else 1e-6", "e = 1e-6\n        e = None"])
def test_an_eps_that_may_be_none_in_a_variable(made: str) -> None:
    source = layer("nn.RMSNorm(n, e)").replace("self.norm =", f"{made}\n        self.norm =", 1)
    assert one(source).code == "NP232"


def test_uses_that_are_refused() -> None:
    source = layer("nn.RMSNorm(n)")
    assert one(source.replace("return self", "y = self.norm.weight\n        return self")).code == (
        "NP214"
    )
    checked = source.replace("return self", "assert isinstance(x, nn.RMSNorm)\n        return self")
    assert one(checked).code == "NP211"
    late = source.replace("__init__(self, n, eps)", "late(self, n, eps)").replace(
        "super().__init__()", "pass"
    )
    assert one(late).code == "NP222"


@pytest.mark.parametrize("parameter", ["eps=None", "eps: float | None", "*, eps=None"])
def test_an_eps_that_may_be_none(parameter: str) -> None:
    source = layer("nn.RMSNorm(n, eps)")
    assert one(source).code == "NP105"
    assert one(source.replace("n, eps):", f"n, {parameter}):")).code == "NP232"


def test_what_a_star_import_may_bring() -> None:
    site = one(layer("RMSNorm(n)", head="from torch import nn\nfrom torch.nn import *\n"))
    assert (site.code, site.verdict, site.norm) == ("NP221", "refuse", "torch.nn.RMSNorm")
    assert "`from torch.nn import *` brings it, as far as can be seen" in (site.reason or "")


LAYERNORM = "from vllm.model_executor.layers.layernorm import RMSNorm\n"


def test_a_star_import_after_the_name_of_a_standard_layer() -> None:
    late = one(
        layer("RMSNorm(n)", head=f"{LAYERNORM}from torch import nn\nfrom torch.nn import *\n")
    )
    assert (late.code, late.verdict) == ("NP221", "refuse")
    early = one(
        layer("RMSNorm(n)", head=f"from torch import nn\nfrom torch.nn import *\n{LAYERNORM}")
    )
    assert (early.code, early.verdict) == ("NP100", "done")


def test_a_function_that_a_star_import_may_bring() -> None:
    head = "import torch\nfrom torch.nn.functional import *\n"
    site = one(f"{head}\n\ndef run(x, y):\n    return rms_norm(x + y, (8,))\n")
    assert (site.code, site.norm) == ("NP221", "torch.nn.functional.rms_norm")


@pytest.mark.parametrize(
    "head",
    [
        "from torch import nn\nfrom torch.nn import *\nfrom other import RMSNorm\n",
        "from torch import nn\nfrom torch.nn import *\n\n\nclass RMSNorm(nn.Identity):\n    pass\n",
        "from torch import nn\nfrom torch.nn.functional import *\n",
    ],
)
def test_a_star_import_that_does_not_bring_it(head: str) -> None:
    assert find_sites(layer("RMSNorm(n)", head=head).encode(), "m.py") == ()


def test_a_subclass_is_recognised() -> None:
    head = "import torch\nfrom torch import nn\n\n\nclass Mine(nn.RMSNorm):\n    pass\n"
    site = one(layer("Mine(n)", head))
    assert (site.code, site.norm) == ("NP236", "Mine")


@pytest.mark.parametrize(
    ("head", "call", "eps"),
    [
        ("import torch.nn.functional as F\n", "F.rms_norm(x, (4,))", EPS),
        ("from torch.nn import functional as F\n", "F.rms_norm(x, (4,), w, 1e-6)", "1e-6"),
        ("import torch\n", "torch.rms_norm(x, [4], weight=w, eps=e)", "e"),
        ("import torch\n", "torch.nn.functional.rms_norm(x, [4])", EPS),
    ],
)
def test_the_function_is_refused(head: str, call: str, eps: str) -> None:
    site = one(f"import torch\n{head}\n\ndef block(x, w, e):\n    return torch.relu({call})\n")
    assert site.code == "NP233"
    assert site.computes is not None
    assert (site.computes.weight, site.computes.eps) == (
        "scale" if "w" in call[20:] else "none",
        eps,
    )


CLASS = """\
import torch
import torch.nn.functional as F
from torch import nn


class Mine(nn.Module):
    def __init__(self, dim, eps=None):
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (self.dim,), self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.norm = Mine(n, eps)

    def forward(self, x):
        return self.norm(x)
"""


def test_a_class_around_the_function_is_a_local_norm() -> None:
    site = one(CLASS)
    assert (site.code, site.norm) == ("NP103", "Mine")
    assert site.target == "RMSNorm(n, eps=eps, dtype=torch.float32)"
    default = one(CLASS.replace("Mine(n, eps)", "Mine(n)"))
    assert default.target == f"RMSNorm(n, eps={EPS}, dtype=torch.float32)"
    bare = CLASS.replace("self.weight, self.eps", "None, self.eps").replace(
        "        self.weight = nn.Parameter(torch.ones(dim))\n", ""
    )
    assert one(bare).computes == replace_weight(site)
    many = CLASS.replace("(self.dim,)", "(2, self.dim)")
    assert one(many).code == "NP210"


def replace_weight(site: Site) -> object:
    assert site.computes is not None
    return dataclasses.replace(
        site.computes, weight="none", multiply_in=None, initial=None, weight_dtype=None
    )


def test_a_function_around_the_function_is_one_norm() -> None:
    source = (
        "import torch\nimport torch.nn.functional as F\n\n\ndef normed(x):\n"
        "    return F.rms_norm(x, (x.size(-1),))\n\n\ndef block(x):\n"
        "    return torch.relu(normed(x)) + torch.relu(normed(x + 1))\n"
    )
    found = find_sites(source.encode(), "m.py")
    assert [(s.code, s.norm, s.line) for s in found] == [("NP230", "normed", 10)] * 2


def test_an_annotation_goes_along() -> None:
    source = layer("nn.RMSNorm(n, eps)").replace("self.norm =", "self.norm: nn.RMSNorm =")
    data = source.encode()
    result = apply_plan(data, plan(data, find_sites(data, "m.py"))).source.decode()
    assert "self.norm: RMSNorm = RMSNorm(n, eps=eps, dtype=torch.float32)" in result


def test_torchs_epsilon_is_that_of_float32() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for affine in (True, False):
            norm = torch.nn.RMSNorm(64, elementwise_affine=affine, dtype=dtype)
            x = (torch.randn(8, 64) * 1e-3).to(dtype)  # so small that the epsilon tells
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + float(EPS))
            if affine:
                norm.weight.data.normal_()
                h = h * norm.weight.float()
            assert torch.equal(norm(x), h.to(dtype))


def test_a_name_that_another_function_has_for_itself_hides_nothing() -> None:
    head = "import torch\nfrom torch import nn\n"
    other = "\n\ndef area(x):\n    B, nn = x.shape\n    return B * nn\n"
    assert one(layer("nn.RMSNorm(n)", head) + other).code == "NP105"
    inside = layer("nn.RMSNorm(n)", head).replace("self, n, eps", "self, n, eps, nn")
    assert find_sites(inside.encode(), "m.py") == ()
