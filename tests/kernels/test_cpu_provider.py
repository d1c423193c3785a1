"""The compiled loops of provider ``cpu`` against the definitions and against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from norm_cases import DTYPES, check_close, draw, exact_norm
from torch import Tensor

from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.providers import cpu, cpu_build
from normport.kernels.qk_norm import qk_norm
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

SIZES = [1, 8, 33, 769, 6656]
BOTH = [False, True]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)
    built = cpu_build.build()
    assert built.reason is None, f"the kernels cannot be compiled here: {built.details}"


def run(op: object, *args: object) -> object:
    """What provider ``cpu`` gives for a call that it takes."""
    provider = op.providers["cpu"]  # type: ignore[attr-defined]
    assert provider.why_not(*args) is None
    return provider.run(*args)


def check_bits(found: Tensor, wanted: Tensor) -> None:
    """Equal but for the order of the float32 sum, which moves few results by one step."""
    assert found.dtype == wanted.dtype
    assert found.is_contiguous()
    step = torch.finfo(found.dtype).eps
    limit = 8 * step if found.dtype == torch.float32 else step
    torch.testing.assert_close(found, wanted, rtol=limit, atol=limit)
    if found.dtype != torch.float32:
        assert (found != wanted).sum() <= 0.01 * found.numel() + 1


def weights_of(dtype: torch.dtype, size: int) -> list[Tensor | None]:
    return [None, draw(size, dtype=dtype), draw(size, dtype=torch.float32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(dtype: torch.dtype, size: int) -> None:
    x = draw(7, size, dtype=dtype)
    for weight, offset, wide in itertools.product(weights_of(dtype, size), BOTH, BOTH):
        found = run(rms_norm, x, weight, 1e-6, None, offset, wide)
        assert isinstance(found, Tensor)
        check_bits(found, rms_norm.native(x, weight, 1e-6, None, offset, wide))
        if wide:
            check_close(found, exact_norm(x, weight, 1e-6, offset))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_norm_add_norm(dtype: torch.dtype, size: int) -> None:
    x, residual = draw(7, size, dtype=dtype), draw(7, size, dtype=dtype)
    weights = weights_of(dtype, size)
    for weight1, weight2, *choices in itertools.product(
        weights, weights[:2], BOTH, BOTH, BOTH, BOTH
    ):
        offset, wide, round_norm, round_sum = choices
        args = (
            x, residual, weight1, weight2, 1e-8, 1e-5, offset, wide, not offset, wide, round_norm,
            round_sum,
        )  # fmt: skip
        found = run(norm_add_norm, *args)
        assert isinstance(found, tuple)
        for mine, wanted in zip(found, norm_add_norm.native(*args), strict=True):
            # A sum near zero keeps the absolute error of what was added.
            check_close(mine, wanted.double(), 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("query_scale", [None, 0.37])
def test_qk_norm_of_views_of_one_qkv_tensor(dtype: torch.dtype, query_scale: float | None) -> None:
    qkv = draw(5, 12 * 64, dtype=dtype)
    q, k, _ = qkv.split([8 * 64, 2 * 64, 2 * 64], dim=-1)
    q, k = q.unflatten(-1, (8, 64)), k.unflatten(-1, (2, 64))
    before = qkv.clone()
    for weight, offset, wide in itertools.product(weights_of(dtype, 64), BOTH, BOTH):
        args = (q, k, weight, None, 1e-5, offset, wide, query_scale)
        found = run(qk_norm, *args)
        assert isinstance(found, tuple)
        for mine, wanted in zip(found, qk_norm.native(*args), strict=True):
            check_bits(mine, wanted)
    assert torch.equal(qkv, before)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: draw(64), id="one row, 1-D"),
        pytest.param(lambda: draw(5, 3, 64), id="3-D"),
        pytest.param(lambda: draw(2, 5, 3, 64), id="4-D"),
        pytest.param(lambda: draw(7, 192)[:, 64:128], id="columns"),
        pytest.param(lambda: draw(3, 5, 64).transpose(0, 1), id="transposed rows"),
        pytest.param(lambda: draw(7, 1, 64), id="(N, 1, D)"),
        pytest.param(lambda: draw(7 * 67).as_strided((7, 64), (67, 1)), id="odd outer stride"),
        pytest.param(lambda: draw(1, 64).expand(7, 64), id="one row read often"),
    ],
)
def test_rms_norm_reads_strided_rows(make: Callable[[], Tensor]) -> None:
    x, weight = make(), draw(64)
    found = run(rms_norm, x, weight, 1e-6)
    assert isinstance(found, Tensor)
    check_bits(found, rms_norm.native(x, weight, 1e-6).contiguous())


def test_norm_add_norm_reads_strided_rows_and_a_residual_that_is_its_input() -> None:
    wide = draw(7, 192)
    for x, residual in ((wide[:, :64], wide[:, 64:128]), (wide, wide), (wide[:, :64], draw(7, 64))):
        before = x.clone(), residual.clone()
        args = (x, residual, None, None, 1e-8, 1e-5)
        found = run(norm_add_norm, *args)
        assert isinstance(found, tuple)
        for mine, wanted in zip(found, norm_add_norm.native(*args), strict=True):
            check_close(mine, wanted.double(), 2)
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, residual, weight = draw(83, 6656), draw(83, 6656), draw(6656)
    q, k = draw(83, 20, 128), draw(83, 4, 128)
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(
            [
                run(rms_norm, x, weight, 1e-6),
                *run(norm_add_norm, x, residual, weight, weight, 1e-8, 1e-5),  # type: ignore[misc]
                *run(qk_norm, q, k, None, None, 1e-6),  # type: ignore[misc]
            ]
        )
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))
    check_bits(results[1][0], rms_norm.native(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_measured_together_do_not_touch_each_other(dtype: torch.dtype) -> None:
    q, k = draw(3, 19, 128, dtype=dtype), draw(3, 5, 128, dtype=dtype)
    q[1, 4, 7], q[2, 18, 0], k[0, 4, 127] = torch.inf, torch.nan, -torch.inf
    together = run(qk_norm, q, k, None, None, 1e-6, False, False, 0.37)
    for x, found, factor in zip((q, k), together, (0.37, 1.0), strict=True):  # type: ignore[call-overload]
        for token, head in itertools.product(range(3), range(x.shape[1])):
            one = x[token : token + 1, head : head + 1]
            alone, _ = run(qk_norm, one, one, None, None, 1e-6, False, False, factor)  # type: ignore[misc]
            torch.testing.assert_close(
                found[token, head], alone[0, 0], rtol=0, atol=0, equal_nan=True
            )


def test_special_values_stay_what_they_are() -> None:
    for dtype in DTYPES:
        x = draw(4, 64, dtype=dtype)
        x[0, 3], x[1, 3], x[2] = float("nan"), float("inf"), 0.0
        found = run(rms_norm, x, None, 1e-6)
        assert isinstance(found, Tensor)
        wanted = rms_norm.native(x, None, 1e-6)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)


def why_not(op: object, *args: object) -> object:
    return op.providers["cpu"].why_not(*args)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (lambda: draw(7, 64, dtype=torch.float64), lambda: None, Reason.DTYPE),
        (lambda: draw(0, 64), lambda: None, Reason.EMPTY),
        (lambda: draw(7, 0), lambda: None, Reason.EMPTY),
        (lambda: draw(64, 7).t(), lambda: None, Reason.LAYOUT),
        (lambda: draw(2, 3, 5, 128)[..., :64], lambda: None, Reason.LAYOUT),
        (lambda: draw(7, 64), lambda: draw(64, dtype=torch.float16), Reason.WEIGHT_DTYPE),
        (lambda: draw(7, 64), lambda: draw(65), Reason.WEIGHT_SHAPE),
        (lambda: draw(7, 64), lambda: draw(1, 64), Reason.WEIGHT_SHAPE),
        (lambda: draw(7, 64), lambda: draw(128)[::2], Reason.WEIGHT_LAYOUT),
        (lambda: draw(7, 64), lambda: draw(64).to("meta"), Reason.DEVICE),
    ],
)
def test_rms_norm_is_left_to_native(
    x: Callable[[], Tensor], weight: Callable[[], Tensor | None], reason: Reason
) -> None:
    assert why_not(rms_norm, x(), weight(), 1e-6) == reason
    assert why_not(norm_add_norm, x(), x(), weight(), None, 1e-6, 1e-6) == reason
    assert why_not(norm_add_norm, x(), x(), None, weight(), 1e-6, 1e-6) == reason


def test_other_reasons() -> None:
    x = draw(7, 64)
    assert why_not(rms_norm, x, None, 1e-6, 65) == Reason.VARIANCE_SIZE
    assert why_not(rms_norm, x, None, 1e-6, 0) == Reason.VARIANCE_SIZE
    assert why_not(norm_add_norm, x, x[:3], None, None, 1e-6, 1e-6) == Reason.RESIDUAL
    assert why_not(norm_add_norm, x, x.float(), None, None, 1e-6, 1e-6) == Reason.RESIDUAL
    assert why_not(norm_add_norm, x, draw(64, 7).t(), None, None, 1e-6, 1e-6) == Reason.LAYOUT
    heads = draw(5, 3, 64)
    assert why_not(qk_norm, x, heads, None, None, 1e-6) == Reason.RANK
    assert why_not(qk_norm, heads, heads[..., :32], None, None, 1e-6) == Reason.SIZE
    assert why_not(qk_norm, heads, heads[:2], None, None, 1e-6) == Reason.SIZE
    assert why_not(qk_norm, heads, heads.float(), None, None, 1e-6) == Reason.DTYPE
    assert why_not(qk_norm, heads, heads[:, :0], None, None, 1e-6) == Reason.EMPTY
    assert why_not(qk_norm, heads, heads.transpose(1, 2), None, None, 1e-6) == Reason.SIZE
    square = draw(5, 64, 64).transpose(1, 2)
    assert why_not(qk_norm, square, square, None, None, 1e-6) == Reason.LAYOUT


def test_variance_over_a_part_of_the_row() -> None:
    x = draw(7, 64)
    found = run(rms_norm, x, None, 1e-6, 16)
    assert isinstance(found, Tensor)
    check_close(found, exact_norm(x, None, 1e-6, size=16))


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpu_build.build.__wrapped__().reason == Reason.NO_COMPILER
    monkeypatch.setenv("CXX", "false")
    assert cpu_build.build.__wrapped__().reason == Reason.NO_COMPILER


def test_a_cache_that_cannot_be_written_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    blocked = f"{tmp_path}/file"
    with open(blocked, "w", encoding="ascii") as file:
        file.write("in the way")
    monkeypatch.setenv("NORMPORT_CACHE", blocked)
    built = cpu_build.build.__wrapped__()
    assert built.reason == Reason.CANNOT_LOAD
    assert blocked in built.details


def test_few_elements_are_not_worth_a_thread() -> None:
    assert cpu._threads(cpu.GRAIN, 100) == 1
    assert cpu._threads(100 * cpu.GRAIN, 1) == 1
