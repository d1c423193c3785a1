"""Two norms on the same inputs, in units in the last place. Runs inside the proof process.

The bound for "bounded". Two norms that compute the same formula may round at different points:

- A factor of the last multiply that is rounded to the run dtype first (the normalized value ``y``,
  or one plus the weight) moves the product by less than one ulp of the result: its relative error
  is at most ``u / (1 + u)`` with ``u`` half an ulp at 1, and the float32 product adds 2**-24, less
  than the slack. Rounding is monotone, so each of the two factors moves a result by at most 1 ulp.
- Where ``y`` is subnormal its rounding error is half the smallest subnormal whatever its size,
  which the other factor ``f`` multiplies: ``|f| / 2`` ulp more.
- In float32 the same terms may be summed in another order. One after another, n positive terms
  gather an error of about ``sqrt(n) / 3`` ulp, of which the root takes half: for a row of 6656
  that is some 14 ulp, and 32 are allowed.

Everything beyond is a different computation, not a different rounding: in float32 an eps that is
off by a thousandth already shows as thousands of ulp in tiny inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ROWS = (0, 1, 2, 7, 83)
SIZES = (8, 64, 128, 769, 6656)
EPS = (1e-6, 1e-5, 1e-8)
HEADS = 3
BASE_BOUND = {"float32": 32, "float16": 2, "bfloat16": 2}
BUCKETS = ("0", "1", "2-4", "5-16", "17-256", ">256")
_BUCKET_ENDS = (0, 1, 4, 16, 256)
# Where an element counts whose distance is none: a number against an infinity or NaN.
_FAR = 1 << 62
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# The standard deviation of the inputs. "near eps" has its mean square at eps, "subnormal" lies
# below the smallest normal number; squares and sums of "large" stay finite in float32.
_LARGE = {"float32": 1e17, "float16": 1e4, "bfloat16": 1e17}
_SUBNORMAL = {"float32": 1e-39, "float16": 1e-6, "bfloat16": 1e-39}
MAGNITUDES = ("normal", "large", "near eps", "subnormal", "with inf, nan and zero rows")


@cache
def noise(count: int) -> Tensor:
    """Bell-shaped numbers of mean 0 and variance 4/3 in [-4, 4], the same on every machine."""
    generator = torch.Generator().manual_seed(20_29)
    draws = torch.randint(-(2**22), 2**22, (4, count), generator=generator)
    return draws.sum(dim=0).double() / 2.0**22


class Inputs:
    """The inputs of one run dtype, cut from one pool of numbers per magnitude."""

    def __init__(self, dtype_name: str, pool: Tensor) -> None:
        self.name = dtype_name
        self.dtype = DTYPES[dtype_name]
        self.pool = pool
        self._scaled: dict[tuple[str, float], Tensor] = {}

    def scaled(self, magnitude: str, eps: float) -> Tensor:
        key = (magnitude, eps)
        if key not in self._scaled:
            sigma = {
                "large": _LARGE[self.name],
                "near eps": math.sqrt(eps),
                "subnormal": _SUBNORMAL[self.name],
            }.get(magnitude, 1.0)
            self._scaled[key] = (self.pool * sigma).to(self.dtype)
        return self._scaled[key]

    def weight(self, size: int, kind: str) -> Tensor:
        """``[size]`` in float64: around 1 (scale) or 0 (offset), with signs, zeros and outliers."""
        centre, spread = (1.0, 0.25) if kind == "scale" else (0.0, 0.1)
        weight = centre + spread * self.pool[-size:]
        weight[3::7] *= -12.0
        weight[5::11] *= 2.0**-7
        weight[7::64] = 0.0
        return weight


@dataclass(frozen=True)
class Layout:
    """A way an input lies in memory: elements needed, and a view of them."""

    name: str
    width: int
    view: Callable[[Tensor, int, int], Tensor]


LAYOUTS = (
    Layout("2-D", 1, lambda t, r, s: t.view(r, s)),
    Layout("3-D", HEADS, lambda t, r, s: t.view(r, HEADS, s)),
    Layout("2-D split from a wider tensor", 3, lambda t, r, s: t.view(r, 3 * s)[:, s : 2 * s]),
    Layout(
        "3-D split from a wider tensor",
        HEADS + 2,
        lambda t, r, s: t.view(r, HEADS + 2, s)[:, :HEADS],
    ),
    Layout("3-D with transposed rows", HEADS, lambda t, r, s: t.view(HEADS, r, s).transpose(0, 1)),
    Layout("2-D with last stride 2", 2, lambda t, r, s: t.view(r, s, 2)[..., 0]),
    Layout("2-D transposed", 1, lambda t, r, s: t.view(s, r).t()),
)
# Of a layer's hidden states rows follow each other. Where the two addends of a sum lie differently
# in memory, the sum lies as the first does, and that alone changes the order of later sums.
ROW_MAJOR = LAYOUTS[:4]
# Inputs of a rank that only some sites have; their sizes and magnitudes are fewer.
MORE_LAYOUTS = {
    1: Layout("1-D", 1, lambda t, r, s: t.view(s)),
    4: Layout("4-D", 2 * HEADS, lambda t, r, s: t.view(r, 2, HEADS, s)),
    5: Layout("5-D", 2 * HEADS, lambda t, r, s: t.view(r, 1, 2, HEADS, s)),
}
_BY_NAME = {layout.name: layout for layout in (*LAYOUTS, *MORE_LAYOUTS.values())}
# The most elements that one input takes from the pool.
POOL = 83 * 769


def grid(eps_values: tuple[float, ...]) -> Iterator[tuple[float, int, Layout, int, str]]:
    """eps, size, layout, rows and magnitude of every input.

    Contiguous 2-D and 3-D input of the first eps meets every size, number of rows and magnitude.
    The other layouts, which only change the order of sums, meet a short and a long row; the other
    eps values, which only interact with the magnitude, meet one size. The longest rows are few.
    """
    for eps in eps_values:
        for size in SIZES if eps == eps_values[0] else (64,):
            for layout in LAYOUTS if eps == eps_values[0] and size in (64, 769) else LAYOUTS[:2]:
                for rows in ROWS:
                    if rows * size * layout.width > (POOL if size < 1000 else 2 * size):
                        continue
                    magnitudes = MAGNITUDES if layout in LAYOUTS[:2] else MAGNITUDES[:3]
                    for magnitude in magnitudes if rows else MAGNITUDES[:1]:
                        yield eps, size, layout, rows, magnitude


def form_grid(rank: int | None) -> Iterator[tuple[int, Layout, int, str]]:
    """Size, layout, rows and magnitude of the inputs for one more way to call a norm.

    rank: of the input; None for 2 and 3.
    """
    ranks = {2: LAYOUTS[0], 3: LAYOUTS[1], **MORE_LAYOUTS}
    for size in (64, 769):
        for layout in LAYOUTS[:2] if rank is None else (ranks[rank],):
            for rows in (1,) if rank == 1 else ROWS:
                if rows * size * layout.width > POOL:
                    continue
                # Rows of infinities and zeros need more than one row.
                magnitudes = MAGNITUDES[:-1] if rank == 1 else MAGNITUDES
                for magnitude in magnitudes if rows else MAGNITUDES[:1]:
                    yield size, layout, rows, magnitude


def layout(name: str) -> Layout:
    """The layout of that name."""
    return _BY_NAME[name]


def make_residual(inputs: Inputs, x: Tensor) -> Tensor:
    """A fresh tensor of the shape of ``x`` with other numbers in it."""
    values = inputs.scaled(MAGNITUDES[0], 1.0)
    return values[POOL - x.numel() :].flip(0).view(x.shape)


def make_input(
    inputs: Inputs, eps: float, size: int, layout: Layout, rows: int, kind: str
) -> Tensor:
    """A fresh input ``[rows, size]`` or ``[rows, HEADS, size]`` in its layout."""
    count = rows * size * layout.width
    start = 7919 * count % (POOL - count + 1)
    flat = inputs.scaled(kind, eps)[start : start + count].clone()
    view = layout.view(flat, rows, size)
    if kind == MAGNITUDES[-1]:
        view[0::4, ..., 1] = math.inf
        view[1::4, ..., 2] = math.nan
        view[2::4] = 0.0
        view[3::4, ..., 0] = torch.finfo(inputs.dtype).max
    return view


def ulp_index(values: Tensor) -> Tensor:
    """The place of each value among all values of its dtype, as int64; both zeros are at 0."""
    bits = values.contiguous().view(BITS[values.element_size()])
    magnitude = (bits & torch.iinfo(bits.dtype).max).long()
    return torch.where(bits < 0, -magnitude, magnitude)


@dataclass
class Tally:
    """What was seen in one run dtype."""

    max_ulp: int = 0
    max_ulp_normal: int = 0
    differing: int = 0
    elements: int = 0
    inputs: int = 0
    beyond: int = 0
    nonfinite: int = 0
    zero_signs: int = 0
    worst: str | None = None
    histogram: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    skipped: list[str] = field(default_factory=list)

    def add(self, old: Tensor, new: Tensor, factor: Tensor, base: int, where: str) -> None:
        """Compare two outputs of the same shape and dtype; ``factor`` is ``[size]``, float32."""
        elements = old.numel()
        bits = BITS[old.element_size()]
        old, new = old.contiguous(), new.contiguous()
        if torch.equal(old.view(bits), new.view(bits)):
            self.add_equal(elements)
            return
        self.inputs += 1
        self.elements += elements
        # Only the places whose bits differ are looked at further.
        at = (old.view(bits) != new.view(bits)).flatten().nonzero().flatten()
        factor = factor[at % factor.numel()]
        old, new = old.flatten()[at], new.flatten()[at]
        finite = old.isfinite() & new.isfinite()
        unlike = ~finite & (old != new) & ~(old.isnan() & new.isnan())
        ulp = (ulp_index(old) - ulp_index(new)).abs().where(finite, 0)
        self.nonfinite += int(unlike.sum())
        self.zero_signs += int((finite & (ulp == 0)).sum())
        subnormal = torch.maximum(old.abs(), new.abs()) <= factor * torch.finfo(old.dtype).tiny
        allowed = base + torch.where(subnormal, (factor / 2).floor().long(), 0)
        self.beyond += int((ulp > allowed).sum())
        self.differing += int(((ulp > 0) | unlike).sum())
        places = torch.bucketize(ulp.where(~unlike, _FAR), torch.tensor(_BUCKET_ENDS))
        self.histogram[0] += elements - at.numel()
        for place, count in enumerate(torch.bincount(places, minlength=len(BUCKETS)).tolist()):
            self.histogram[place] += count
        self.max_ulp_normal = max(self.max_ulp_normal, int(ulp.where(~subnormal, 0).max()))
        worst = int(ulp.max())
        if worst > self.max_ulp:
            self.max_ulp = worst
            place = int(ulp.argmax())
            self.worst = f"{where}: old {old[place].item():.9g}, new {new[place].item():.9g}"

    def add_equal(self, elements: int) -> None:
        """Count two outputs that are equal in every bit."""
        self.inputs += 1
        self.elements += elements
        self.histogram[0] += elements

    def skip(self, where: str, error: str) -> None:
        """Note an input that the old norm does not take; one note per layout and message."""
        note = f"{where.split(',')[0]}: {error}"[:200]
        if note not in self.skipped and len(self.skipped) < 20:
            self.skipped.append(note)

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "histogram": dict(zip(BUCKETS, self.histogram, strict=True)),
        }
