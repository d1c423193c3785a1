"""A module that is converted where it is built hands its dtype on to the norm behind it."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import find_sites

MODEL = """\
import torch
from torch import nn


class N(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return {returned}


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first = {first}
        self.norm = N(config.hidden_size, eps=config.eps)

    def forward(self, x):
        return self.norm(self.first(x))
"""
ROUNDED, WIDE = "self.weight * h.to(x.dtype)", "(h * self.weight.float()).to(x.dtype)"


def codes(first: str, returned: str) -> set[tuple[str, str]]:
    source = MODEL.format(first=first, returned=returned).encode()
    return {(site.verdict, site.code) for site in find_sites(source, "m.py")}


@pytest.mark.parametrize(
    "first",
    [
        "nn.Linear(8, 8).float()",
        "nn.Linear(8, 8).to(torch.float32)",
        "_Router(config).half()",
    ],
)
def test_a_module_that_is_converted_where_it_is_built(first: str) -> None:
    assert codes(first, ROUNDED) == {("refuse", "NP222")}
    assert codes(first, WIDE) == {("convert", "NP103")}


@pytest.mark.parametrize(
    "first",
    [
        "nn.Linear(8, 8)",
        "nn.Parameter(torch.ones(8)).float()",
        "torch.arange(8).to(torch.float32)",
        "make(config).float()",
    ],
)
def test_what_is_no_module_or_not_converted(first: str) -> None:
    assert codes(first, ROUNDED) == {("convert", "NP104")}
