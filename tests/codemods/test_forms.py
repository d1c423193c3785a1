"""The forms of the calls that a proof has to run are read off the sites."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import find_sites

SOURCE = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, hidden):
        h = hidden.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * self.weight.float()).to(hidden.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = Norm(config.hidden_size)

    def forward(self, x, y):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("return self.norm(x)", []),
        ("return self.norm(x) + self.norm(y)", []),
        ("return self.norm(x.view(-1, 8))", ["2-D input"]),
        ("return self.norm(x.view((-1, 4, 8)))", ["3-D input"]),
        ("return self.norm(x.view(*x.shape[:-1], 4, 8))", ["3-D input"]),
        ("return self.norm(x.view(x.shape[:-1] + (4, 8)))", []),
        ("return self.norm(x.view(y.shape))", []),
        ("return self.norm(torch.reshape(x, (2, 3, 4, 8)))", ["4-D input"]),
        ("return self.norm(x.unflatten(-1, (4, 8)))", ["3-D input"]),
        ("return self.norm(x.reshape(-1, 8).unsqueeze(0).contiguous())", ["3-D input"]),
        ("return self.norm(x.permute(0, 2, 1, 3))", ["4-D input"]),
        ("return self.norm(x.view(-1, 8)) + self.norm(y)", ["norm(x)", "2-D input"]),
        ("q = x.view(-1, 4, 8)\n        return self.norm(q + y)", ["3-D input"]),
        ("q, k = x.view(-1, 4, 8).split(2, 1)\n        return self.norm(k)", ["3-D input"]),
        ("q, k = x.view(-1, 4, 8).pair()\n        return self.norm(k)", []),
        ("q = self.norm(x)\n        x = x.view(-1, 8)\n        return q", []),
        ("return self.norm(x.float())", ["norm(x)", "float32 input"]),
        ("return self.norm(x.to(torch.bfloat16))", ["norm(x)", "bfloat16 input"]),
        ("return self.norm(x.to(y.device))", []),
        (
            "return self.norm(x.view(-1, 8).type_as(y))",
            [
                "2-D input",
                "2-D input, bfloat16 input",
                "2-D input, float16 input",
                "2-D input, float32 input",
            ],
        ),
        ("x = x.half()\n        return self.norm(torch.cat([x, x]))", ["norm(x)", "float16 input"]),
    ],
)
def test_rank_and_dtype_of_the_input(body: str, names: list[str]) -> None:
    (site,) = find_sites(SOURCE.format(body=body).encode(), "model.py")
    assert site.proof is not None
    assert [form.name for form in site.proof.forms] == names
