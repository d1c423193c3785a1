"""A model's properties, read from its Hugging Face config or from vLLM's.

Names and paths decide nothing: the family is the architecture's ``model_type`` with the fields
that belong to it, the size follows from family and hidden size, the precision from the quantization
config. What is contradictory or not listed stays unknown, which the contract takes for native.
Needs neither torch nor vLLM; configs may be mappings (a config.json) or objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normport.layers.car_rmsnorm.contract import CONTRACT, DENSE, MOE, RouteConfig, Table

TEXT_MODELS = {"qwen3_5_text": DENSE, "qwen3_5_moe_text": MOE}
WRAPPERS = {"qwen3_5": DENSE, "qwen3_5_moe": MOE}
"""``model_type`` of text models and of multimodal wrappers. Qwen3.6 uses the same ones."""


@dataclass(frozen=True)
class Model:
    """What a config says about a model; None for what it does not say clearly.

    dtype: the checkpoint's dtype as torch names it.
    """

    family: str | None
    size: str | None
    hidden_size: int | None
    precision: str | None
    dtype: str | None


def read_model(config: Any, table: Table = CONTRACT) -> Model:
    """The model of a Hugging Face config: a text model's, or a wrapper's with ``text_config``.

    The size is that of the table's cell with this family and hidden size. Nothing further that
    tells these models from others of their family and hidden size is on record.
    """
    text = _get(config, "text_config")
    text = config if text is None else text
    family = _family(config, text)
    hidden = _get(text, "hidden_size")
    known = isinstance(hidden, int) and not isinstance(hidden, bool)
    sizes: dict[tuple[Any, Any], str] = {
        (cell.family, cell.hidden_size): cell.size for cell in table
    }
    quantization = _quantization(config, text)
    return Model(
        family=family,
        size=sizes.get((family, hidden)) if known else None,
        hidden_size=hidden if known else None,
        precision=_precision(quantization),
        dtype=dtype_name(_first(config, text, "dtype") or _first(config, text, "torch_dtype")),
    )


def read_vllm(vllm_config: Any, table: Table = CONTRACT) -> RouteConfig:
    """The route configuration of a ``vllm.config.VllmConfig``.

    The activations' dtype and the quantization method are those that vLLM settled on, which
    options may have changed from the checkpoint's.
    """
    parallel = _get(vllm_config, "parallel_config")
    sizes = {
        "tensor_parallel": _get(parallel, "tensor_parallel_size"),
        "pipeline_parallel": _get(parallel, "pipeline_parallel_size"),
    }
    model_config = _get(vllm_config, "model_config")
    if model_config is None:
        return RouteConfig(**sizes)
    model = read_model(_get(model_config, "hf_config"), table)
    return RouteConfig(
        family=model.family,
        size=model.size,
        hidden_size=model.hidden_size,
        dtype=dtype_name(_get(model_config, "dtype")),
        precision=_served(model.precision, _get(model_config, "quantization")),
        **sizes,
    )


def dtype_name(dtype: Any) -> str | None:
    """``torch.bfloat16``, ``"torch.bfloat16"`` and ``"bf16"``'s long form as one name."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _family(config: Any, text: Any) -> str | None:
    """The family that wrapper, text model and the presence of experts agree on.

    A wrapper without a nested text model says nothing: its text model would be of Hugging Face's
    default size, whatever stands beside it.
    """
    kind = str(_get(text, "model_type"))
    if text is config:
        family = TEXT_MODELS.get(kind)
    else:
        family = WRAPPERS.get(str(_get(config, "model_type")))
        # A config.json may leave the nested type out; the wrapper's says which one it is then.
        if _get(text, "model_type") is not None and TEXT_MODELS.get(kind) != family:
            return None
    if family is None:
        return None
    experts = _get(text, "num_experts")
    # By type: what is no number of experts says nothing, and is not taken for none of them.
    if experts is None or (type(experts) is int and (experts > 0) == (family == MOE)):
        return family
    return None


def _quantization(config: Any, text: Any) -> Any:
    """The quantization config, in the places where vLLM looks for it."""
    for source in (config, text):
        for name in ("quantization_config", "compression_config"):
            found = _get(source, name)
            if found is not None:
                return found
    return None


def _precision(quantization: Any) -> str | None:
    """ "BF16" without quantization, "FP8" for 8-bit float weights, else the method's name.

    None for a quantization config that names no method.
    """
    if quantization is None:
        return "BF16"
    method = _get(quantization, "quant_method")
    if not isinstance(method, str) or not method:
        return None
    # In lower case, as vLLM takes it, it is also neither of the two names above by accident.
    method = method.lower().replace("compressed_tensors", "compressed-tensors")
    if method == "fp8":
        return "FP8"
    if method == "compressed-tensors" and _all_float8(_get(quantization, "config_groups")):
        return "FP8"
    return method


def _served(checkpoint: str | None, method: Any) -> str | None:
    """The precision of a checkpoint's weights as vLLM serves them with a quantization method.

    A method beside the checkpoint's own (``--quantization``) quantizes it while it is loaded.
    None where the two contradict each other.
    """
    if method is None:
        return checkpoint if checkpoint == "BF16" else None
    if method == "fp8":
        return "FP8" if checkpoint in ("BF16", "FP8") else None
    if method == "compressed-tensors":
        return checkpoint if checkpoint != "BF16" else None
    return str(method).lower()


def _all_float8(groups: Any) -> bool:
    if not isinstance(groups, Mapping) or not groups:
        return False
    weights = [_get(group, "weights") for group in groups.values()]
    return all((_get(w, "num_bits"), _get(w, "type")) == (8, "float") for w in weights)


def _first(config: Any, text: Any, name: str) -> Any:
    value = _get(config, name)
    return _get(text, name) if value is None else value


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
