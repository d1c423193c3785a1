"""The real intel-extension-for-pytorch on the CPU, through provider ``ipex``: ``make test-ipex``.

Not collected with the other tests, because the package wants a torch that vLLM does not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from normport.kernels.op import PRIORITY
from normport.kernels.rms_norm import rms_norm

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _first(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    monkeypatch.setitem(PRIORITY, "cpu", ("ipex",))
    rms_norm.refresh()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 83])
@pytest.mark.parametrize("size", [8, 64, 769, 6656])
def test_it_multiplies_in_float32_and_rounds_once(dtype: torch.dtype, rows: int, size: int) -> None:
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype)
    assert rms_norm.choose(x, weight, 1e-6).provider == "ipex"
    found = rms_norm(x, weight, 1e-6)
    once = rms_norm.native(x, weight, 1e-6, None, False, True)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found, once, rtol=4 * step, atol=4 * step)
    assert dtype == torch.float32 or (found != once).sum() <= 0.01 * x.numel() + 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.randn(5, 3, 64), id="3-D"),
        pytest.param(lambda: torch.randn(7, 192)[:, 64:128], id="columns"),
        pytest.param(lambda: torch.randn(3, 5, 64).transpose(0, 1), id="transposed rows"),
        pytest.param(lambda: torch.randn(1, 64).expand(7, 64), id="one row read often"),
    ],
)
def test_strided_rows(make: Callable[[], Tensor]) -> None:
    x, weight = make(), torch.randn(64)
    before = x.clone()
    assert rms_norm.choose(x, weight, 1e-6).provider == "ipex"
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), rms_norm.native(x, weight, 1e-6))
    assert torch.equal(x, before)
