"""Compare ``NormAddNorm``'s paths and the norms' ``forward_cpu`` on a vLLM tree; prints JSON.

    python norm_add_norm_check.py ROOT

ROOT has the layernorm.py that the patch makes.

A process of its own, because one process can hold the layers of one tree only.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normport.kernels.norm_add_norm import norm_add_norm
from normport.tools.source_norms import load_norms

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NORMS = ("gemma", "scale", "float32 scale", "none")
SHAPES = ((0, 64), (1, 64), (2, 769), (7, 128), (83, 64), (3, 4, 64))


class Check:
    def __init__(self, root: Path) -> None:
        self.norms = load_norms(root)
        # It imports the tree's vLLM, which stands now.
        self.module = importlib.import_module("normport.layers.in_tree.norm_add_norm")
        self.layer = self.module.NormAddNorm()

    def norm(self, kind: str, size: int, eps: float, dtype: torch.dtype) -> Any:
        torch.set_default_dtype(dtype)
        try:
            if kind == "gemma":
                norm = self.norms.gemma_rms_norm(size, eps)
            elif kind == "none":
                norm = self.norms.rms_norm(size, eps, has_weight=False)
            else:
                wide = torch.float32 if kind == "float32 scale" else None
                norm = self.norms.rms_norm(size, eps, dtype=wide)
        finally:
            torch.set_default_dtype(torch.float32)
        if isinstance(norm.weight, nn.Parameter):
            norm.weight.data.normal_()
        return norm

    def methods(self) -> dict[str, int]:
        """Elements in which ``forward_cpu`` of a norm differs from its native result."""
        differing = {"elements": 0, **dict.fromkeys(NORMS, 0)}
        for dtype, kind, shape in itertools.product(DTYPES.values(), NORMS, SHAPES):
            norm = self.norm(kind, shape[-1], 1e-5, dtype)
            x, residual = self.inputs(shape, dtype)
            given = x.clone(), norm.weight.clone()
            heads = torch.randn(5, 3, 2 * shape[-1]).to(dtype)[:, 1:, shape[-1] :]
            for case in (x, heads, x.double()):
                got, want = norm.forward_cpu(case), norm.forward_native(case)
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                differing[kind] += int((got != want).sum())
                differing["elements"] += want.numel()
            assert torch.equal(x, given[0])
            assert torch.equal(norm.weight, given[1])
            pairs = zip(
                norm.forward_cpu(x.clone(), residual.clone()),
                norm.forward_native(x.clone(), residual.clone()),
                strict=True,
            )
            differing[kind] += sum(int((got != want).sum()) for got, want in pairs)
        return differing

    def kept(self) -> dict[str, bool]:
        """Whether ``forward_cpu`` is the native path, by what the norm is."""
        x = self.inputs((2, 64), torch.bfloat16)[0]
        found = {}
        for kind, case in itertools.product(("gemma", "scale"), ("plain", "subclass", "priority")):
            norm = self.norm(kind, 64, 1e-6, torch.bfloat16)
            if case == "subclass":
                norm.__class__ = type("Subclass", (type(norm),), {})
            native, calls = norm.forward_native, []
            norm.forward_native = lambda *a, m=native, c=calls: (c.append(1), m(*a))[1]
            rms_norm = self.module.ir.ops.rms_norm
            priority = rms_norm.get_priority
            if case == "priority":
                rms_norm.get_priority = lambda: ["vllm_c", "native"]
            try:
                norm.forward_cpu(x)
            finally:
                rms_norm.get_priority = priority
            found[f"{kind}, {case}"] = bool(calls)
        return found

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        wide = torch.randn(*shape[:-1], 3 * shape[-1]).to(dtype)
        # A view of a wider tensor, as a slice of a projection is.
        return wide[..., : shape[-1]], torch.randn(shape).to(dtype) * 3

    def paths(self) -> dict[str, int]:
        """Elements in which a path's results differ from the two norms and the sum."""
        differing = {"native": 0, "cpu": 0, "definition": 0, "elements": 0}
        for (name, dtype), first, second, shape in itertools.product(
            DTYPES.items(), NORMS, NORMS, SHAPES
        ):
            del name
            post = self.norm(first, shape[-1], 1e-8, dtype)
            pre = self.norm(second, shape[-1], 1e-5, dtype)
            x, residual = self.inputs(shape, dtype)
            total = residual + post(x)
            expected = pre(total), total
            given = x.clone(), residual.clone()
            results = {
                "native": self.layer.forward_native(x, residual, post, pre),
                "cpu": self.layer.forward_cpu(x, residual, post, pre),
                "definition": norm_add_norm.native(
                    x,
                    residual,
                    None if first == "none" else post.weight.data,
                    None if second == "none" else pre.weight.data,
                    1e-8,
                    1e-5,
                    offset1=first == "gemma",
                    wide1=first == "gemma",
                    offset2=second == "gemma",
                    wide2=second == "gemma",
                ),
            }
            assert torch.equal(x, given[0])
            assert torch.equal(residual, given[1])
            for path, found in results.items():
                for got, want in zip(found, expected, strict=True):
                    assert got.dtype == want.dtype
                    assert got.shape == want.shape
                    differing[path] += int((got != want).sum())
            differing["elements"] += 2 * total.numel()
        return differing

    def called(self) -> dict[str, bool]:
        """Whether a norm is called as a module on the CPU's eager path, by what it is."""
        x, residual = self.inputs((2, 64), torch.float32)
        found = {}

        class Subclass(self.norms.gemma_rms_norm):  # type: ignore[misc, name-defined]
            pass

        for name in ("plain", "hook", "subclass", "priority"):
            norm = self.norm("gemma", 64, 1e-6, torch.float32)
            other = self.norm("gemma", 64, 1e-6, torch.float32)
            if name == "subclass":
                norm = Subclass(64, 1e-6)
            calls: list[int] = []
            method = norm.forward_native
            norm.forward_native = lambda *a, m=method, c=calls: (c.append(1), m(*a))[1]
            if name == "hook":
                norm.register_forward_hook(lambda *_: None)
            rms_norm = self.module.ir.ops.rms_norm
            priority = rms_norm.get_priority
            if name == "priority":
                rms_norm.get_priority = lambda: ["vllm_c", "native"]
            try:
                self.layer.forward_cpu(x, residual, norm, other)
            finally:
                rms_norm.get_priority = priority
            found[name] = bool(calls)
        return found

    def traced(self) -> bool:
        """Whether the layer, its norms passed in, is one graph that computes the same."""
        post, pre = (self.norm("gemma", 64, eps, torch.bfloat16) for eps in (1e-8, 1e-5))
        x, residual = self.inputs((3, 64), torch.bfloat16)

        def step(x: torch.Tensor, residual: torch.Tensor) -> Any:
            return self.layer.forward_cpu(x, residual, post, pre)

        compiled = torch.compile(step, fullgraph=True, backend="eager")
        pairs = zip(compiled(x, residual), step(x, residual), strict=True)
        return all(torch.equal(got, want) for got, want in pairs)


def main() -> None:
    torch.manual_seed(5)
    check = Check(Path(sys.argv[1]))
    with check.module.ir.ops.rms_norm.set_priority(["native"]):
        with torch.inference_mode():
            record: dict[str, Any] = {
                "paths": check.paths(),
                "methods": check.methods(),
                "called": check.called(),
                "kept": check.kept(),
            }
        record["traced"] = check.traced()
    record["state"] = list(check.layer.state_dict())
    print(json.dumps(record))


if __name__ == "__main__":
    main()
