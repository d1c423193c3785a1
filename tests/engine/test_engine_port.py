"""MuseGlimmer in the real vLLM engine before and after the patch series.

``released`` is vLLM as installed, ``ported`` the same with ``patches/0.29.0`` applied, ``chained``
with ``optional/norm-add-norm.patch`` on top. Each ran in a process of its own (see README.md) on
the same tiny random checkpoints; all tests of them are in this file, so that one worker needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_trees import Seen
from tiny_muse_glimmer import IMAGE_TOKEN_ID, LAYERS, SANDWICH

pytestmark = pytest.mark.engine

MODEL = "vllm.model_executor.models.muse_glimmer"
LAYERNORM = "vllm.model_executor.layers.layernorm"
LOCAL, GEMMA, STANDARD = (
    f"{MODEL}.MuseGlimmerRMSNorm",
    f"{LAYERNORM}.GemmaRMSNorm",
    f"{LAYERNORM}.RMSNorm",
)
EAGER = ["float32", "bfloat16", "float16"]
EVERY = [*EAGER, "vision", "xpu", "compiled"]

CHAINED_OPS = {f"model.layers.{layer}.norm_add_norm" for layer in range(LAYERS)}
SANDWICH_NORMS = {f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in SANDWICH}
OTHER_NORMS = {
    "model.embed_norm",
    "model.norm",
    *(f"model.layers.{layer}.self_attn.qk_norm" for layer in range(LAYERS)),
}


def expected_norms(run: str) -> set[str]:
    vision = {"perception_emb_norm"} if run == "vision" else set()
    return SANDWICH_NORMS | OTHER_NORMS | vision


def source(seen: Seen, module: str) -> Path:
    return seen.root / Path(*module.split(".")).with_suffix(".py")


def assert_shows_something(generated: dict[str, Any]) -> None:
    """Prompts of a random model must lead to different tokens, or equality would say little."""
    assert len({tuple(tokens) for tokens in generated["tokens"]}) == len(generated["tokens"])
    assert len({token for tokens in generated["tokens"] for token in tokens}) > 10
    assert IMAGE_TOKEN_ID not in {token for tokens in generated["tokens"] for token in tokens}


@pytest.mark.parametrize("run", EVERY)
def test_the_released_model_has_its_own_norms(released: Seen, run: str) -> None:
    record = released.runs[run]
    assert record["file"] == str(source(released, MODEL))
    assert set(record["norms"]) == expected_norms(run)
    for name, norm in record["norms"].items():
        assert norm == {"class": LOCAL, "file": record["file"], "method": "forward"}, name


@pytest.mark.parametrize("run", EVERY)
def test_the_ported_model_has_the_standard_norms(ported: Seen, run: str) -> None:
    record = ported.runs[run]
    method = {"xpu": "forward_xpu", "compiled": "forward_native"}.get(run, "forward_cpu")
    assert record["file"] == str(source(ported, MODEL))
    assert set(record["norms"]) == expected_norms(run)
    for name, norm in record["norms"].items():
        assert norm == {
            "class": GEMMA if name in SANDWICH_NORMS else STANDARD,
            "file": str(source(ported, LAYERNORM)),
            "method": method,
        }, name


@pytest.mark.parametrize("run", ["float32", "vision"])
def test_both_hold_the_whole_checkpoint_under_the_same_names(
    released: Seen, ported: Seen, run: str
) -> None:
    before, after = released.runs[run], ported.runs[run]
    assert [key for key, parameter in after["keys"].items() if parameter is None] == []
    assert after["unloaded"] == before["unloaded"] == []
    assert after["keys"] == before["keys"]
    assert after["parameters"] == before["parameters"]
    # The other way round: no parameter that the checkpoint says nothing about.
    assert set(after["keys"].values()) == set(after["parameters"])


@pytest.mark.parametrize("run", [*EAGER, "vision"])
def test_eager_generation_is_bit_equal(released: Seen, ported: Seen, run: str) -> None:
    before, after = released.runs[run], ported.runs[run]
    assert before["compilation"] == after["compilation"] == "NONE"
    assert after["generated"]["tokens"] == before["generated"]["tokens"]
    assert after["generated"]["logprobs"] == before["generated"]["logprobs"]
    assert after["generated"]["prompt_logprobs"] == before["generated"]["prompt_logprobs"]
    assert after["generated"]["logits"] == before["generated"]["logits"]
    assert_shows_something(after["generated"])


def test_a_final_norm_that_rounds_once_more_would_be_seen(released: Seen, ported: Seen) -> None:
    """The control: a plain RMSNorm at the end, which the series avoids, changes the logprobs."""
    before, after = released.runs["bfloat16"], ported.runs["bfloat16"]
    assert before["control"] == before["generated"]
    assert after["control"]["logits"] != after["generated"]["logits"]
    assert after["control"]["logprobs"] != after["generated"]["logprobs"]


def test_compiled_generation_gives_the_same_tokens(released: Seen, ported: Seen) -> None:
    before, after = released.runs["compiled"], ported.runs["compiled"]
    assert after["compilation"] == before["compilation"] != "NONE"
    assert after["graphs"] > 0
    assert before["graphs"] > 0
    assert after["generated"]["tokens"] == before["generated"]["tokens"]
    assert_shows_something(after["generated"])


def test_images_are_encoded_the_same(released: Seen, ported: Seen) -> None:
    before, after = released.runs["vision"]["encoded"], ported.runs["vision"]["encoded"]
    assert after == before
    assert after["finite"]
    assert len(set(after["digests"])) == len(after["digests"]) == 2
    # A weightless norm comes last, so the features have about unit variance.
    assert all(0.9 < spread < 1.1 for spread in after["spread"])


def test_on_xpu_the_ported_sandwich_norms_reach_the_kernel(ported: Seen) -> None:
    record = ported.runs["xpu"]
    passes = record["generated"]["passes"]
    assert passes > 0
    assert "gemma_rms_norm" in record["registered"]
    assert record["kernel_calls"] == {"gemma_rms_norm": len(SANDWICH_NORMS) * passes}


def test_on_xpu_the_released_model_reaches_no_kernel(released: Seen) -> None:
    record = released.runs["xpu"]
    assert "gemma_rms_norm" in record["registered"]
    assert record["generated"]["passes"] > 0
    assert record["kernel_calls"] == {}


def test_on_xpu_both_generate_the_same(released: Seen, ported: Seen) -> None:
    """The stand-in kernel multiplies in float32 and rounds once, as vLLM's native Gemma norm does,
    so a wrapper that adds the one itself, or passes another eps, would change the logits."""
    before, after = released.runs["xpu"]["generated"], ported.runs["xpu"]["generated"]
    assert after == before
    assert_shows_something(after)


@pytest.mark.parametrize("run", EAGER)
def test_every_layer_has_the_new_layer_and_its_norms(ported: Seen, chained: Seen, run: str) -> None:
    before, after = ported.runs[run]["norms"], chained.runs[run]["norms"]
    assert set(after) == set(before) | CHAINED_OPS
    layer = chained.root / "vllm/model_executor/layers/norm_add_norm.py"
    for name in CHAINED_OPS:
        assert after[name] == {
            "class": "vllm.model_executor.layers.norm_add_norm.NormAddNorm",
            "file": str(layer),
            "method": "forward_cpu",
        }


@pytest.mark.parametrize("run", EAGER)
def test_checkpoints_load_with_the_new_layer_as_before(
    ported: Seen, chained: Seen, run: str
) -> None:
    before, after = ported.runs[run], chained.runs[run]
    assert after["keys"] == before["keys"]
    assert after["unloaded"] == []
    assert after["parameters"] == before["parameters"]


@pytest.mark.parametrize("run", EAGER)
def test_generation_with_the_new_layer_is_bit_equal(ported: Seen, chained: Seen, run: str) -> None:
    before, after = ported.runs[run], chained.runs[run]
    assert after["compilation"] == "NONE"
    assert after["generated"] == before["generated"]
    assert len({tuple(tokens) for tokens in after["generated"]["tokens"]}) > 1
