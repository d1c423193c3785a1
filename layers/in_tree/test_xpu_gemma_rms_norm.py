# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which path GemmaRMSNorm takes on XPU, and what it computes there.

Without an XPU the kernels are stand-ins: ops with the kernels' schemas, registered for
the platform that runs the tests. They fail where the kernels fail.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.platforms import current_platform

DEVICE = current_platform.device_type
DTYPES = [torch.half, torch.bfloat16, torch.float]
EPSILON = 1e-6
HIDDEN = 128
SCHEMAS = {
    "gemma_rms_norm": (
        "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()"
    ),
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
}


def _stand_in_gemma(result, input, weight, epsilon):
    assert input.dim() in (2, 3, 4) and input.numel() and result.is_contiguous()
    assert weight.dtype == input.dtype == result.dtype and weight.is_contiguous()
    x = input.float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    result.copy_(x * (1.0 + weight.float()))


def _stand_in_fused_add_gemma(input, residual, weight, epsilon):
    assert input.numel() and weight.dtype == input.dtype == residual.dtype
    # The kernel steps through the input by one stride and takes the residual as dense.
    hidden = input.shape[-1]
    shape = (input.numel() // hidden, hidden)
    rows = input.as_strided(shape, (input.stride(-2), 1))
    total = residual.as_strided(shape, (hidden, 1))
    total.copy_(rows + total)
    _stand_in_gemma(rows, total, weight, epsilon)


@pytest.fixture(scope="module", autouse=True)
def xpu_ops():
    if current_platform.is_xpu():
        import vllm._xpu_ops as module

        yield module
        return
    library = torch.library.Library("_C", "FRAGMENT")
    stand_ins = (_stand_in_gemma, _stand_in_fused_add_gemma)
    for (name, schema), stand_in in zip(SCHEMAS.items(), stand_ins, strict=True):
        library.define(name + schema)
        library.impl(name, stand_in, dispatch_key=current_platform.dispatch_key)
    with pytest.MonkeyPatch.context() as patch:
        kernels = ModuleType("vllm_xpu_kernels")
        interface = ModuleType("vllm_xpu_kernels.flash_attn_interface")
        interface.flash_attn_varlen_func = None  # type: ignore[attr-defined]
        patch.setitem(sys.modules, kernels.__name__, kernels)
        patch.setitem(sys.modules, interface.__name__, interface)
        import vllm._xpu_ops as module

        yield module


@pytest.fixture
def current_config():
    torch._dynamo.reset()
    with set_current_vllm_config(VllmConfig()) as config:
        yield config


@pytest.fixture
def layer(current_config) -> GemmaRMSNorm:
    return _layer(torch.bfloat16)


def _layer(dtype: torch.dtype) -> GemmaRMSNorm:
    norm = GemmaRMSNorm(HIDDEN, eps=EPSILON).to(device=DEVICE, dtype=dtype)
    norm.weight.data.normal_(std=0.1)
    return norm


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def _run(forward, *args):
    """The result, and how often each Gemma kernel ran."""
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as trace:
        result = forward(*args)
    counts = {event.key: event.count for event in trace.key_averages()}
    return result, [counts.get(f"_C::{name}", 0) for name in SCHEMAS]


def _native(norm: GemmaRMSNorm, x, residual=None):
    with torch.inference_mode():
        result = norm.forward_native(x, residual)
    return result if residual is not None else (result,)


def _assert_native(result, expected) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, HIDDEN), (7, HIDDEN), (5, 3, HIDDEN), (2, 5, 3, HIDDEN)]
)
@pytest.mark.parametrize("strided", [False, True])
def test_kernel(current_config, dtype, shape, strided) -> None:
    norm = _layer(dtype)
    x = _random(*shape[:-1], 2 * HIDDEN, dtype=dtype)[..., :HIDDEN]
    x = x if strided else x.contiguous()
    expected = _native(norm, x)
    result, calls = _run(norm.forward_xpu, x)
    assert calls == [1, 0]
    assert result.is_contiguous()
    torch.testing.assert_close(result, expected[0], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, HIDDEN), (7, HIDDEN), (5, 3, HIDDEN)])
def test_fused_add_kernel(current_config, dtype, shape) -> None:
    norm = _layer(dtype)
    x, residual = _random(*shape, dtype=dtype), _random(*shape, dtype=dtype)
    expected = _native(norm, x, residual)
    result, calls = _run(norm.forward_xpu, x, residual)
    assert calls == [0, 1]
    assert result[0] is x and result[1] is residual
    # The kernel normalizes the rounded sum, the native path the unrounded one.
    torch.testing.assert_close(x, expected[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(residual, expected[1], atol=1e-2, rtol=1e-2)


UNSUPPORTED = {
    "float64": lambda: _random(7, HIDDEN, dtype=torch.float64),
    "weight dtype": lambda: _random(7, HIDDEN, dtype=torch.float),
    "rank 1": lambda: _random(HIDDEN),
    "rank 5": lambda: _random(2, 1, 2, 1, HIDDEN),
    "expanded": lambda: _random(1, HIDDEN).expand(7, HIDDEN),
    "overlapping": lambda: _random(8 * HIDDEN).as_strided((7, HIDDEN), (64, 1)),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_native(layer, case) -> None:
    x = UNSUPPORTED[case]()
    result, calls = _run(layer.forward_xpu, x)
    assert calls == [0, 0]
    _assert_native(result, _native(layer, x))


def test_native_for_strided_weight(layer) -> None:
    layer.weight.data = _random(2 * HIDDEN)[::2]
    x = _random(7, HIDDEN)
    result, calls = _run(layer.forward_xpu, x)
    assert calls == [0, 0]
    _assert_native(result, _native(layer, x))


def test_native_for_shared_weight(layer) -> None:
    x = _random(7, HIDDEN)
    layer.weight.data = x[3]
    expected = _native(layer, x)
    result, calls = _run(layer.forward_xpu, x)
    assert calls == [0, 0]
    _assert_native(result, expected)


def _same(x):
    return x, x


def _neighbours(x):
    rows = _random(8, HIDDEN)
    return rows[:7], rows[1:]


def test_fused_add_kernel_for_one_row_at_any_stride(layer) -> None:
    x, residual = (_random(1, HIDDEN).as_strided((1, HIDDEN), (3, 1)) for _ in "12")
    expected = _native(layer, x, residual)
    result, calls = _run(layer.forward_xpu, x, residual)
    assert calls == [0, 1]
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)


def _transposed(x):
    """Contiguous, since one dimension has size 1; its stride(-2) is 7 rows."""
    return _random(1, 7, HIDDEN).transpose(0, 1), x.view(7, 1, HIDDEN)


UNSUPPORTED_PAIRS = {
    "transposed": _transposed,
    "residual broadcast": lambda x: (x, _random(1, HIDDEN)),
    "residual expanded": lambda x: (x, _random(1, HIDDEN).expand(7, HIDDEN)),
    "residual dtype": lambda x: (x, _random(7, HIDDEN, dtype=torch.float)),
    "residual strided": lambda x: (x, _random(7, 2 * HIDDEN)[:, :HIDDEN]),
    "input strided": lambda x: (_random(7, 2 * HIDDEN)[:, :HIDDEN], x),
    "same tensor": _same,
    "overlap": _neighbours,
}


@pytest.mark.parametrize("case", UNSUPPORTED_PAIRS)
def test_fused_add_native(layer, case) -> None:
    x, residual = UNSUPPORTED_PAIRS[case](_random(7, HIDDEN))
    expected = _native(layer, x, residual)
    result, calls = _run(layer.forward_xpu, x, residual)
    assert calls == [0, 0]
    _assert_native(result, expected)


@pytest.mark.parametrize("add_residual", [False, True])
def test_zero_tokens(layer, add_residual) -> None:
    args = [_random(0, HIDDEN) for _ in range(1 + add_residual)]
    result, calls = _run(layer.forward_xpu, *args)
    assert calls == [0, 0]
    for part in result if add_residual else (result,):
        assert part.shape == (0, HIDDEN) and part.dtype == torch.bfloat16


@pytest.mark.parametrize("add_residual", [False, True])
def test_batch_invariant(layer, add_residual, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    args = [_random(7, HIDDEN) for _ in range(1 + add_residual)]
    expected = _native(layer, *args)
    result, calls = _run(layer.forward_xpu, *args)
    assert calls == [0, 0]
    _assert_native(result, expected)


def test_kernels_missing(layer, xpu_ops, monkeypatch) -> None:
    monkeypatch.setattr(xpu_ops, "HAS_GEMMA_RMS_NORM", False)
    x = _random(7, HIDDEN)
    result, calls = _run(layer.forward_xpu, x)
    assert calls == [0, 0]
    _assert_native(result, _native(layer, x))


@pytest.mark.parametrize("add_residual", [False, True])
def test_compiled_for_any_row_count(layer, add_residual) -> None:
    forward = torch.compile(layer.forward_xpu, fullgraph=True, backend="aot_eager")
    for rows in (7, 83, 1, 0, 2):
        args = [_random(rows, HIDDEN) for _ in range(1 + add_residual)]
        for arg in args:
            torch._dynamo.maybe_mark_dynamic(arg, 0)
        expected = _native(layer, *args)
        result, calls = _run(forward, *args)
        assert sum(calls) == (rows > 0)
        for got, want in zip(
            result if add_residual else (result,), expected, strict=True
        ):
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)


COMPILED_PAIRS = {
    "strided": lambda x: torch.cat((x, x + 1), -1).split(HIDDEN, -1),
    "expanded": lambda x: (x, x[:1].expand(x.shape)),
    "same tensor": _same,
    "detached": lambda x: (x, x.detach()),
    "overlap": lambda x: (x[:-1], x[1:]),
    "rows of one": lambda x: torch.stack((x, x + 1)).unbind(),
}


@pytest.mark.parametrize("case", COMPILED_PAIRS)
def test_compiled_shared_memory(layer, case) -> None:
    """Traced code normalizes the sum, so memory may be shared within the graph."""

    def forward(norm, x):
        return norm(*COMPILED_PAIRS[case](x * 2))

    x = _random(7, HIDDEN)
    torch._dynamo.mark_dynamic(x, 0)
    before = x.clone()
    expected = forward(layer.forward_native, x)
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    result, calls = _run(compiled, layer.forward_xpu, x)
    assert calls == [1, 0]
    assert torch.equal(x, before)
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want, atol=4e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_opcheck(xpu_ops, dtype, rows) -> None:
    x, other = (_random(rows, HIDDEN, dtype=dtype) for _ in range(2))
    weight = _random(HIDDEN, dtype=dtype)
    for op in (
        torch.ops.vllm.xpu_gemma_rms_norm,
        torch.ops.vllm.xpu_fused_add_gemma_rms_norm,
    ):
        torch.library.opcheck(op, (other, x, weight, EPSILON))


def test_op_refuses_shared_memory(xpu_ops) -> None:
    x, weight = _random(7, HIDDEN), _random(HIDDEN)
    with pytest.raises(RuntimeError, match="share no memory"):
        torch.ops.vllm.xpu_fused_add_gemma_rms_norm(x, x, weight, EPSILON)


def test_dispatch(monkeypatch) -> None:
    names = ("cpu", "cuda", "cuda_alike", "out_of_tree", "rocm", "tpu", "xpu")
    platform = {f"is_{name}": lambda name=name: name == "xpu" for name in names}
    monkeypatch.setattr(
        "vllm.model_executor.custom_op.current_platform", SimpleNamespace(**platform)
    )
    config = VllmConfig()
    config.compilation_config.custom_ops = ["none", "+gemma_rms_norm"]
    with set_current_vllm_config(config):
        norm = GemmaRMSNorm(HIDDEN)
    assert norm._forward_method == norm.forward_xpu
