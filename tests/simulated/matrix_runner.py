"""Run the dispatch matrix on one device, through vLLM's own layers, and print what was seen.

    python matrix_runner.py (cpu|xpu|musa)

NORMPORT_SIMULATE says which platform this process has. Every case takes the path that
``matrix_expected`` names and, where that path is ours or native, meets the tolerances of vLLM's
own op against float64. On XPU the norms that the guarded IR providers are for run a second time,
with the order of providers that compile mode has, where these stand first. Prints one JSON object:
the number of cases, how many took each path, and the first cases that were wrong.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from matrix_cases import (
    EPSILON,
    LAYOUTS,
    MANY_ROWS,
    Bounds,
    Case,
    exact_norm,
    groups,
    size,
    variants,
)
from matrix_expected import EXPECTED, Path, guarded
from torch import Tensor
from vllm import ir
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.plugins import load_general_plugins

from normport.layers.counting import KERNEL, Counts, counted


class Device:
    """How tensors reach the device, and which implementation a call ran there."""

    def put(self, tensor: Tensor) -> Tensor:
        return tensor

    def take(self, tensor: Tensor) -> Tensor:
        return tensor

    def start(self) -> None:
        self.ran: list[str] = []

    def path(self, counts: Counts, layer: Any, args: tuple[Tensor, ...]) -> Path:
        return "native", None


class Xpu(Device):
    def start(self) -> None:
        import xpu_kernels

        self.ran = xpu_kernels.calls
        self.ran.clear()

    def path(self, counts: Counts, layer: Any, args: tuple[Tensor, ...]) -> Path:
        reason = next((reason for _, reason in counts), None)
        if self.ran in (["gemma_rms_norm"], ["fused_add_gemma_rms_norm"]):
            return "gemma", None if reason == KERNEL else reason
        if reason == KERNEL:
            return ("guard" if self.ran == ["rms_norm"] else "nothing"), None
        if self.ran in (["rms_norm"], ["fused_add_rms_norm"]):
            return "vllm_c", reason
        return ("empty" if reason == "no elements" and len(args) == 1 else "native"), reason


class Musa(Device):
    def __init__(self) -> None:
        import musa_tensor

        from normport.layers import musa

        self.ran = []
        self.wrap = musa_tensor.MusaTensor
        run = musa.rms_norm

        def watched(*args: Any, **keywords: Any) -> Tensor:
            self.ran.append("guard")
            return run(*args, **keywords)

        musa.rms_norm = watched  # type: ignore[assignment]

    def put(self, tensor: Tensor) -> Tensor:
        return self.wrap(tensor)

    def take(self, tensor: Tensor) -> Tensor:
        assert tensor.device.type == "musa"
        return tensor.held  # type: ignore[attr-defined,no-any-return]

    def start(self) -> None:
        self.ran.clear()

    def path(self, counts: Counts, layer: Any, args: tuple[Tensor, ...]) -> Path:
        reason = next((reason for _, reason in counts), None)
        if reason == KERNEL:
            return ("guard" if self.ran == ["guard"] else "nothing"), None
        return "native", reason


DEVICES: dict[str, Callable[[], Device]] = {"cpu": Device, "xpu": Xpu, "musa": Musa}


def build(layer: str, weight: str, flat: Tensor, device: Device) -> Any:
    """A layer that holds the weight's values in the dtype and layout that the case asks for."""
    hidden = flat.shape[0]
    if layer == "GemmaRMSNorm":
        made: Any = GemmaRMSNorm(hidden, EPSILON)
    else:
        made = RMSNorm(hidden, EPSILON, has_weight=weight != "none")
    if weight == "none":
        # Weight offloading leaves zeros there; a weightless norm must not read them.
        held = torch.zeros_like(flat)
    elif weight == "float32":
        held = flat.float()
    elif weight == "strided":
        held = flat.repeat_interleave(2)[::2]
    else:
        held = flat
    made._parameters.pop("weight", None)
    made.weight = device.put(held)
    return made


class Matrix:
    def __init__(self, name: str, counts: Counts, guarded_order: list[str] | None) -> None:
        self.device = DEVICES[name]()
        self.expected = EXPECTED[name]
        self.counts = counts
        self.guarded_order = guarded_order
        self.cases = 0
        self.paths: Counter[str] = Counter()
        self.guarded_paths: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.layers: dict[Any, Any] = {}

    def run(self) -> None:
        generator = torch.Generator().manual_seed(11)
        for dtype, hidden, rows, layouts in groups():
            x, residual = (
                torch.randn(rows, hidden, generator=generator).to(dtype) for _ in range(2)
            )
            weight = torch.randn(hidden, generator=generator).mul(0.2).to(dtype)
            tolerance = ir.ops.rms_norm.get_tolerance(dtype)
            # Rows do not depend on each other: of many, some say enough of the numbers.
            few = slice(None, None, 1 if rows < MANY_ROWS else 64)
            seen = x[few].double()
            totals = {
                "none": seen,
                "residual": seen + residual[few].double(),
                "aliasing": seen * 2,
            }
            sums = {k: Bounds.around(v, dtype, **tolerance) for k, v in totals.items()}
            for layer, kind, add in variants():
                made = self.layer(layer, kind, dtype, weight)
                offset = 1.0 if layer == "GemmaRMSNorm" else 0.0
                exact = exact_norm(totals[add], None if kind == "none" else weight, offset)
                norms = Bounds.around(exact, dtype, **tolerance)
                for layout in layouts:
                    case = Case(layer, rows, hidden, layout, dtype, kind, add)
                    values = (x, residual, norms, sums[add], few)
                    self.case(case, made, *values, self.expected(case), self.paths)
                    self.cases += 1
                    if self.guarded_order and layer == "RMSNorm" and add == "none":
                        with ir.ops.rms_norm.set_priority(self.guarded_order):
                            self.case(case, made, *values, guarded(case), self.guarded_paths)

    def layer(self, layer: str, kind: str, dtype: torch.dtype, weight: Tensor) -> Any:
        return build(layer, kind, weight, self.device)

    def case(
        self,
        case: Case,
        layer: Any,
        x: Tensor,
        residual: Tensor,
        norms: Bounds,
        sums: Bounds,
        few: slice,
        wanted: Path,
        paths: Counter[str],
    ) -> None:
        shape = LAYOUTS[case.layout][1]
        first = self.device.put(shape(x))
        args: tuple[Tensor, ...] = (first,)
        if case.residual == "residual":
            args = (first, self.device.put(shape(residual)))
        elif case.residual == "aliasing":
            args = (first, first)
        before = None if len(args) > 1 else self.device.take(first).clone()
        self.counts.clear()
        self.device.start()
        # A kernel that vLLM would call without us too has no guard: neither for an empty tensor,
        # nor for strides or a weight that it cannot read. Its path is ours to keep, not its result.
        theirs = wanted[0] == "vllm_c"
        unsafe = (
            case.rows == 0
            or case.weight == "strided"
            or (
                case.residual != "none"
                and (case.residual == "aliasing" or case.layout not in ("2-D", "3-D", "4-D"))
            )
        )
        try:
            result = layer(*args)
        except RuntimeError as error:
            if not (theirs and unsafe):
                self.report(case, f"raised {error}")
                return
            result = None
        path = self.device.path(self.counts, layer, args)
        paths["{} ({})".format(*path)] += 1
        if path != wanted:
            self.report(case, f"took {path}, expected {wanted}")
        if result is not None and not (theirs and unsafe):
            self.compare(case, first, before, result, norms, sums, few)

    def compare(
        self,
        case: Case,
        x: Tensor,
        before: Tensor | None,
        result: Any,
        norms: Bounds,
        sums: Bounds,
        few: slice,
    ) -> None:
        results = result if isinstance(result, tuple) else (result,)
        bounds = (norms, sums)[: len(results)]
        for got, bound in zip(results, bounds, strict=True):
            if got.shape != x.shape or got.dtype != case.dtype:
                self.report(case, f"gave {got.dtype} {tuple(got.shape)}")
            elif not bound.hold(self.device.take(got).reshape(-1, case.hidden)[few]):
                self.report(case, "is not within vLLM's tolerances of float64")
        if before is not None and not torch.equal(self.device.take(x), before):
            self.report(case, "changed its input")

    def report(self, case: Case, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(f"{case}: {what}")


def main() -> None:
    name = sys.argv[1]
    torch.set_num_threads(1)
    load_general_plugins()
    config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    order = None
    if name == "xpu":
        compiled = VllmConfig(compilation_config=CompilationConfig(mode=3, compile_sizes=[1]))
        order = compiled.kernel_config.ir_op_priority.rms_norm
    with (
        set_current_vllm_config(config),
        config.kernel_config.ir_op_priority.set_priority(),
        ir.enable_torch_wrap(config.compilation_config.ir_enable_torch_wrap),
        counted() as counts,
        torch.no_grad(),
    ):
        matrix = Matrix(name, counts, order)
        matrix.run()
    from normport.layers import plugin

    record = {
        "plugin": plugin.OUTCOME,
        "size": size(),
        "cases": matrix.cases,
        "paths": dict(sorted(matrix.paths.items())),
        "guarded_paths": dict(sorted(matrix.guarded_paths.items())),
        "wrong": matrix.wrong,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
