"""What the dispatch matrix does not vary, on the simulated XPU: one function per property.

    python xpu_checks.py

Prints one JSON object: the name of every check, and the traceback of those that failed or null.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xpu_kernels
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm import envs, ir
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.plugins import load_general_plugins

HIDDEN = 64
PROVIDERS = ["xpu_fp16_row", "xpu_weightless_qk"]


@contextmanager
def configured(mode: int = 0, **compilation: Any) -> Iterator[VllmConfig]:
    config = VllmConfig(compilation_config=CompilationConfig(mode=mode, **compilation))
    wrap = config.compilation_config.ir_enable_torch_wrap
    priority = config.kernel_config.ir_op_priority
    with set_current_vllm_config(config), priority.set_priority(), ir.enable_torch_wrap(wrap):
        xpu_kernels.calls.clear()
        yield config


def gemma(cls: type = GemmaRMSNorm) -> Any:
    layer: Any = cls(HIDDEN).half()
    layer.weight.data.normal_(std=0.2)
    return layer


def row(rows: int = 1) -> Tensor:
    return torch.randn(rows, HIDDEN).half()


def check_fake_tensors() -> None:
    """Fake tensors of known size go where real ones would, and no kernel runs for them."""
    with configured(mode=3, compile_sizes=[1]), FakeTensorMode() as mode:
        x, weight = mode.from_tensor(row()), mode.from_tensor(row()[0].contiguous())
        assert ir.ops.rms_norm.dispatch(x, weight, 1e-6).provider == "xpu_fp16_row"
        out = ir.ops.rms_norm(x, weight, 1e-6)
        assert out.shape == x.shape
        assert out.dtype is x.dtype
    assert xpu_kernels.calls == []


def check_compiled_without_graph_break() -> None:
    """Layers of all kinds in one graph each; a frozen row count would show in the numbers."""
    with configured(mode=3, custom_ops=["all"]):
        for layer in (RMSNorm(HIDDEN).half(), RMSNorm(HIDDEN, has_weight=False), gemma()):
            torch._dynamo.reset()
            explained: list[int] = []

            def backend(graph: Any, inputs: Any, seen: list[int] = explained) -> Any:
                seen.append(len(graph.graph.nodes))
                return graph.forward

            compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
            for rows in (2, 1, 7, 200):
                x = row(rows)
                torch.testing.assert_close(
                    compiled(x.clone()), layer(x.clone()), atol=1e-2, rtol=2e-3
                )
            assert explained


def check_opcheck() -> None:
    """The op that compiled code calls keeps its own schema's promises, also where it is native."""
    op = torch.ops.vllm.xpu_gemma_rms_norm.default
    tests = ("test_schema", "test_faketensor")
    for x in (row(7), torch.randn(7, 3, HIDDEN).half(), row(7).expand(7, HIDDEN)):
        weight = torch.randn(HIDDEN).half()
        torch.library.opcheck(op, (torch.empty_like(x), x, weight, 1e-6), test_utils=tests)
    wide = torch.randn(HIDDEN)
    torch.library.opcheck(op, (torch.empty_like(row()), row(), wide, 1e-6), test_utils=tests)


def check_mutation_is_seen() -> None:
    """The fused norm writes in place: who holds a view sees it, who read before is not changed."""
    with configured():
        layer = gemma()
        x, residual = row(4), row(4)
        before, view, held = x.sum(), x[2], residual.view(-1)
        kept = before.clone()
        total = (x + residual).clone()
        out, added = layer(x, residual)
        assert xpu_kernels.calls == ["fused_add_gemma_rms_norm"]
        assert torch.equal(before, kept)
        assert torch.equal(held.view(4, HIDDEN), total)
        assert torch.equal(view, out[2])
        assert added is residual
        for plain in (RMSNorm(HIDDEN).half(), RMSNorm(HIDDEN, has_weight=False)):
            x = row()
            kept = x.clone()
            result = plain(x)
            assert torch.equal(x, kept)
            assert result.data_ptr() != x.data_ptr()


def check_subclasses() -> None:
    """A subclass without forward_xpu gets the kernel unless it computes something of its own."""

    class Renamed(GemmaRMSNorm):
        pass

    class Halved(GemmaRMSNorm):
        def forward_native(self, x: Tensor, residual: Tensor | None = None) -> Any:
            return x / 2

    class Plain(RMSNorm):
        pass

    class HalvedAgain(Halved):
        pass

    with configured():
        gemma(Renamed)(row())
        assert xpu_kernels.calls == ["gemma_rms_norm"]
        xpu_kernels.calls.clear()
        x = row()
        for cls in (Halved, HalvedAgain):
            assert torch.equal(gemma(cls)(x), x / 2)
        assert xpu_kernels.calls == []
        Plain(HIDDEN, dtype=torch.float16)(row())
        assert xpu_kernels.calls == ["rms_norm"]


def check_batch_invariance() -> None:
    """In batch-invariant mode no kernel of ours runs, and neither providers nor pass are placed."""
    from vllm.config.utils import Range

    from normport.layers import diagnosis
    from normport.layers.in_tree.xpu_gemma_pass import XpuGemmaRMSNormPass

    one_row = Range(1, 1)
    assert XpuGemmaRMSNormPass().is_applicable_for_range(one_row)
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    try:
        assert envs.VLLM_BATCH_INVARIANT
        with configured(mode=3, compile_sizes=[1]) as config:
            assert not set(PROVIDERS) & set(config.kernel_config.ir_op_priority.rms_norm)
            assert not XpuGemmaRMSNormPass().is_applicable_for_range(one_row)
        eager, compiled = diagnosis.diagnose(torch.float16)
        told = [answer for answer in eager.answers if answer.norm.startswith("GemmaRMSNorm")]
        assert {answer.path for answer in [*told, *compiled.answers]} == {"native"}
        with configured():
            layer, x = gemma(), row(7)
            whole = layer(x)
            parts = torch.cat([layer(x[i : i + 1]) for i in range(7)])
            assert torch.equal(whole, parts)
            assert xpu_kernels.calls == []
    finally:
        del os.environ["VLLM_BATCH_INVARIANT"]


def check_static_buffers() -> None:
    """As a recorded graph replays it: same addresses, new values, no memory kept from before."""
    with configured():
        layer = gemma()
        x, residual = row(4), row(4)
        places = x.data_ptr(), residual.data_ptr()
        for _ in range(3):
            new_x, new_residual = row(4), row(4)
            x.copy_(new_x)
            residual.copy_(new_residual)
            out, added = layer(x, residual)
            assert (out.data_ptr(), added.data_ptr()) == places
            want, total = layer.forward_native(new_x, new_residual)
            torch.testing.assert_close(out, want, atol=1e-2, rtol=2e-3)
            torch.testing.assert_close(added, total, atol=1e-2, rtol=2e-3)


def check_two_models() -> None:
    """An eager and a compiled model in one process: each keeps its own order of providers."""
    with configured() as eager:
        first = RMSNorm(HIDDEN, dtype=torch.float16)
        assert first._forward_method.__func__.__name__ == "forward_xpu"
    with configured(mode=3, compile_sizes=[1]) as compiled:
        second = RMSNorm(HIDDEN, dtype=torch.float16)
        assert second._forward_method.__func__.__name__ == "forward_native"
    # There vllm_c runs the same kernel, and a provider that declines costs time.
    assert eager.kernel_config.ir_op_priority.rms_norm == ["vllm_c", "native"]
    assert compiled.kernel_config.ir_op_priority.rms_norm == [*PROVIDERS, "native"]


def check_placed_only_for_a_graph_of_known_size() -> None:
    """A range of the one size is such a graph too; the default compiles ranges of more alone."""
    from normport.layers import xpu

    for compilation, placed in (
        ({}, False),
        ({"compile_ranges_endpoints": [64]}, False),
        ({"compile_ranges_endpoints": [1]}, True),
        ({"compile_sizes": [1, 2]}, True),
    ):
        with configured(mode=3, **compilation) as config:
            order = config.kernel_config.ir_op_priority.rms_norm
            assert order == [*(PROVIDERS if placed else []), "native"], compilation
            why = None if placed else "no graph of one known size is compiled"
            assert xpu.providers().why_not_placed(config) == why


def check_users_order_is_kept() -> None:
    """An order other than the platform's stands, and a second look at ours changes nothing."""
    from vllm.config.kernel import IrOpPriorityConfig, KernelConfig

    from normport.layers import xpu

    order = IrOpPriorityConfig(rms_norm=["native"])
    config = VllmConfig(
        kernel_config=KernelConfig(ir_op_priority=order),
        compilation_config=CompilationConfig(mode=0),
    )
    assert config.kernel_config.ir_op_priority.rms_norm == ["native", "vllm_c"]
    with configured(mode=3, compile_sizes=[1]) as ours:
        placed = list(ours.kernel_config.ir_op_priority.rms_norm)
        assert xpu.providers().place_norm_providers(ours) is None
        assert ours.kernel_config.ir_op_priority.rms_norm == placed


def check_unknown_schema_is_not_called() -> None:
    """Another schema than the one this was written for is reported and not called."""
    from normport.layers import xpu

    found = xpu.providers()
    wanted = list(found._KERNEL_ARGUMENTS)
    try:
        found._KERNEL_ARGUMENTS[:] = [*wanted, ("int", False)]
        assert found.kernel_refused() == "unknown schema of _C.rms_norm"
    finally:
        found._KERNEL_ARGUMENTS[:] = wanted
    assert found.kernel_refused() is None


def check_unknown_gemma_schema_is_not_called() -> None:
    """The layer's own path to Gemma's kernels asks for their schemas as the providers do."""
    from unittest.mock import patch

    from normport.kernels import schemas
    from normport.layers import xpu

    installed = vars(GemmaRMSNorm)["forward_xpu"]
    del GemmaRMSNorm.forward_xpu
    try:
        other = {"gemma_rms_norm": "(Tensor! result, Tensor input, float epsilon) -> ()"}
        with patch.object(schemas, "XPU_SCHEMAS", {**schemas.XPU_SCHEMAS, **other}):
            told = xpu._install_gemma()
        assert told.startswith("_C.gemma_rms_norm is not called: its op is registered with"), told
        assert "forward_xpu" not in vars(GemmaRMSNorm)
        with configured():
            gemma()(row())
            assert xpu_kernels.calls == []
    finally:
        GemmaRMSNorm.forward_xpu = installed


def check_doctor_where_the_plug_in_is_off() -> None:
    """What is not there is no method that compile mode leaves out, and no pass that declines."""
    from vllm.platforms import current_platform

    from normport.layers import diagnosis

    actions = type(current_platform).normport_actions
    add_pass, installed = actions.pop("pass"), vars(GemmaRMSNorm)["forward_xpu"]
    del GemmaRMSNorm.forward_xpu
    try:
        modes = diagnosis.diagnose(torch.float16)
    finally:
        GemmaRMSNorm.forward_xpu = installed
        actions["pass"] = add_pass
    for mode in modes:
        told = [dict(a.skipped) for a in mode.answers if a.norm.startswith("GemmaRMSNorm")]
        assert len(told) == 4
        for skipped in told:
            assert "has none" in skipped["forward_xpu"]
            absent = "it is not among this configuration's passes"
            assert skipped.get("pass") == (absent if mode.name == "compiled" else None)


def check_loading_twice() -> None:
    """vLLM may load a plug-in again in the same process."""
    from normport.layers import plugin

    first = dict(plugin.OUTCOME)
    plugin.load()
    assert first == plugin.OUTCOME
    with configured(mode=3, compile_sizes=[1]) as config:
        assert config.kernel_config.ir_op_priority.rms_norm[:2] == PROVIDERS
        assert config.kernel_config.ir_op_priority.rms_norm.count("xpu_fp16_row") == 1


def check_counts_cost_nothing_afterwards() -> None:
    """Counting replaces the guards and puts back the very same ones."""
    from normport.layers.counting import KERNEL, counted

    impl = ir.ops.rms_norm.impls["xpu_fp16_row"]
    before = impl._supports_args
    with configured(), ir.ops.rms_norm.set_priority([*PROVIDERS, "native"]):
        layer = RMSNorm(HIDDEN, dtype=torch.float16)
        with counted() as counts:
            layer(row())
            layer(row(2))
            gemma()(row())
        layer(row())
    assert impl._supports_args is before
    assert counts == {
        ("RMSNorm", KERNEL): 1,
        ("RMSNorm", "rows outside the limits"): 1,
        ("GemmaRMSNorm", KERNEL): 1,
    }


def check_doctor_tells_what_runs() -> None:
    """Each answer for eager mode against the kernels that a call of that layer did run."""
    from normport.layers import diagnosis

    for custom_ops in ([], ["none", "+gemma_rms_norm"]):
        told = {
            (answer.norm, answer.situation): answer.runs
            for answer in diagnosis.diagnose(torch.float16, custom_ops)[0].answers
        }
        with configured(custom_ops=custom_ops):
            for norm in diagnosis.NORMS:
                by_ir = "fused_add_rms_norm" if norm.residual else "rms_norm"
                layer = diagnosis._build(norm, torch.float16)
                for tokens, situation in ((1, "eager, 1 token"), (64, "eager, 64 tokens")):
                    runs = told.pop((norm.name, situation))
                    kernel = {"native": [], "vllm_c": [by_ir]}
                    xpu_kernels.calls.clear()
                    layer(*diagnosis._arguments(norm, torch.float16, tokens))
                    ran = list(xpu_kernels.calls)
                    assert ran == kernel.get(runs, [runs.removeprefix("_C.")]), (norm, runs, ran)
        assert not told


CHECKS: dict[str, Callable[[], None]] = {
    name: check for name, check in sorted(globals().items()) if name.startswith("check_")
}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    load_general_plugins()
    results = {}
    for name, check in CHECKS.items():
        try:
            with torch.no_grad():
                check()
            results[name] = None
        # Whatever a check raises is its result, which the caller of this process asserts on.
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
