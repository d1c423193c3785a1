"""Run vLLM engines on the tiny checkpoints and write down what was seen, as JSON.

    python engine_runner.py CHECKPOINTS OUT [RUN ...]

Which vLLM runs is the caller's choice (PYTHONPATH). Each run of ``RUNS`` builds one engine in this
process; the record of a run says which classes and files the built model came from, what it
loaded, what it generated, and what went through the XPU kernels. The tests draw the conclusions.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
import xpu_stand_in
from safetensors import safe_open

NEW_TOKENS = 12
PROMPT_LENGTHS = (3, 17, 40, 64)


@dataclass(frozen=True)
class Run:
    """One engine: which checkpoint, compiled or not, and what else is done with it."""

    checkpoint: str
    dtype: str
    eager: bool = True
    xpu: bool = False
    control: bool = False
    encode: bool = False


RUNS = {
    "float32": Run("float32", "float32"),
    "bfloat16": Run("bfloat16", "bfloat16", control=True),
    "float16": Run("float16", "float16"),
    "vision": Run("vision", "bfloat16", encode=True),
    "xpu": Run("bfloat16", "bfloat16", xpu=True),
    "compiled": Run("bfloat16", "bfloat16", eager=False),
}


def prompts() -> list[dict[str, list[int]]]:
    return [
        {"prompt_token_ids": [1, *((7 * i + 13 * n) % 400 + 4 for i in range(length - 1))]}
        for n, length in enumerate(PROMPT_LENGTHS)
    ]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy()).hexdigest()


def wide_bytes(tensor: torch.Tensor) -> bytes:
    """The values as float32, row after row: a cast up is exact, so equal bytes are equal values."""
    return tensor.detach().float().contiguous().numpy().tobytes()


def checkpoint_in(model: torch.nn.Module, checkpoint: Path) -> dict[str, str | None]:
    """For each key of the checkpoint, the parameter that holds its tensor in one piece, or None.

    A stacked parameter (q, k and v in one) holds several. The tensors are random, so a key that
    was dropped, cut or changed on the way is not found.
    """
    held = {name: wide_bytes(parameter) for name, parameter in model.named_parameters()}
    found: dict[str, str | None] = {}
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        for key in list(file.keys()):
            wanted = wide_bytes(file.get_tensor(key))
            found[key] = next((name for name, have in held.items() if wanted in have), None)
    return found


def norms(model: torch.nn.Module) -> dict[str, dict[str, str]]:
    """Every RMS norm of the built model: its class, where that comes from, and its dispatch."""
    found = {}
    for name, module in model.named_modules():
        if not type(module).__name__.endswith(("RMSNorm", "NormAddNorm")):
            continue
        method = getattr(module, "_forward_method", None)
        found[name] = {
            "class": f"{type(module).__module__}.{type(module).__qualname__}",
            "file": str(sys.modules[type(module).__module__].__file__),
            "method": getattr(method, "__name__", "forward"),
        }
    return found


def logprobs(entries: Iterable[dict[int, Any] | None]) -> list[dict[str, float] | None]:
    return [
        None if entry is None else {str(token): each.logprob for token, each in entry.items()}
        for entry in entries
    ]


class Watched:
    """The built model with its forward passes counted and its logits kept as one digest."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.passes = 0
        self.logits = hashlib.sha256()
        forward: Callable[..., Any] = model.forward
        compute_logits: Callable[..., torch.Tensor] = model.compute_logits  # type: ignore[assignment]

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.passes += 1
            return forward(*arguments, **keywords)

        def kept(*arguments: Any, **keywords: Any) -> torch.Tensor:
            logits = compute_logits(*arguments, **keywords)
            self.logits.update(digest(logits).encode())
            return logits

        model.forward = counted  # type: ignore[method-assign]
        model.compute_logits = kept  # type: ignore[assignment]

    def reset(self) -> None:
        self.passes = 0
        self.logits = hashlib.sha256()


def generate(llm: Any, watched: Watched) -> dict[str, Any]:
    from vllm import SamplingParams

    watched.reset()
    greedy = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=8, prompt_logprobs=8
    )
    outputs = llm.generate(prompts(), greedy, use_tqdm=False)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [logprobs(output.outputs[0].logprobs) for output in outputs],
        "prompt_logprobs": [logprobs(output.prompt_logprobs) for output in outputs],
        "logits": watched.logits.hexdigest(),
        "passes": watched.passes,
    }


def encode(model: Any) -> dict[str, Any]:
    """Two images of different sizes through the vision tower and the norm behind it."""
    generator = torch.Generator().manual_seed(7)
    images = [torch.randn(3, *size, generator=generator) for size in ((56, 56), (28, 84))]
    sizes = [size.shape[-2] * size.shape[-1] // 28**2 for size in images]
    with torch.inference_mode():
        features = model.embed_multimodal(
            image_pixel_values=images, image_feature_sizes=torch.tensor(sizes)
        )
    return {
        "shapes": [list(feature.shape) for feature in features],
        "digests": [digest(feature) for feature in features],
        "finite": all(bool(feature.isfinite().all()) for feature in features),
        "spread": [float(feature.float().std()) for feature in features],
    }


@contextmanager
def loaded_model(checkpoint: Path) -> Iterator[dict[str, Any]]:
    """Notice the model that the engine builds inside, as it is when its weights are loaded."""
    from vllm.model_executor.models.muse_glimmer import MuseGlimmerForCausalLM

    seen: dict[str, Any] = {}
    original = MuseGlimmerForCausalLM.load_weights

    def load_weights(self: Any, weights: Any) -> Any:
        if seen:
            raise RuntimeError("the engine built its model twice")
        seen["model"] = self
        loaded = original(self, weights)
        seen["unloaded"] = sorted({name for name, _ in self.named_parameters()} - loaded)
        seen["keys"] = checkpoint_in(self, checkpoint)
        return loaded

    MuseGlimmerForCausalLM.load_weights = load_weights
    try:
        yield seen
    finally:
        MuseGlimmerForCausalLM.load_weights = original


def shut_down(llm: Any) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def carry_out(run: Run, checkpoints: Path) -> dict[str, Any]:
    from vllm import LLM

    # Each engine collects garbage several times; what the imports left need not be looked at again.
    gc.freeze()
    checkpoint = checkpoints / run.checkpoint
    record: dict[str, Any] = {}
    with ExitStack() as stack:
        if run.xpu:
            record["registered"] = xpu_stand_in.register_kernels()
            stack.enter_context(xpu_stand_in.dispatch_as_xpu())
        seen = stack.enter_context(loaded_model(checkpoint))
        llm = LLM(
            model=str(checkpoint),
            dtype=run.dtype,
            enforce_eager=run.eager,
            max_model_len=128,
            max_num_seqs=4,
            max_num_batched_tokens=256,
            seed=0,
            enable_prefix_caching=False,
            disable_log_stats=True,
            skip_mm_profiling=True,
        )
        stack.callback(shut_down, llm)
        model = seen["model"]
        watched = Watched(model)
        record["model"] = f"{type(model).__module__}.{type(model).__qualname__}"
        record["file"] = str(sys.modules[type(model).__module__].__file__)
        record["norms"] = norms(model)
        record["compilation"] = llm.llm_engine.vllm_config.compilation_config.mode.name
        record["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        record["keys"] = seen["keys"]
        record["unloaded"] = seen["unloaded"]
        record["parameters"] = {n: list(p.shape) for n, p in model.named_parameters()}
        xpu_stand_in.CALLS.clear()
        record["generated"] = generate(llm, watched)
        record["kernel_calls"] = dict(xpu_stand_in.CALLS)
        if run.encode:
            record["encoded"] = encode(model)
        if run.control:
            # As a plain RMSNorm has it: the weight in the run's dtype rounds before the multiply.
            weight = model.model.norm.weight
            weight.data = weight.data.to(getattr(torch, run.dtype))
            record["control"] = generate(llm, watched)
    return record


def register() -> None:
    """Hand the class to the registry, which otherwise inspects it in a process of its own first."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.muse_glimmer import MuseGlimmerForCausalLM

    ModelRegistry.register_model(MuseGlimmerForCausalLM.__name__, MuseGlimmerForCausalLM)


def main() -> None:
    checkpoints, out, *names = sys.argv[1:]
    register()
    records = {name: carry_out(RUNS[name], Path(checkpoints)) for name in names or RUNS}
    record = {"site": sysconfig.get_paths()["purelib"], "torch": torch.__version__, "runs": records}
    Path(out).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
