"""Code that walks over all modules and uses an attribute that only the local norm has."""

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
        self.hidden_size = dim
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = N(config.hidden_size, eps=config.eps)
        {tweak}

    def tune(self, part):
        {method}

    def forward(self, x):
        return self.norm(x)
"""


def sites(tweak: str, method: str = "pass") -> set[tuple[str, str]]:
    source = MODEL.format(tweak=tweak.replace("\n", "\n        "), method=method)
    return {(site.verdict, site.code) for site in find_sites(source.encode(), "m.py")}


@pytest.mark.parametrize(
    "tweak",
    [
        "for m in self.modules():\n    if hasattr(m, 'eps'):\n        m.eps = 0.5",
        "for name, m in self.named_modules():\n    setattr(m, 'eps', 0.5)",
        "for i, m in enumerate(list(self.children())):\n    print(m.eps)",
        "self.sizes = [getattr(m, 'hidden_size', 0) for m in self.modules()]",
        "self.apply(lambda m: setattr(m, 'eps', 0.5))",
        "self.apply(self.tune)",
    ],
)
def test_an_attribute_of_the_norm_is_used(tweak: str) -> None:
    assert sites(tweak, "part.eps = 0.5") == {("refuse", "NP214")}


@pytest.mark.parametrize(
    "tweak",
    [
        "for m in self.modules():\n    if isinstance(m, nn.Linear):\n        m.weight.data.zero_()",
        "for m in self.modules():\n    m.requires_grad_(False)\n    print(config.eps)",
        "for m in self.modules():\n    setattr(m, 'tag', config.hidden_size)",
        "self.sizes = [p.eps for p in config.parts]",
    ],
)
def test_another_attribute_is_used(tweak: str) -> None:
    assert sites(tweak, "part.eps = 0.5") == {("convert", "NP103")}
