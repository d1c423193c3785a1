"""The native functions: the bits of the chains that they stand for, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from norm_cases import DTYPES, LocalNorm, check_close, draw, exact_norm
from torch import Tensor

from normport.kernels import reference
from normport.kernels.fused_add_rms_norm import fused_add_rms_norm
from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.qk_norm import qk_norm
from normport.kernels.rms_norm import rms_norm

H = 48


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", [None, "same", torch.float32])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_rms_norm_is_exact_up_to_its_roundings(
    dtype: torch.dtype, weight_dtype: torch.dtype | str | None, offset: bool, wide: bool
) -> None:
    x = draw(7, H, dtype=dtype)
    weight = None
    if weight_dtype is not None:
        weight = draw(H, dtype=dtype if isinstance(weight_dtype, str) else weight_dtype)
    found = rms_norm.native(x, weight, 1e-5, None, offset, wide)
    assert found.dtype == dtype
    # Not wide: the normalized value, the factor of an offset and the product are rounded.
    check_close(found, exact_norm(x, weight, 1e-5, offset), 1 if wide else 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_native_has_the_bits_of_vllms_layers(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    """``reference`` is compared with vLLM's own functions in test_reference.py."""
    x, residual, weight = draw(7, H, dtype=dtype), draw(7, H, dtype=dtype), draw(H)
    weight = weight.to(weight_dtype)
    for mine, theirs in (
        (rms_norm.native(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6)),
        (rms_norm.native(x, weight, 1e-6, 16), reference.rms_norm(x, weight, 1e-6, 16)),
        (rms_norm.native(x, None, 1e-6), reference.rms_norm(x, None, 1e-6)),
        (
            rms_norm.native(x, weight, 1e-6, None, True, True),
            reference.gemma_rms_norm(x, weight, 1e-6),
        ),
    ):
        assert torch.equal(mine, theirs)
    pairs = zip(
        fused_add_rms_norm.native(x, residual, weight, 1e-6, None, True, True),
        reference.fused_add_gemma_rms_norm(x, residual, weight, 1e-6),
        strict=True,
    )
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_offset_in_the_weights_dtype_is_one_plus_weight(dtype: torch.dtype) -> None:
    x, weight = draw(7, H, dtype=dtype), draw(H, dtype=dtype)
    expected = rms_norm.native(x, None, 1e-6) * (1 + weight)
    assert torch.equal(rms_norm.native(x, weight, 1e-6, None, True, False), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1])
def test_norm_add_norm_has_the_bits_of_a_sandwich(dtype: torch.dtype, offset: int) -> None:
    x, residual = draw(83, H, dtype=dtype), draw(83, H, dtype=dtype)
    weights = [draw(H, dtype=dtype), draw(H, dtype=dtype)]
    post, pre = LocalNorm(weights[0], 1e-8, offset), LocalNorm(weights[1], 1e-5, offset)
    y = residual + post(x)
    found = norm_add_norm.native(
        x, residual, *weights, 1e-8, 1e-5, bool(offset), True, bool(offset), True
    )
    assert torch.equal(found[1], y)
    assert torch.equal(found[0], pre(y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_rounding_of_norm_add_norm_is_made_where_it_is_asked_for(dtype: torch.dtype) -> None:
    x, residual, weight = draw(83, H, dtype=dtype), draw(83, H, dtype=dtype), draw(H, dtype=dtype)
    results = {}
    for round_norm, round_sum in itertools.product((False, True), repeat=2):
        z, y = norm_add_norm.native(
            x, residual, weight, weight, 1e-8, 1e-5, True, True, True, True, round_norm, round_sum
        )
        normed = LocalNorm(weight, 1e-8, 1)(x.float())
        if round_norm:
            normed = normed.to(dtype).float()
        total = normed + residual.float()
        assert torch.equal(y, total.to(dtype))
        total = total.to(dtype).float() if round_sum else total
        assert torch.equal(z, LocalNorm(weight, 1e-5, 1)(total).to(dtype))
        results[round_norm, round_sum] = (z, y)
    assert not torch.equal(results[True, True][1], results[False, True][1])
    assert not torch.equal(results[True, True][0], results[True, False][0])


def test_norm_add_norm_is_not_fused_add_rms_norm() -> None:
    x, residual = draw(7, H), draw(7, H)
    z, y = norm_add_norm.native(x, residual, None, None, 1e-6, 1e-6)
    normed, total = fused_add_rms_norm.native(x, residual, None, 1e-6)
    assert not torch.allclose(z, normed, atol=0.1)
    assert not torch.allclose(y, total, atol=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("query_scale", [None, 0.37])
def test_qk_norm_has_the_bits_of_the_models_norm(
    dtype: torch.dtype, query_scale: float | None
) -> None:
    qkv = draw(5, 12 * 16, dtype=dtype)
    q, k, _ = qkv.split([8 * 16, 2 * 16, 2 * 16], dim=-1)
    norm = LocalNorm(None, 1e-5, 0)
    wanted_q = norm(q.reshape(-1, 8, 16)).reshape(-1, 128)
    if query_scale is not None:
        wanted_q = wanted_q * query_scale
    found = qk_norm.native(
        q.unflatten(-1, (8, 16)),
        k.unflatten(-1, (2, 16)),
        None,
        None,
        1e-5,
        query_scale=query_scale,
    )
    assert torch.equal(found[0].flatten(-2), wanted_q)
    assert torch.equal(found[1], norm(k.reshape(-1, 2, 16)))


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: rms_norm(draw(2, H).int(), None, 1e-6), TypeError, "x must be of a floating"),
        (lambda: rms_norm(torch.tensor(1.0), None, 1e-6), ValueError, "at least one dimension"),
        (lambda: rms_norm(draw(2, H), draw(H + 1), 1e-6), ValueError, r"the shape \(48,\)"),
        (lambda: rms_norm(draw(2, H), draw(1, H), 1e-6), ValueError, r"not \(1, 48\)"),
        (lambda: rms_norm(draw(2, H), draw(H).int(), 1e-6), TypeError, "weight must be of a"),
        (
            lambda: fused_add_rms_norm(draw(2, H), draw(2, H).int(), None, 1e-6),
            TypeError,
            "residual must be of a floating",
        ),
        (
            lambda: norm_add_norm(draw(2, H), draw(3, H), None, None, 1e-6, 1e-6),
            ValueError,
            r"residual must have the shape \(2, 48\)",
        ),
        (
            lambda: norm_add_norm(draw(2, H), draw(2, H).float(), None, None, 1e-6, 1e-6),
            TypeError,
            "residual must have the dtype torch.bfloat16",
        ),
        (
            lambda: norm_add_norm(draw(2, H), draw(2, H), None, draw(3), 1e-6, 1e-6),
            ValueError,
            "weight2 must have the shape",
        ),
        (
            lambda: qk_norm(draw(2, 3, H), draw(2, 3, H).float(), None, None, 1e-6),
            TypeError,
            "q and k must have one dtype",
        ),
        (
            lambda: qk_norm(draw(2, 3, H), draw(2, 3, 8), None, None, 1e-6),
            ValueError,
            "q and k must have one head size",
        ),
    ],
)
def test_a_call_that_no_norm_has_says_what_is_wrong(
    call: Callable[[], Tensor], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        call()
