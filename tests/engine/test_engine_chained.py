"""MuseGlimmer in the real vLLM engine with the norm-add-norm patch on top of the series.

``chained`` is ``ported`` (see test_engine_port.py) with ``patches/0.29.0/optional/
norm-add-norm.patch``; both ran on the same tiny random checkpoints.
"""

from __future__ import annotations

import pytest
from engine_trees import Seen
from tiny_muse_glimmer import LAYERS

pytestmark = pytest.mark.engine

EAGER = ["float32", "bfloat16", "float16"]
OPS = {f"model.layers.{layer}.norm_add_norm" for layer in range(LAYERS)}


@pytest.mark.parametrize("run", EAGER)
def test_every_layer_has_the_new_layer_and_its_norms(ported: Seen, chained: Seen, run: str) -> None:
    before, after = ported.runs[run]["norms"], chained.runs[run]["norms"]
    assert set(after) == set(before) | OPS
    layer = chained.root / "vllm/model_executor/layers/norm_add_norm.py"
    for name in OPS:
        assert after[name] == {
            "class": "vllm.model_executor.layers.norm_add_norm.NormAddNorm",
            "file": str(layer),
            "method": "forward_cpu",
        }


@pytest.mark.parametrize("run", EAGER)
def test_checkpoints_load_as_before(ported: Seen, chained: Seen, run: str) -> None:
    before, after = ported.runs[run], chained.runs[run]
    assert after["keys"] == before["keys"]
    assert after["unloaded"] == []
    assert after["parameters"] == before["parameters"]


@pytest.mark.parametrize("run", EAGER)
def test_generation_is_bit_equal(ported: Seen, chained: Seen, run: str) -> None:
    before, after = ported.runs[run], chained.runs[run]
    assert after["compilation"] == "NONE"
    assert after["generated"] == before["generated"]
    assert len({tuple(tokens) for tokens in after["generated"]["tokens"]}) > 1
