"""Each norm kernel of this machine against the native norm: numbers, layouts, aliasing, time.

Calls the kernels themselves, past every guard, because what they do with odd arguments is what
the guards are written for. On a simulated device the same runs, without times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normport.kernels import schemas
from normport.kernels.fused_add_rms_norm import fused_add_rms_norm
from normport.kernels.op import Op
from normport.kernels.rms_norm import rms_norm

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
EPSILON = 1e-6
HIDDEN = 6656
TURNS, CALLS = 15, 20
IN_PLACE_AT = "7 x 6656"
"""The shape at which it is looked where a kernel's results lie."""
FAR = 64
"""More ulp than kernels differ by, and far less than an argument that was left as it was."""

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """One kernel and its native norm, both ``(x, residual or None, weight) -> results``.

    in_place: the kernel's results are to lie in ``x`` and ``residual``.
    against: why the kernel is not to be called here, or None.
    """

    name: str
    kernel: Kernel
    native: Kernel
    residual: bool = False
    weight: bool = True
    in_place: bool = False
    against: str | None = None


@dataclass
class Found:
    """What was seen of one kernel.

    cases: shape and layout -> dtype -> the largest difference in ulp, or what it raised.
    aliases: for the kernels that work in place, whether what held the arguments before the call
        has native's results after it; None for the others.
    keeps_inputs: for the others, whether they left every argument as it was; None in place.
    ratio: native's time over the kernel's, by dtype, at one row of 6656: median and quartiles.
        Empty on a simulated device.
    """

    cases: dict[str, dict[str, int | str]] = field(default_factory=dict)
    aliases: bool | None = None
    keeps_inputs: bool | None = None
    ratio: dict[str, list[float]] = field(default_factory=dict)


def shapes(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Inputs by name; the empty one comes last, because a kernel may not survive it."""

    def draw(*shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    yield "1 x 6656", draw(1, HIDDEN)
    yield "7 x 6656", draw(7, HIDDEN)
    yield "83 x 769", draw(83, 769)
    yield "5 x 3 x 128", draw(5, 3, 128)
    yield "2 x 5 x 3 x 128", draw(2, 5, 3, 128)
    yield "1 x 1 x 2", draw(1, 1, 2)
    yield "split of qkv", draw(7, 3 * 128)[:, 128:256]
    yield "heads of a split", draw(7, 9 * 128).view(7, 9, 128)[:, 2:4]
    yield "odd outer stride", draw(7, 131)[:, :128]
    yield "last stride 2", draw(7, 256)[:, ::2]
    yield "(N, 1, D)", draw(1, 7, 128).transpose(0, 1)
    yield "0 x 128", draw(0, 128)


def subjects(platform: str) -> list[Subject]:
    """The four kernels of vllm-xpu-kernels; on MUSA each provider that may run there."""
    if platform == "musa":
        return [subject for op in (rms_norm, fused_add_rms_norm) for subject in _provided(op)]
    plain, bare, gemma, fused, fused_gemma = (
        ("rms_norm", _native, False, True),
        ("rms_norm", _native, False, False),
        ("gemma_rms_norm", _gemma, False, True),
        ("fused_add_rms_norm", _native, True, True),
        ("fused_add_gemma_rms_norm", _gemma, True, True),
    )
    return [
        Subject(
            name if weight else f"{name}, weightless",
            _in_place(name) if fused_add else _out_of_place(name),
            native,
            residual=fused_add,
            weight=weight,
            in_place=fused_add,
            against=schemas.why_not_registered(name),
        )
        for name, native, fused_add, weight in (plain, bare, gemma, fused, fused_gemma)
    ]


def _provided(op: Op[..., Any]) -> Iterator[Subject]:
    """Each provider of ``op`` on MUSA, in every variant that a norm of vLLM asks of it."""
    fused = op is fused_add_rms_norm
    for provider in op.candidates("musa"):
        # Triton's kernels round as the definition says, the device's own once.
        once = provider.name != "triton"
        for variant, weight, gemma in (
            ("", True, False),
            (", weightless", False, False),
            (", Gemma", True, True),
        ):
            if fused and variant:
                continue  # what vllm-musa's op, the only one, does not have
            native = _gemma if gemma else _native if once else _rounding_twice
            yield Subject(
                f"{op.name}{variant}: {provider.name}",
                _run_by(provider.run, fused=fused, gemma=gemma),
                native,
                residual=fused,
                weight=weight,
                against=provider.why_unsupported(),
            )


def look_at(subject: Subject, device: str, *, timed: bool) -> Found:
    """Run ``subject`` on every shape and dtype. A kernel's RuntimeError is a finding."""
    found = Found()
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for shape, x in shapes(device, dtype):
            residual = x.flip(-1).contiguous() if subject.residual else None
            weight = None
            if subject.weight:
                weight = torch.linspace(-1, 1, x.shape[-1]).to(dtype).to(device)
            if subject.in_place and _walks_outside(x):
                told = "not run: it would write outside of its tensor"
                found.cases.setdefault(shape, {})[name] = told
                continue
            given = [tensor for tensor in (x, residual, weight) if tensor is not None]
            before = [tensor.clone() for tensor in given]
            want = _each(subject.native(x.clone(), residual, weight))
            try:
                got = _each(subject.kernel(x, residual, weight))
            except RuntimeError as error:
                found.cases.setdefault(shape, {})[name] = f"raised: {_said(error)}"
                continue
            apart = max(ulps(a, b) for a, b in zip(got, want, strict=True))
            found.cases.setdefault(shape, {})[name] = apart
            if not subject.in_place:
                kept = all(ulps(a, b) == 0 for a, b in zip(given, before, strict=True))
                found.keeps_inputs = kept and found.keeps_inputs is not False
            elif shape == IN_PLACE_AT:
                there = all(ulps(a, b) <= FAR for a, b in zip(given[:2], want, strict=True))
                found.aliases = there and found.aliases is not False
        if timed:
            found.ratio[name] = _ratio(subject, device, dtype)
    return found


def _said(error: RuntimeError) -> str:
    """The first line of what a kernel says; some say nothing, or what a terminal would obey."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(char if char.isprintable() else " " for char in lines[0])


def _walks_outside(x: Tensor) -> bool:
    """Whether a fused kernel, which steps by ``stride(-2)``, would leave the memory of ``x``."""
    rows = x.numel() // x.shape[-1]
    reach = (rows - 1) * x.stride(-2) + x.shape[-1] + x.storage_offset()
    return rows > 0 and reach * x.element_size() > x.untyped_storage().nbytes()


def ulps(a: Tensor, b: Tensor) -> int:
    """The largest number of steps of the dtype between two tensors; 0 for empty ones."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise RuntimeError(f"{a.dtype} {tuple(a.shape)} where {b.dtype} {tuple(b.shape)} should be")
    if a.numel() == 0:
        return 0
    return int((_steps(a) - _steps(b)).abs().max())


def _steps(tensor: Tensor) -> Tensor:
    """Each value's place in the order of all values of its dtype."""
    bits = tensor.cpu().contiguous()
    whole = torch.int32 if bits.element_size() == 4 else torch.int16
    placed = bits.view(whole).to(torch.int64)
    return torch.where(placed < 0, -(placed & torch.iinfo(whole).max), placed)


def _ratio(subject: Subject, device: str, dtype: torch.dtype) -> list[float]:
    x = torch.randn(1, HIDDEN).to(dtype).to(device)
    residual = x.clone() if subject.residual else None
    weight = torch.ones(HIDDEN).to(dtype).to(device) if subject.weight else None
    ratios = []
    for turn in range(-2, TURNS):
        spent = [_spent(run, x, residual, weight) for run in (subject.native, subject.kernel)]
        if turn >= 0:
            ratios.append(spent[0] / spent[1])
    return statistics.quantiles(ratios, n=4)


def _spent(run: Kernel, *args: Tensor | None) -> float:
    torch.accelerator.synchronize()
    started = time.perf_counter()
    for _ in range(CALLS):
        run(*args)
    torch.accelerator.synchronize()
    return time.perf_counter() - started


def _each(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _native(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> Any:
    # The kernels multiply in float32 and round once.
    if residual is None:
        return rms_norm.native(x, weight, EPSILON, None, False, True)
    return fused_add_rms_norm.native(x, residual, weight, EPSILON, None, False, True)


def _gemma(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> Any:
    if residual is None:
        return rms_norm.native(x, weight, EPSILON, None, True, True)
    return fused_add_rms_norm.native(x, residual, weight, EPSILON, None, True, True)


def _rounding_twice(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> Any:
    if residual is None:
        return rms_norm.native(x, weight, EPSILON)
    return fused_add_rms_norm.native(x, residual, weight, EPSILON)


def _run_by(provider: Callable[..., Any], *, fused: bool, gemma: bool) -> Kernel:
    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> Any:
        first = (x, residual) if fused else (x,)
        return provider(*first, weight, EPSILON, None, gemma, gemma)

    return run


def _out_of_place(name: str) -> Kernel:
    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        getattr(torch.ops._C, name)(out, x, weight, EPSILON)
        return out

    return run


def _in_place(name: str) -> Kernel:
    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        assert residual is not None
        getattr(torch.ops._C, name)(x, residual, weight, EPSILON)
        return x, residual

    return run
