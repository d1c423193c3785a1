"""Which model a config describes: by its fields, never by a name or a path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from car_configs import CT_FP8, CT_INT8, FP8, dense, moe, quantized, text_only

from normport.layers.car_rmsnorm.contract import DENSE, MOE
from normport.layers.car_rmsnorm.reading import read_model, read_vllm


def as_objects(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return SimpleNamespace(**{name: as_objects(value) for name, value in config.items()})


@pytest.mark.parametrize("form", [dict, as_objects], ids=["mapping", "object"])
@pytest.mark.parametrize("part", [dict, text_only], ids=["wrapper", "text"])
def test_the_two_models_in_every_form(form: Any, part: Any) -> None:
    found = read_model(form(part(dense())))
    assert (found.family, found.size, found.hidden_size) == (DENSE, "27B", 5120)
    assert (found.precision, found.dtype) == ("BF16", "bfloat16")
    found = read_model(form(part(moe())))
    assert (found.family, found.size, found.hidden_size) == (MOE, "35B-A3B", 2048)


@pytest.mark.parametrize(
    ("how", "precision"),
    [
        (FP8, "FP8"),
        (CT_FP8, "FP8"),
        (CT_INT8, "compressed-tensors"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({**CT_FP8, "quant_method": "compressed_tensors"}, "FP8"),
        ({**CT_FP8, "config_groups": {**CT_FP8["config_groups"], "b": {}}}, "compressed-tensors"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({**FP8, "quant_method": "FP8"}, "FP8"),
        ({"quant_method": "BF16"}, "bf16"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"),
        ({"quant_method": ["fp8"]}, None),
        ({"quant_method": ""}, None),
        ({"bits": 4}, None),
        ({}, None),
        ("fp8", None),
    ],
    ids=str,
)
def test_the_precision_comes_from_the_quantization_config(how: Any, precision: str | None) -> None:
    assert read_model(quantized(dense(), how)).precision == precision
    assert read_model(quantized(text_only(dense()), how)).precision == precision
    assert read_model(dense(quantization_config=how)).precision == precision
    # The name that compressed-tensors had for it; vLLM reads both.
    assert read_model({**dense(), "compression_config": how}).precision == precision
    assert read_model(dense(compression_config=how)).precision == precision


def test_names_and_paths_decide_nothing() -> None:
    named = {**dense(), "_name_or_path": "models/Qwen3.5-35B-A3B-FP8", "architectures": ["X"]}
    assert read_model(named) == read_model(dense())
    other = {"model_type": "llama", "_name_or_path": "Qwen/Qwen3.5-27B", "hidden_size": 5120}
    assert read_model(other).family is None


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "qwen3_5"},
        {**dense(), "model_type": "qwen3_5_moe"},
        dense(model_type="qwen3_5_moe_text"),
        dense(num_experts=8),
        dense(num_experts=[]),
        dense(num_experts=False),
        moe(num_experts=0),
        moe(num_experts=-1),
        moe(num_experts=True),
        moe(num_experts="256"),
        dense(hidden_size=4096),
        dense(hidden_size=None),
        dense(hidden_size=True),
        dense(hidden_size="5120"),
        moe(hidden_size=5120),
        {**dense(), "model_type": None},
        {**dense(), "model_type": ["qwen3_5"]},
        {**text_only(dense()), "model_type": "qwen3_5"},
        {**dense(), "model_type": "qwen3_5_text"},
        {**dense(), "text_config": {}},
        {**text_only(dense()), "model_type": "qwen3_5", "text_config": [1]},
        dense(model_type="qwen3_5"),
    ],
    ids=range(23),
)
def test_what_is_contradictory_or_unlisted_has_no_size(config: dict[str, Any]) -> None:
    assert read_model(config).size is None


def vllm_config(config: Any, **model: Any) -> SimpleNamespace:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1),
        model_config=SimpleNamespace(
            hf_config=as_objects(config),
            **{"dtype": "torch.bfloat16", "quantization": None} | model,
        ),
    )


def test_what_vllm_settled_on_counts() -> None:
    found = read_vllm(vllm_config(dense()))
    assert (found.tensor_parallel, found.pipeline_parallel) == (2, 1)
    assert (found.dtype, found.precision) == ("bfloat16", "BF16")
    assert read_vllm(vllm_config(dense(), dtype="torch.float16")).dtype == "float16"
    assert read_vllm(vllm_config(dense(), quantization="fp8")).precision == "FP8"
    assert read_vllm(vllm_config(dense(), quantization="bitsandbytes")).precision == "bitsandbytes"


@pytest.mark.parametrize(
    ("how", "served", "precision"),
    [
        (FP8, "fp8", "FP8"),
        (CT_FP8, "compressed-tensors", "FP8"),
        (CT_INT8, "compressed-tensors", "compressed-tensors"),
        ({"quant_method": "awq"}, "awq_marlin", "awq_marlin"),
        # What vLLM runs and what the checkpoint says must agree.
        (FP8, None, None),
        (FP8, "modelopt", "modelopt"),
        (CT_INT8, "fp8", None),
        (None, "compressed-tensors", None),
        (None, "fp8_per_tensor", "fp8_per_tensor"),
        (None, "BF16", "bf16"),
    ],
    ids=str,
)
def test_checkpoint_and_engine_agree_about_the_precision(
    how: dict[str, Any] | None, served: str | None, precision: str | None
) -> None:
    config = dense() if how is None else quantized(dense(), how)
    # vLLM's configs keep the quantization config as a mapping.
    seen = vllm_config(config, quantization=served)
    if how is not None:
        seen.model_config.hf_config.quantization_config = how
    assert read_vllm(seen).precision == precision


def test_a_config_without_a_model_is_unknown() -> None:
    config = vllm_config(dense())
    config.model_config = None
    assert read_vllm(config).family is None
