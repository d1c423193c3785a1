"""Which path the XPU Gemma dispatch takes, one guard after the other, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fake_xpu
import pytest
import torch
from torch import Tensor

HIDDEN = 48
KERNEL = ["gemma_rms_norm"]
FUSED = ["fused_add_gemma_rms_norm"]
NATIVE: list[str] = []
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def xpu() -> Iterator[SimpleNamespace]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    with fake_xpu.simulated() as loaded, torch.no_grad():
        yield loaded


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype)


def overlapping(rows: int, hidden: int, stride: int) -> Tensor:
    return draw(rows * hidden).as_strided((rows, hidden), (stride, 1))


def ulps(a: Tensor, b: Tensor) -> float:
    """The largest difference in steps of the dtype at the value's size."""
    step = torch.finfo(a.dtype).eps * b.double().abs().clamp(min=1.0)
    return float(((a.double() - b.double()).abs() / step).max())


def check_native(layer: Any, *args: Tensor) -> None:
    """The kernel did not run; the result has the native path's bits and dtypes."""
    expected = layer.forward_native(*(arg.clone() for arg in args))
    results = layer.forward_xpu(*args)
    assert fake_xpu.calls == NATIVE
    if len(args) == 1:
        results, expected = (results,), (expected,)
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 83])
def test_kernel_runs_for_every_dtype_and_row_count(dtype: torch.dtype, rows: int) -> None:
    layer = fake_xpu.norm(HIDDEN, dtype)
    x = draw(rows, HIDDEN, dtype=dtype)
    before = x.clone()
    result = layer.forward_xpu(x)
    assert fake_xpu.calls == KERNEL
    assert torch.equal(x, before)
    assert ulps(result, layer.forward_native(x)) <= (1 if dtype != torch.float32 else 4)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: draw(5, 3, HIDDEN), id="3-D"),
        pytest.param(lambda: draw(2, 5, 3, HIDDEN), id="4-D"),
        pytest.param(lambda: draw(7, 3 * HIDDEN)[:, HIDDEN : 2 * HIDDEN], id="column slice"),
        pytest.param(lambda: draw(5, 9, HIDDEN)[:, 2:4], id="heads slice"),
        pytest.param(lambda: draw(3, 5, HIDDEN).transpose(0, 1), id="transposed"),
        pytest.param(lambda: draw(HIDDEN, 7).t(), id="last stride not 1"),
        pytest.param(lambda: draw(1, HIDDEN).expand(1, HIDDEN), id="one row, stride 0"),
        pytest.param(lambda: draw(8 * HIDDEN)[3 : 3 + 2 * HIDDEN].view(2, HIDDEN), id="unaligned"),
    ],
)
def test_kernel_runs_for_every_layout_it_reads(make: Callable[[], Tensor]) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    x = make()
    result = layer.forward_xpu(x)
    assert fake_xpu.calls == KERNEL
    assert result.is_contiguous()
    assert ulps(result, layer.forward_native(x)) <= 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: draw(7, HIDDEN, dtype=torch.float64), id="float64"),
        pytest.param(lambda: draw(7, HIDDEN, dtype=torch.float32), id="other than the weight"),
        pytest.param(lambda: draw(HIDDEN), id="rank 1"),
        pytest.param(lambda: draw(1, 2, 1, 3, HIDDEN), id="rank 5"),
        pytest.param(lambda: draw(1, HIDDEN).expand(7, HIDDEN), id="expanded"),
        pytest.param(lambda: draw(5, 1, HIDDEN).expand(5, 3, HIDDEN), id="expanded heads"),
        pytest.param(lambda: draw(7, 1).expand(7, HIDDEN), id="expanded columns"),
        pytest.param(lambda: overlapping(7, HIDDEN, HIDDEN // 2), id="overlapping rows"),
        pytest.param(lambda: overlapping(7, HIDDEN, 1), id="sliding rows"),
    ],
)
def test_native_for_inputs_the_kernel_cannot_take(make: Callable[[], Tensor]) -> None:
    check_native(fake_xpu.norm(HIDDEN, torch.bfloat16), make())


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda: draw(HIDDEN, dtype=torch.float32), id="float32"),
        pytest.param(lambda: draw(HIDDEN, dtype=torch.float16), id="float16"),
        pytest.param(lambda: draw(2 * HIDDEN)[::2], id="strided"),
        pytest.param(lambda: draw(1).expand(HIDDEN), id="expanded"),
        pytest.param(lambda: draw(1), id="one element"),
        pytest.param(lambda: draw(1, HIDDEN), id="2-D"),
        pytest.param(lambda: draw(7, HIDDEN), id="per row"),
    ],
)
def test_native_for_weights_the_kernel_cannot_take(weight: Callable[[], Tensor], add: bool) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    layer.weight = torch.nn.Parameter(weight())
    check_native(layer, *(draw(7, HIDDEN) for _ in range(1 + add)))


def test_native_where_the_input_shares_memory_with_the_weight() -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    x = draw(7, HIDDEN)
    layer.weight.data = x[3]
    check_native(layer, x)
    check_native(layer, x, draw(7, HIDDEN))
    check_native(layer, draw(7, HIDDEN), x)


def test_kernel_where_only_the_storage_is_shared() -> None:
    """Neighbours in one buffer have no address in common."""
    buffer = draw(15, HIDDEN)
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    layer.weight.data = buffer[14]
    layer.forward_xpu(buffer[:7])
    layer.forward_xpu(buffer[:7], buffer[7:14])
    assert fake_xpu.calls == KERNEL + FUSED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, HIDDEN), (7, HIDDEN), (5, 3, HIDDEN), (2, 5, 3, HIDDEN)])
def test_fused_kernel_writes_in_place_and_returns_its_arguments(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    layer = fake_xpu.norm(HIDDEN, dtype)
    x, residual = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    rounded = (x + residual).clone()
    unrounded = layer.forward_native(x, residual)
    result = layer.forward_xpu(x, residual)
    assert fake_xpu.calls == FUSED
    assert result[0] is x
    assert result[1] is residual
    assert torch.equal(residual, rounded)
    assert ulps(x, layer.forward_native(rounded)) <= (1 if dtype != torch.float32 else 4)
    # The accepted difference: the native path normalizes the sum before it is rounded.
    assert ulps(x, unrounded[0]) <= (3 if dtype != torch.float32 else 4)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(lambda x: (x, draw(1, HIDDEN)), id="residual broadcast"),
        pytest.param(lambda x: (x, draw(HIDDEN)), id="residual of another rank"),
        pytest.param(lambda x: (x, draw(7, HIDDEN, dtype=torch.float32)), id="residual dtype"),
        pytest.param(lambda x: (x, draw(7, 2 * HIDDEN)[:, :HIDDEN]), id="residual strided"),
        pytest.param(lambda x: (x, draw(HIDDEN, 7).t()), id="residual transposed"),
        pytest.param(lambda x: (x, draw(1, HIDDEN).expand(7, HIDDEN)), id="residual expanded"),
        pytest.param(lambda x: (draw(7, 2 * HIDDEN)[:, :HIDDEN], x), id="input strided"),
        pytest.param(lambda x: (draw(1, HIDDEN).expand(7, HIDDEN), x), id="input expanded"),
        pytest.param(lambda x: (overlapping(7, HIDDEN, 8), x), id="input overlapping"),
        pytest.param(lambda x: (x, x), id="the same tensor"),
        pytest.param(lambda x: (x, x.view(7, HIDDEN)), id="the same memory"),
        pytest.param(lambda x: (x[:4], x[3:]), id="a row in common"),
        pytest.param(lambda x: (x[3:], x[:4]), id="a row in common, reversed"),
        pytest.param(lambda x: (draw(HIDDEN), draw(HIDDEN)), id="rank 1"),
        pytest.param(lambda x: (draw(1)[0], draw(1)[0]), id="rank 0"),
        pytest.param(lambda x: (x.view(1, 7, 1, 1, HIDDEN), draw(1, 7, 1, 1, HIDDEN)), id="rank 5"),
    ],
)
def test_fused_native_leaves_its_arguments_alone(
    pair: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    args = pair(draw(7, HIDDEN))
    before = [arg.clone() for arg in args]
    check_native(fake_xpu.norm(HIDDEN, torch.bfloat16), *args)
    for arg, kept in zip(args, before, strict=True):
        assert torch.equal(arg, kept)


def with_strides_of_ones(shape: tuple[int, ...], stride: int) -> Tensor:
    """A contiguous tensor whose dimensions of size 1 have another stride than usual."""
    strides = torch.empty(shape, device="meta").stride()
    chosen = [stride if size == 1 else usual for size, usual in zip(shape, strides, strict=True)]
    made = draw(*shape).as_strided(shape, chosen)
    assert made.is_contiguous()
    return made


ONES = [
    pytest.param((1, HIDDEN), FUSED, id="one row"),
    pytest.param((1, 1, HIDDEN), FUSED, id="one row, 3-D"),
    pytest.param((1, 1, 1, HIDDEN), FUSED, id="one row, 4-D"),
    pytest.param((1, 5, HIDDEN), FUSED, id="first, 3-D"),
    pytest.param((1, 5, 3, HIDDEN), FUSED, id="first, 4-D"),
    pytest.param((5, 1, 3, HIDDEN), FUSED, id="second, 4-D"),
    pytest.param((5, 1, HIDDEN), NATIVE, id="last but one, 3-D"),
    pytest.param((5, 3, 1, HIDDEN), NATIVE, id="last but one, 4-D"),
    pytest.param((5, 1, 1, HIDDEN), NATIVE, id="two, 4-D"),
]
"""Shapes with dimensions of size 1, and whether the fused kernel reads them at any stride."""


@pytest.mark.parametrize("stride", [0, 1, 3, 5 * HIDDEN, 10**6])
@pytest.mark.parametrize(("shape", "fused"), ONES)
def test_strides_of_dimensions_of_size_1(
    shape: tuple[int, ...], fused: list[str], stride: int
) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    x, residual = (with_strides_of_ones(shape, stride) for _ in range(2))
    assert ulps(layer.forward_xpu(x), layer.forward_native(x)) <= 1
    assert fake_xpu.calls == KERNEL
    fake_xpu.calls.clear()
    for first, second, kernels in (
        (draw(*shape), residual, FUSED),
        (x, draw(*shape), fused),
        (with_strides_of_ones(shape, stride), residual, fused),
    ):
        expected = layer.forward_native(first.clone(), second.clone())
        result = layer.forward_xpu(first, second)
        assert fake_xpu.calls == kernels
        fake_xpu.calls.clear()
        for got, want in zip(result, expected, strict=True):
            assert ulps(got, want) <= 3


@pytest.mark.parametrize("stride", [0, 3, 10**6])
@pytest.mark.parametrize(("shape", "fused"), ONES)
def test_op_at_strides_of_dimensions_of_size_1(
    shape: tuple[int, ...], fused: list[str], stride: int
) -> None:
    """The ops, which traced code calls, write in place whichever way they compute."""
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    x, residual = (with_strides_of_ones(shape, stride) for _ in range(2))
    out = with_strides_of_ones(shape, stride)
    torch.ops.vllm.xpu_gemma_rms_norm(out, x, layer.weight.data, 1e-6)
    assert fake_xpu.calls == KERNEL
    assert ulps(out, layer.forward_native(x)) <= 1
    expected = layer.forward_native(x.clone(), residual.clone())
    torch.ops.vllm.xpu_fused_add_gemma_rms_norm(x, residual, layer.weight.data, 1e-6)
    assert fake_xpu.calls == KERNEL + fused
    assert ulps(x, expected[0]) <= 3
    assert ulps(residual, expected[1]) <= 3


def test_transposed_to_one_row_per_token() -> None:
    """Contiguous for PyTorch, but the kernel would step by all tokens at once."""
    x = draw(1, 5, HIDDEN).transpose(0, 1)
    assert x.is_contiguous()
    assert x.stride(-2) == 5 * HIDDEN
    check_native(fake_xpu.norm(HIDDEN, torch.bfloat16), x, draw(5, 1, HIDDEN))


@pytest.mark.parametrize("stride", [1, 7])
@pytest.mark.parametrize("shape", [(7, 1), (1, 1), (5, 1, 1), (2, 5, 3, 1)])
def test_native_for_rows_of_one_element(shape: tuple[int, ...], stride: int) -> None:
    layer = fake_xpu.norm(1, torch.bfloat16)
    x, residual = (with_strides_of_ones(shape, stride) for _ in range(2))
    check_native(layer, x)
    check_native(layer, x, residual)


@pytest.mark.parametrize("shape", [(0, HIDDEN), (0, 3, HIDDEN), (5, 0, HIDDEN)])
def test_no_tokens(shape: tuple[int, ...]) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    check_native(layer, draw(*shape))
    check_native(layer, draw(*shape), draw(*shape))
    assert layer.forward_xpu(draw(*shape)).shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_invariant_mode(
    dtype: torch.dtype, xpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xpu.envs, "VLLM_BATCH_INVARIANT", True)
    layer = fake_xpu.norm(HIDDEN, dtype)
    check_native(layer, draw(7, HIDDEN, dtype=dtype))
    check_native(layer, draw(7, HIDDEN, dtype=dtype), draw(7, HIDDEN, dtype=dtype))


def test_without_the_kernels_the_layer_is_as_before(
    xpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xpu.xpu_ops, "HAS_GEMMA_RMS_NORM", False)
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    check_native(layer, draw(7, HIDDEN))
    check_native(layer, draw(7, HIDDEN), draw(7, HIDDEN))


@pytest.mark.parametrize("name", ["xpu_gemma_rms_norm", "xpu_fused_add_gemma_rms_norm"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((0, HIDDEN), torch.bfloat16),
        ((1, HIDDEN), torch.float16),
        ((7, HIDDEN), torch.float32),
        ((5, 3, HIDDEN), torch.bfloat16),
    ],
)
def test_opcheck(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first, second = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    weight = draw(HIDDEN, dtype=dtype)
    torch.library.opcheck(getattr(torch.ops.vllm, name), (first, second, weight, 1e-6))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(lambda x, w: (draw(7, 2 * HIDDEN)[:, :HIDDEN], x, w), id="out strided"),
        pytest.param(lambda x, w: (draw(7, HIDDEN, dtype=torch.float32), x, w), id="out dtype"),
        pytest.param(lambda x, w: (x, x, w), id="out is the input"),
        pytest.param(lambda x, w: (draw(7, HIDDEN), x, w.float()), id="weight dtype"),
        pytest.param(lambda x, w: (draw(7, HIDDEN), x.double(), w), id="float64"),
        pytest.param(lambda x, w: (draw(HIDDEN), x[0], w), id="rank 1"),
        pytest.param(lambda x, w: (draw(7, HIDDEN), x[:1].expand(7, HIDDEN), w), id="expanded"),
    ],
)
def test_op_computes_natively_what_the_kernel_cannot(
    arguments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    out, x, weight = arguments(draw(7, HIDDEN), layer.weight.data)
    layer.weight.data = weight
    expected = layer.forward_native(x.clone()).to(out.dtype)
    torch.ops.vllm.xpu_gemma_rms_norm(out, x, weight, layer.variance_epsilon)
    assert fake_xpu.calls == NATIVE
    assert torch.equal(out, expected)


def test_op_rejects_an_output_of_another_shape() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        torch.ops.vllm.xpu_gemma_rms_norm(draw(6, HIDDEN), draw(7, HIDDEN), draw(HIDDEN), 1e-6)
    assert fake_xpu.calls == NATIVE


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(lambda: (draw(7, 2 * HIDDEN)[:, :HIDDEN], draw(7, HIDDEN)), id="input"),
        pytest.param(lambda: (draw(7, HIDDEN), draw(HIDDEN, 7).t()), id="residual"),
        pytest.param(
            lambda: draw(7, 3 * HIDDEN)[:, : 2 * HIDDEN].split(HIDDEN, dim=1), id="columns of one"
        ),
    ],
)
def test_fused_op_writes_the_native_result_where_memory_allows(
    pair: Callable[[], tuple[Tensor, Tensor]],
) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    x, residual = pair()
    expected = layer.forward_native(x.clone(), residual.clone())
    torch.ops.vllm.xpu_fused_add_gemma_rms_norm(x, residual, layer.weight.data, 1e-6)
    assert fake_xpu.calls == NATIVE
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(lambda x: (x, x), id="the same tensor"),
        pytest.param(lambda x: (x[:6], x[1:]), id="rows in common"),
        pytest.param(lambda x: (x[:, :40], x[:, 8:]), id="columns in common"),
        pytest.param(lambda x: (x, draw(1, HIDDEN)), id="another shape"),
        pytest.param(lambda x: (x, x.float()), id="another dtype"),
        pytest.param(lambda x: (draw(1, HIDDEN).expand(7, HIDDEN), x), id="expanded"),
    ],
)
def test_fused_op_says_what_cannot_be_written_in_place(
    pair: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    x, residual = pair(draw(7, HIDDEN))
    before = x.clone(), residual.clone()
    with pytest.raises(RuntimeError, match="must have the same shape and dtype and share no"):
        torch.ops.vllm.xpu_fused_add_gemma_rms_norm(x, residual, draw(x.shape[-1]), 1e-6)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def compile_without_guards(
    forward: Callable[..., Any], backend: str = "aot_eager"
) -> Callable[..., Any]:
    """As vLLM compiles: one graph, whose guards are dropped."""
    return torch.compile(
        forward,
        fullgraph=True,
        backend=backend,
        options={"guard_filter_fn": lambda entries: [False for _ in entries]},
    )


@pytest.mark.parametrize("add", [False, True])
def test_one_graph_serves_every_row_count_and_layout(add: bool) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    forward = compile_without_guards(layer.forward_xpu)
    first = [draw(7, HIDDEN) for _ in range(1 + add)]
    for arg in first:
        torch._dynamo.mark_dynamic(arg, 0)
    forward(*first)
    fake_xpu.calls.clear()
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (83, 2, 1):
            args = [draw(rows, HIDDEN) for _ in range(1 + add)]
            expected = layer.forward_native(*(arg.clone() for arg in args))
            result = forward(*args)
            assert fake_xpu.calls == KERNEL
            fake_xpu.calls.clear()
            for got, want in zip(
                result if add else (result,), expected if add else (expected,), strict=True
            ):
                assert ulps(got, want) <= 3
        result = forward(*(draw(0, HIDDEN) for _ in range(1 + add)))
        assert (result[0] if add else result).shape == (0, HIDDEN)
        assert fake_xpu.calls == NATIVE


@pytest.mark.parametrize(
    ("make", "kernels"),
    [
        pytest.param(lambda: (draw(7, HIDDEN),), KERNEL, id="plain"),
        pytest.param(lambda: (draw(7, 2 * HIDDEN)[:, :HIDDEN],), KERNEL, id="strided"),
        pytest.param(lambda: (draw(1, HIDDEN).expand(7, HIDDEN),), NATIVE, id="expanded"),
        pytest.param(lambda: (draw(7, HIDDEN).double(),), NATIVE, id="float64"),
        pytest.param(lambda: (draw(HIDDEN),), NATIVE, id="rank 1"),
        pytest.param(lambda: (draw(7, HIDDEN), draw(7, HIDDEN)), KERNEL, id="add"),
        pytest.param(lambda: (draw(7, HIDDEN), draw(1, HIDDEN)), NATIVE, id="add, broadcast"),
        pytest.param(lambda: (draw(7, HIDDEN), draw(7, HIDDEN).float()), NATIVE, id="add, dtype"),
        pytest.param(
            lambda: (draw(7, HIDDEN), draw(1, HIDDEN).expand(7, HIDDEN)), KERNEL, id="add, expanded"
        ),
        pytest.param(lambda: 2 * (draw(7, HIDDEN),), KERNEL, id="add, the same tensor"),
        pytest.param(
            lambda: (draw(7, HIDDEN), draw(7, 2 * HIDDEN)[:, :HIDDEN]), KERNEL, id="add, strided"
        ),
        pytest.param(lambda: (draw(1, 5, HIDDEN).transpose(0, 1),), KERNEL, id="transposed"),
        pytest.param(
            lambda: (draw(1, 5, HIDDEN).transpose(0, 1), draw(5, 1, HIDDEN)),
            KERNEL,
            id="add, transposed",
        ),
        pytest.param(
            lambda: 2 * (with_strides_of_ones((5, 1, HIDDEN), 3),), KERNEL, id="add, odd stride"
        ),
        pytest.param(lambda: (draw(7, 1), draw(7, 1)), NATIVE, id="add, one element"),
    ],
)
def test_compiled_paths(make: Callable[[], tuple[Tensor, ...]], kernels: list[str]) -> None:
    check_compiled(make(), kernels, "aot_eager")


# Of torch itself, while Inductor is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("add", [False, True])
def test_compiled_by_inductor(add: bool) -> None:
    check_compiled(tuple(draw(7, HIDDEN) for _ in range(1 + add)), KERNEL, "inductor")


# Of torch itself, while Inductor is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(lambda x: (x, x), id="the same tensor"),
        pytest.param(lambda x: (x, x.detach()), id="detached"),
        pytest.param(lambda x: (x, x.view(-1, HIDDEN)), id="view"),
        pytest.param(lambda x: (x, x[:]), id="whole slice"),
        pytest.param(lambda x: (x[:-1], x[1:]), id="rows in common"),
        pytest.param(lambda x: torch.cat([x, x + 1], -1).split(HIDDEN, -1), id="strided"),
        pytest.param(lambda x: (x, x[:1].expand(x.shape)), id="expanded"),
        pytest.param(lambda x: torch.stack([x, x + 1]).unbind(), id="rows of one buffer"),
    ],
)
def test_graph_in_which_memory_is_shared(
    pair: Callable[[Tensor], tuple[Tensor, Tensor]], backend: str
) -> None:
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    forward = compile_without_guards(lambda x: layer.forward_xpu(*pair(x * 2)), backend)
    for rows in (7, 83, 2, 1):
        x = draw(rows, HIDDEN)
        if rows == 7:
            torch._dynamo.mark_dynamic(x, 0)
        before = x.clone()
        expected = layer.forward_native(*pair(x * 2))
        if expected[0].numel() == 0:
            continue
        result = forward(x)
        assert fake_xpu.calls == KERNEL
        fake_xpu.calls.clear()
        assert torch.equal(x, before)
        for got, want in zip(result, expected, strict=True):
            # Inductor keeps x + 1 unrounded between its own ops.
            assert ulps(got, want) <= 6


def check_compiled(args: tuple[Tensor, ...], kernels: list[str], backend: str) -> None:
    layer = fake_xpu.norm(args[0].shape[-1], torch.bfloat16)
    expected = layer.forward_native(*(arg.clone() for arg in args))
    result = torch.compile(layer.forward_xpu, fullgraph=True, backend=backend)(*args)
    assert fake_xpu.calls == kernels
    if len(args) == 1:
        result, expected = (result,), (expected,)
    for got, want in zip(result, expected, strict=True):
        assert got.dtype == want.dtype
        assert ulps(got, want) <= 3


def test_compiled_mutation_is_seen_by_what_follows() -> None:
    """What is computed from the arguments before and after stays the same."""
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)

    def around(x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        x, residual = x + 1, residual * 2
        before = x - residual
        x, residual = layer.forward_xpu(x, residual)
        return before, x - residual, residual

    x, residual = draw(7, HIDDEN), draw(7, HIDDEN)
    expected = around(x.clone(), residual.clone())
    result = torch.compile(around, fullgraph=True, backend="aot_eager")(x, residual)
    assert fake_xpu.calls == FUSED + KERNEL
    for got, want in zip(result, expected, strict=True):
        assert torch.equal(got, want)


def test_compiled_batch_invariance_is_decided_when_traced(
    xpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xpu.envs, "VLLM_BATCH_INVARIANT", True)
    layer = fake_xpu.norm(HIDDEN, torch.bfloat16)
    forward = torch.compile(layer.forward_xpu, fullgraph=True, backend="aot_eager")
    x = draw(7, HIDDEN)
    assert torch.equal(forward(x), layer.forward_native(x))
    assert fake_xpu.calls == NATIVE
