"""Runs a module before and after its rewrite and compares what it does, bit by bit.

vLLM is not imported: its layers are those of ``normport.kernels.reference``, which the tests
compare with vLLM's own.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.commands import FaultError
from normport.kernels import reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
# A norm whose root is spelled differently may differ by a rounding step or two.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
HIDDEN, HEADS = 16, 2


class Config(types.SimpleNamespace):
    """What a model is built from; counts what it hands out."""

    def __init__(self, wide: bool) -> None:
        super().__init__(
            hidden_size=HIDDEN,
            heads=HEADS,
            head_dim=HIDDEN // HEADS,
            rms_norm_eps=1e-5,
            wide=wide,
            epsilons=iter((0.25, 0.5, 0.125, 1.0, 2.0)),
        )

    def __getitem__(self, name: str) -> float:
        return {"eps": 0.125}[name]


@dataclass(frozen=True)
class Run:
    """What a built model shows: its parts, its checkpoint, its results."""

    modules: list[str]
    state: dict[str, tuple[torch.Size, torch.dtype]]
    trained: dict[str, bool]
    epsilons_left: int
    results: list[Tensor | str]


def compare(old: Mapping[str, bytes], new: Mapping[str, bytes], *, exact: bool) -> str:
    """Compare the modules; ``"same"``, or ``"no program"`` where the old one does not run.

    old, new: file name -> content, ``model.py`` among them.

    Raises FaultError where the new module does anything else than the old one.
    """
    before = list(_runs(old))
    if not any(isinstance(run, Run) for run in before):
        return "no program"
    for one, two in zip(before, _runs(new), strict=True):
        if isinstance(one, Run):
            _compare(one, two, exact)
    return "same"


def _compare(one: Run, two: Run | str, exact: bool) -> None:
    if isinstance(two, str):
        raise FaultError(f"the new module fails where the old one ran: {two}")
    for name, (shape, dtype) in two.state.items():
        known = one.state.get(name)
        if known is None or known[0] != shape or dtype not in (known[1], torch.float32):
            raise FaultError(f"the checkpoint's {name}: {known} became {(shape, dtype)}")
    if one.state.keys() != two.state.keys():
        raise FaultError(f"the checkpoint's keys: {one.state.keys()} became {two.state.keys()}")
    for what in ("modules", "trained", "epsilons_left"):
        if getattr(one, what) != getattr(two, what):
            raise FaultError(f"{what}: {getattr(one, what)} became {getattr(two, what)}")
    for first, second in zip(one.results, two.results, strict=True):
        if isinstance(first, str):
            continue  # the old model does not take this input
        if isinstance(second, str):
            raise FaultError(f"the new model fails where the old one ran: {second}")
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            raise FaultError(f"{first.shape}, {first.dtype} became {second.shape}, {second.dtype}")
        if exact and not torch.equal(first.view(BITS[first.dtype]), second.view(BITS[first.dtype])):
            differing = (first != second).sum().item()
            raise FaultError(f"{differing} of {first.numel()} {first.dtype} results differ")
        bound = CLOSE[first.dtype]
        if not torch.allclose(first, second, rtol=bound, atol=bound, equal_nan=True):
            raise FaultError(f"{first.dtype} results differ by more than {bound}")


def _runs(files: Mapping[str, bytes]) -> Iterator[Run | str]:
    """One run for each way of building each model; the exception where it cannot be run."""
    with _stand_ins(), _loaded(files) as modules:
        if isinstance(modules, str):
            yield from [modules] * (2 * len(DTYPES))
            return
        models = [modules["model.py"].Model]
        other = modules.get("other.py")
        if other is not None:
            models += [getattr(other, name) for name in ("Sub", "make") if hasattr(other, name)]
        for model in models:
            for dtype in DTYPES:
                for wide in (True, False):
                    yield _run(model, dtype, wide)


def _run(model: Any, dtype: torch.dtype, wide: bool) -> Run | str:
    config = Config(wide)
    generator = torch.Generator().manual_seed(5)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        built = model(config) if isinstance(model, type) else model()
        draws = {
            name: _drawn(value, dtype, generator)
            for name, value in sorted(built.state_dict().items())
        }
        built.load_state_dict(draws)
        inputs = [
            torch.randn((2, 3, HIDDEN), generator=generator, dtype=torch.float32).mul(scale)
            for scale in (1.0, 100.0, 1e-3)
        ]
        inputs += [torch.zeros(0, 3, HIDDEN), torch.zeros(2, 1, HIDDEN)]
        results = [_result(built, x.to(dtype)) for x in inputs]
    except Exception as error:
        return _told(error)
    finally:
        torch.set_default_dtype(usual)
    return Run(
        modules=[name for name, _ in built.named_modules()],
        state={name: (value.shape, value.dtype) for name, value in draws.items()},
        trained={name: value.requires_grad for name, value in built.named_parameters()},
        epsilons_left=len(list(config.epsilons)),
        results=results,
    )


def _drawn(value: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random numbers in place of a parameter, from a checkpoint in the dtype of the run."""
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float32)
    return drawn.to(dtype).to(value.dtype)


def _result(built: Any, x: Tensor) -> Tensor | str:
    try:
        with torch.no_grad():
            result = built(x)
    except Exception as error:
        return _told(error)
    if not isinstance(result, Tensor) or result.dtype not in BITS:
        return f"a {type(result).__name__}"
    return result.contiguous()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _loaded(files: Mapping[str, bytes]) -> Iterator[dict[str, types.ModuleType] | str]:
    """The modules of a package, or the exception that one of them raised."""
    package = types.ModuleType("fuzzed")
    package.__path__ = []
    found: dict[str, types.ModuleType] = {}
    added = ["fuzzed"]
    sys.modules["fuzzed"] = package
    try:
        for name in [n for n in ("model.py", "other.py") if n in files]:
            stem = name.removesuffix(".py")
            module = types.ModuleType(f"fuzzed.{stem}")
            module.__package__ = "fuzzed"
            for known in (f"fuzzed.{stem}", stem):
                sys.modules[known] = module
                added.append(known)
            setattr(package, stem, module)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(files[name], name, "exec", dont_inherit=True), vars(module))
            found[name] = module
    except Exception as error:
        yield _told(error)
    else:
        yield found
    finally:
        for name in added:
            sys.modules.pop(name, None)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand-ins of what the generated modules import; an installed vLLM is out of sight."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_vllm(name)}
    layernorm = {"RMSNorm": reference.RMSNorm, "GemmaRMSNorm": reference.GemmaRMSNorm}
    wanted: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.logger": {"init_logger": lambda name: None},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.layernorm": {**layernorm, "nn": nn},
        "transformers_modules_that_register": {},
    }
    for name, content in wanted.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    vars(sys.modules["vllm.model_executor.layers.layernorm"])["__all__"] = list(layernorm)
    try:
        yield
    finally:
        for name in wanted:
            del sys.modules[name]
        sys.modules.update(hidden)


def _is_vllm(name: str) -> bool:
    return name == "vllm" or name.startswith("vllm.")
