"""Post-grad graphs by hand: an all-reduce and what reads it, with fake values of symbolic rows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

HIDDEN = 64
GROUP = "tp:0"


class Graph:
    """Builds a graph node by node; every node gets the fake value that its op gives."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, hidden: int = HIDDEN) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.dtype = dtype
        real = torch.empty(8, hidden, dtype=dtype)
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
        with self.mode:
            self.example = self.mode.from_tensor(real, symbolic_context=context)

    def rows(self, name: str) -> fx.Node:
        """A placeholder of [rows, hidden]."""
        with self.mode:
            return self.given(name, torch.empty_like(self.example))

    def weight(self, name: str = "w", dtype: torch.dtype | None = None) -> fx.Node:
        with self.mode:
            return self.given(name, torch.empty(HIDDEN, dtype=dtype or self.dtype))

    def given(self, name: str, value: Tensor) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        return self.call(operator.getitem, node, index)

    def reduce(self, x: fx.Node, group: str = GROUP) -> fx.Node:
        return self.call(torch.ops.vllm.all_reduce.default, x, group)

    def norm(self, x: fx.Node, weight: Any, eps: float = 1e-6, *more: Any) -> fx.Node:
        return self.call(torch.ops.vllm_ir.rms_norm.default, x, weight, eps, *more)

    def fused_add(self, x: fx.Node, residual: fx.Node, weight: Any, *more: Any) -> fx.Node:
        more = more or (1e-6,)
        return self.call(torch.ops.vllm_ir.fused_add_rms_norm.default, x, residual, weight, *more)

    def gemma(self, weight: fx.Node) -> fx.Node:
        wide = self.call(torch.ops.prims.convert_element_type.default, weight, torch.float32)
        return self.call(torch.ops.aten.add.Tensor, wide, 1.0)

    def add(self, a: Any, b: Any, **kwargs: Any) -> fx.Node:
        return self.call(torch.ops.aten.add.Tensor, a, b, **kwargs)

    def done(self, *outputs: fx.Node) -> fx.Graph:
        self.graph.output(outputs)
        self.graph.lint()
        return self.graph
