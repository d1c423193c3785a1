"""The size of a weightless norm comes from the data that flows into it, or not at all."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import Options, find_sites

NORM = """\
import torch
from torch import nn
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear

HEAD_DIM = 128


class N(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


"""


def module(init: str, forward: str, parameters: str = "x") -> str:
    body = "".join(f"        {line}\n" for line in init.splitlines())
    steps = "".join(f"        {line}\n" for line in forward.splitlines())
    return (
        f"{NORM}class Layer(nn.Module):\n    def __init__(self, config):\n"
        f"        super().__init__()\n{body}\n    def forward(self, {parameters}):\n{steps}"
    )


SELF = "self.head_dim = config.head_dim\nself.norm = N(config.eps)"

INFERRED = {
    "reshape": (SELF, "x = x.reshape(-1, self.head_dim)\nreturn self.norm(x)", "self.head_dim"),
    "view of a tuple": (SELF, "return self.norm(x.view((2, self.head_dim)))", "self.head_dim"),
    "unflatten": (SELF, "return self.norm(x.unflatten(-1, (-1, self.head_dim)))", "self.head_dim"),
    "module constant": (
        "self.norm = N(config.eps)",
        "return self.norm(x.view(-1, HEAD_DIM))",
        "HEAD_DIM",
    ),
    "number": ("self.norm = N(config.eps)", "return self.norm(x.view(-1, 64))", "64"),
    "set after the site": (
        "self.norm = N(config.eps)\nself.head_dim = config.head_dim",
        "return self.norm(x.view(-1, self.head_dim))",
        "config.head_dim",
    ),
    "linear": (
        "self.norm = N(config.eps)\nself.proj = nn.Linear(config.a, config.b, bias=False)",
        "return self.norm(self.proj(x))",
        "config.b",
    ),
    "keyword": (
        "self.norm = N(config.eps)\nself.proj = nn.Linear(in_features=2, out_features=config.b)",
        "x = self.proj(x)\nreturn self.norm(x.contiguous())",
        "config.b",
    ),
    "row parallel pair": (
        "self.norm = N(config.eps)\nself.proj = RowParallelLinear(config.a, config.b)",
        "x, _ = self.proj(x)\nreturn self.norm(x)",
        "config.b",
    ),
    "gathered column parallel": (
        "self.norm = N(config.eps)\n"
        "self.proj = ColumnParallelLinear(config.a, config.b, gather_output=True)",
        "x, _ = self.proj(x)\nreturn self.norm(x * 2)",
        "config.b",
    ),
    "split": (
        "self.q = config.q\nself.k = config.k\nself.norm = N(config.eps)",
        "q, k = x.split([self.q, self.k], dim=-1)\nreturn self.norm(k)",
        "self.k",
    ),
    "same in both branches": (
        SELF,
        "if x is None:\n    y = x.view(1, self.head_dim)\nelse:\n    y = x.view(2, self.head_dim)\n"
        "return self.norm(y)",
        "self.head_dim",
    ),
    "elementwise": (
        "self.norm = N(config.eps)\nself.proj = nn.Linear(config.a, config.b)",
        "return self.norm(torch.sigmoid(self.proj(x)).to(torch.float16))",
        "config.b",
    ),
}


@pytest.mark.parametrize(("init", "forward", "size"), INFERRED.values(), ids=INFERRED)
def test_inferred(init: str, forward: str, size: str) -> None:
    found = [s for s in find_sites(module(init, forward).encode(), "m.py") if s.norm == "N"]
    assert [s.target for s in found] == [f"RMSNorm({size}, eps=config.eps, has_weight=False)"]


NOT_INFERRED = {
    "argument": (SELF, "return self.norm(x)"),
    "inferred by -1": (SELF, "return self.norm(x.reshape(self.head_dim, -1))"),
    "local variable of the method": (SELF, "d = 4\nreturn self.norm(x.view(-1, d))"),
    "different sizes": (
        SELF,
        "return self.norm(x.view(-1, self.head_dim)) + self.norm(x.view(-1, 2))",
    ),
    "one call unknown": (SELF, "return self.norm(x.view(-1, self.head_dim)) + self.norm(x)"),
    "column parallel is split over ranks": (
        "self.norm = N(config.eps)\nself.proj = ColumnParallelLinear(config.a, config.b)",
        "x, _ = self.proj(x)\nreturn self.norm(x)",
    ),
    "other size in a branch": (
        SELF,
        "y = x.view(1, self.head_dim)\nif x is None:\n    y = x.view(2, 2)\nreturn self.norm(y)",
    ),
    "changed in a loop": (
        SELF,
        "y = x.view(1, self.head_dim)\nfor i in x:\n    y = i\nreturn self.norm(y)",
    ),
    "set under a condition": (
        "if config.flag:\n    self.head_dim = config.head_dim\nself.norm = N(config.eps)",
        "return self.norm(x.view(-1, self.head_dim))",
    ),
    "set twice": (
        "self.head_dim = config.head_dim\nself.head_dim = 2\nself.norm = N(config.eps)",
        "return self.norm(x.view(-1, self.head_dim))",
    ),
    "constructor variable set later": (
        "self.norm = N(config.eps)\nsize = config.b\nself.proj = nn.Linear(config.a, size)",
        "return self.norm(self.proj(x))",
    ),
    "transposed": (SELF, "return self.norm(x.view(-1, self.head_dim).transpose(0, 1))"),
    "two producers": (
        "self.norm = N(config.eps)\nself.proj = nn.Linear(1, 2) if config.a else nn.Linear(1, 3)",
        "return self.norm(self.proj(x))",
    ),
    "called in a lambda": (SELF, "return map(lambda y: self.norm(y), x)"),
}


@pytest.mark.parametrize(("init", "forward"), NOT_INFERRED.values(), ids=NOT_INFERRED)
def test_not_inferred(init: str, forward: str) -> None:
    source = module(init, forward).encode()
    found = [s for s in find_sites(source, "m.py") if s.norm == "N"]
    assert [(s.code, s.verdict) for s in found] == [("NP207", "refuse")]
    assert "--dim Layer.norm=EXPR" in (found[0].reason or "")
    given = find_sites(source, "m.py", Options(dims={"Layer.norm": "config.d"}))
    targets = [s.target for s in given if s.norm == "N"]
    assert targets == ["RMSNorm(config.d, eps=config.eps, has_weight=False)"]


def test_called_outside_of_its_class() -> None:
    source = module(SELF, "return self.norm(x.view(-1, self.head_dim))")
    source += "\n\ndef other(layer, x):\n    return layer.norm(x)\n"
    found = [s for s in find_sites(source.encode(), "m.py") if s.norm == "N"]
    assert [s.code for s in found] == ["NP207"]


SET_ODDLY = {
    "unpacked": "self.proj, self.other = nn.Linear(1, config.b), nn.Linear(1, config.c)",
    "setattr": "self.proj = nn.Linear(1, config.b)\nsetattr(self, 'proj', config.other)",
    "in another method": "self._build(config.a, config.b)",
    "imported Linear": "self.proj = Linear(1, config.b)",
    "starred": "self.proj = nn.Linear(*config.sizes)",
}


@pytest.mark.parametrize("init", SET_ODDLY.values(), ids=SET_ODDLY)
def test_layers_that_are_not_plainly_built(init: str) -> None:
    source = module(f"self.norm = N(config.eps)\n{init}", "return self.norm(self.proj(x))")
    source = source.replace("HEAD_DIM =", "from other import Linear\n\nHEAD_DIM =")
    source += "\n    def _build(self, a, b):\n        self.proj = nn.Linear(a, b)\n"
    if "_build" not in init:
        source = source.replace("self.proj = nn.Linear(a, b)", "pass")
    found = [s for s in find_sites(source.encode(), "m.py") if s.norm == "N"]
    assert [s.code for s in found] == ["NP207"]


UNSTEADY = {
    "match": "match x:\n    case 1:\n        return self.norm(x.view(-1, 3))\n"
    "return self.norm(x.view(-1, self.head_dim))",
    "walrus": "y = x.view(-1, self.head_dim)\nif (y := x) is None:\n    pass\nreturn self.norm(y)",
    "in place": "y = x.view(-1, self.head_dim)\ny.t_()\nreturn self.norm(y)",
    "nonlocal": "y = x.view(-1, self.head_dim)\n\ndef f():\n    nonlocal y\n    y = x\n\nf()\n"
    "return self.norm(y)",
}


@pytest.mark.parametrize("forward", UNSTEADY.values(), ids=UNSTEADY)
def test_names_that_change_behind_a_statement(forward: str) -> None:
    found = find_sites(module(SELF, forward).encode(), "m.py")
    assert [s.code for s in found if s.norm == "N"] == ["NP207"]


def test_head_dim_set_from_outside() -> None:
    source = module(SELF, "return self.norm(x.view(-1, self.head_dim))")
    source += "\n\ndef other(layer):\n    layer.head_dim = 3\n"
    assert [s.code for s in find_sites(source.encode(), "m.py") if s.norm == "N"] == ["NP207"]


def test_call_in_the_constructor() -> None:
    init = SELF + "\nself.y = self.norm(config.x)"
    source = module(init, "return self.norm(x.view(-1, self.head_dim))")
    assert [s.code for s in find_sites(source.encode(), "m.py") if s.norm == "N"] == ["NP207"]
