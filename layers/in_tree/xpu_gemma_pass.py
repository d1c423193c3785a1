"""Gemma's XPU kernel in the one-row graph of compile mode."""

import torch
from torch import fx

from vllm import envs, ir
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.config.utils import Range


class XpuGemmaRMSNormPass(InductorPass):
    """Recognizes ``weight.float() + 1.0`` before the IR is lowered.

    ``GemmaRMSNorm`` is traced to ``rms_norm`` with that float32 weight, which no kernel
    takes: it wants the raw weight, and subtracting the 1 again would not give it back.

    Only for the graph of one token, like the one-row providers, and without a residual:
    the fused kernel normalizes the rounded sum, what is compiled the unrounded one.
    Not in batch-invariant mode: more rows are reduced in another order.
    """

    def is_applicable_for_range(self, compile_range: Range) -> bool:
        one_row = compile_range.start == compile_range.end == 1
        return one_row and not envs.VLLM_BATCH_INVARIANT

    def __call__(self, graph: fx.Graph) -> None:
        self.replaced = 0
        if not hasattr(torch.ops.vllm, "xpu_gemma_rms_norm"):
            return
        for node in graph.find_nodes(
            op="call_function", target=ir.ops.rms_norm.torch_op
        ):
            x, weight, epsilon, *variance_size = node.args
            raw = self.raw_weight(weight)
            if raw is None or variance_size not in ([], [None]):
                continue
            if self.kernel_takes(x.meta["val"], raw.meta["val"]):
                self.replace(graph, node, x, raw, epsilon)
                self.replaced += 1

    @staticmethod
    def raw_weight(weight: fx.Node | None) -> fx.Node | None:
        """The ``weight`` of ``weight.float() + 1.0``, or None for anything else."""
        aten = torch.ops.aten
        if (
            weight is None
            or weight.target not in (aten.add.Tensor, aten.add.Scalar)
            or weight.kwargs.get("alpha", 1) != 1
        ):
            return None
        wide, one = weight.args
        if one != 1 or not isinstance(wide, fx.Node):
            return None
        if wide.meta["val"].dtype != torch.float32:
            return None
        casts = (
            aten._to_copy.default,
            torch.ops.prims.convert_element_type.default,
        )
        source = wide.args[0] if wide.target in casts else wide
        return source if isinstance(source, fx.Node) else None

    @staticmethod
    def kernel_takes(x: torch.Tensor, weight: torch.Tensor) -> bool:
        """What the graph fixes; ``xpu_gemma_rms_norm`` looks at addresses itself."""
        return (
            x.dtype == weight.dtype
            and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
            and x.device == weight.device
            and 2 <= x.ndim <= 4
            and all(type(size) is int and size > 0 for size in x.shape)
            and weight.ndim == 1
            and 1 < weight.shape[0] == x.shape[-1]
            and weight.is_contiguous()
            and x.is_contiguous()
        )

    @staticmethod
    def replace(
        graph: fx.Graph, node: fx.Node, x: fx.Node, raw: fx.Node, epsilon: float
    ) -> None:
        like = x.meta["val"]
        with graph.inserting_before(node):
            out = graph.call_function(
                torch.ops.aten.empty.memory_format,
                (list(like.shape),),
                {"dtype": like.dtype, "device": like.device, "pin_memory": False},
            )
            out.meta["val"] = node.meta["val"]
            graph.call_function(
                torch.ops.vllm.xpu_gemma_rms_norm.default, (out, x, raw, epsilon)
            )
        node.replace_all_uses_with(out)
        graph.erase_node(node)
