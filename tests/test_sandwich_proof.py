"""A whole method is run before and after; what differs in any way is not called equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from normport.codemods.sandwich import convert_sandwiches
from normport.codemods.sandwich_cases import sandwich_cases
from normport.tools.norm_add_norm import layer_source
from normport.tools.proof import prove
from normport.tools.tree import SourceTree

pytestmark = [
    pytest.mark.release,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

LAYER = """\
from torch import nn

from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.post = GemmaRMSNorm(8, eps=1e-8)
        self.pre = GemmaRMSNorm(8, eps=1e-5)
        self.last = RMSNorm(8, eps=1e-5)

    def forward(self, positions, h, r=None):
        r = h
        h, _ = self.attention(positions, h)
        h = self.post(h)
        h = r + h
        r = h
        h = self.pre(h)
        if self.twice:
            h = self.last(self.mlp(h)) + r
        return h * self.scale, r
"""
STEP = b"h, r = self.norm_add_norm(h, r, self.post, self.pre)"


def test_only_the_same_bits_are_equal(release: Callable[[str], SourceTree]) -> None:
    source = layer_source().decode()
    layer = source[source.index("from typing import Any") :]
    before = LAYER.encode()
    after = convert_sandwiches(before)
    assert STEP in after
    others = {
        "norms swapped": b"h, r = self.norm_add_norm(h, r, self.pre, self.post)",
        "sum lost": b"h, _ = self.norm_add_norm(h, r, self.post, self.pre)",
        "fused": b"h, r = self.pre(self.post(h), r)",
    }
    variants = {name: after.replace(STEP, text) for name, text in others.items()}
    variants = {"right": after, **variants}
    cases = {n: sandwich_cases(before, v, "Layer.forward", layer) for n, v in variants.items()}
    assert {len(found) for found in cases.values()} == {2}  # with and without the flag
    chosen = [found[1] for found in cases.values()]
    found = prove(chosen, release("0.29.0"))
    assert found[0].status == "equal", found[0].reason
    assert set(found[0].results) == {"float32", "float16", "bfloat16"}
    assert [one.status for one in found[1:]] == ["different"] * 3
