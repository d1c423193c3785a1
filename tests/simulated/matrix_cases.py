"""The cases of the dispatch matrix: what varies, the tensors, and the float64 reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = (0, 1, 2, 7, 16, 64, 83)
HIDDEN = (8, 64, 128, 768, 769, 2048, 5120, 6656)
MANY_ROWS, MANY_HIDDEN = 4096, (128, 6656)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LAYERS = ("RMSNorm", "GemmaRMSNorm")
WEIGHTS = ("none", "same", "float32", "strided")
RESIDUALS = ("none", "residual", "aliasing")
EPSILON = 1e-6


def two_dims(flat: Tensor) -> Tensor:
    return flat.clone()


def three_dims(flat: Tensor) -> Tensor:
    rows, hidden = flat.shape
    heads = math.gcd(rows, 4)
    return flat.clone().view(rows // heads if rows else 0, heads or 1, hidden)


def four_dims(flat: Tensor) -> Tensor:
    rows, hidden = flat.shape
    heads = math.gcd(rows, 2)
    return flat.clone().view(1, rows // heads if rows else 0, heads or 1, hidden)


def split_of_qkv(flat: Tensor) -> Tensor:
    qkv = flat.repeat(1, 3)
    return qkv.split(flat.shape[1], dim=-1)[1]


def last_stride_two(flat: Tensor) -> Tensor:
    return flat.repeat_interleave(2, dim=1)[:, ::2]


def odd_outer_strides(flat: Tensor) -> Tensor:
    rows, hidden = flat.shape
    return torch.cat([flat, flat.new_zeros(rows, 3)], dim=1)[:, :hidden]


def one_in_the_middle(flat: Tensor) -> Tensor:
    """(N, 1, D) whose stride(-2) is not D: contiguous, and yet not as a kernel steps."""
    return flat.clone().unsqueeze(0).transpose(0, 1)


LAYOUTS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "2-D": (2, two_dims),
    "3-D": (3, three_dims),
    "4-D": (4, four_dims),
    "split of qkv": (2, split_of_qkv),
    "last stride 2": (2, last_stride_two),
    "odd outer strides": (2, odd_outer_strides),
    "(N, 1, D)": (3, one_in_the_middle),
}
"""Name -> rank, and how it is made of ``[rows, hidden]``; the values are always the same."""


@dataclass(frozen=True)
class Case:
    layer: str
    rows: int
    hidden: int
    layout: str
    dtype: torch.dtype
    weight: str
    residual: str

    @property
    def rank(self) -> int:
        return LAYOUTS[self.layout][0]

    @property
    def weight_dtype(self) -> torch.dtype:
        return torch.float32 if self.weight == "float32" else self.dtype


def groups() -> Iterator[tuple[torch.dtype, int, int, tuple[str, ...]]]:
    """(dtype, hidden, rows, layouts): what shares its values."""
    for dtype, hidden, rows in itertools.product(DTYPES, HIDDEN, ROWS):
        yield dtype, hidden, rows, tuple(LAYOUTS)
    for dtype, hidden in itertools.product(DTYPES, MANY_HIDDEN):
        yield dtype, hidden, MANY_ROWS, ("2-D",)


def variants() -> list[tuple[str, str, str]]:
    """(layer, weight, residual): a Gemma norm always has a weight."""
    return [
        (layer, weight, residual)
        for layer, weight, residual in itertools.product(LAYERS, WEIGHTS, RESIDUALS)
        if layer == "RMSNorm" or weight != "none"
    ]


def size() -> int:
    return sum(len(layouts) for *_, layouts in groups()) * len(variants())


@dataclass(frozen=True)
class Bounds:
    """The results that are close enough to float64, rounded outward to the dtype."""

    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, exact: Tensor, dtype: torch.dtype, atol: float, rtol: float) -> Bounds:
        reach = atol + rtol * exact.abs()
        return cls((exact - reach).to(dtype), (exact + reach).to(dtype))

    def hold(self, result: Tensor) -> bool:
        return bool(((result >= self.low) & (result <= self.high)).all())


def exact_norm(total: Tensor, weight: Tensor | None, offset: float) -> Tensor:
    """The norm in float64 of a float64 ``[rows, hidden]``."""
    normalized = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPSILON)
    return normalized if weight is None else normalized * (weight.double() + offset)
