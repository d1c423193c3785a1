"""What the tests of the norms share: exact results, tolerances, and a sandwich model's own norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

TOLERANCES = {
    torch.float32: {"atol": 1e-5, "rtol": 1.3e-6},
    torch.float16: {"atol": 1e-2, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-3, "rtol": 1.6e-2},
}
"""vLLM's own for rms_norm: ``vllm/ir/tolerances.py``, and its override for float16."""


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype)


def exact_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, offset: bool = False, size: int | None = None
) -> Tensor:
    """The norm in float64, rounded nowhere."""
    wide = x.double()
    out = wide * torch.rsqrt(wide[..., :size].pow(2).mean(-1, keepdim=True) + epsilon)
    return out if weight is None else out * (weight.double() + offset)


def check_close(found: Tensor, exact: Tensor, roundings: int = 1) -> None:
    """Within vLLM's tolerance of ``exact``, for every time that the result was rounded."""
    limits = {name: limit * roundings for name, limit in TOLERANCES[found.dtype].items()}
    torch.testing.assert_close(found.double(), exact, **limits)


class LocalNorm(nn.Module):
    """What muse_glimmer computes: in float32, ``weight + offset`` in float32, one cast."""

    def __init__(self, weight: Tensor | None, eps: float, offset: int) -> None:
        super().__init__()
        self.weight, self.eps, self.offset = weight, eps, offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            wide = wide * (self.weight.float() + self.offset)
        return wide.type_as(x)
