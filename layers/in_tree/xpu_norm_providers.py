"""Two guarded IR providers of ``rms_norm`` on XPU, and where they stand in the order.

``xpu_fp16_row`` is the decode norm of one sequence: one float16 row with its weight.
``xpu_weightless_qk`` is the weightless norm of one token's heads. Both run the kernel
that ``vllm_c`` runs; with ``compile_sizes=[1]`` they bring it into the one-row graph,
where ``native`` would stand, and every other range stays with Inductor. Where
``vllm_c`` stands first, as in eager mode, the kernel runs already, and without a graph
of one known size none could take it: there the order is left alone, because a provider
that declines costs a call outside of a graph some microseconds.

The guards are plain predicates that say why not. What depends on a size is looked at in
``supports_args`` alone: lowering asks it with the graph's sizes, and a symbolic one is
always refused, because vLLM drops the guards that would make a choice by it safe.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm import envs, ir
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform

logger = init_logger(__name__)


class Limit(NamedTuple):
    """The sizes from ``low`` to ``high`` that a path takes, both included."""

    low: int
    high: int
    why: str


LIMITS = {
    "row.rows": Limit(
        1,
        1,
        "one sequence's decode step; Inductor fuses more rows with neighbors",
    ),
    "row.hidden": Limit(
        2, 2**20, "the kernel throws for some strides of one element; above is no model"
    ),
    "qk.rows": Limit(
        1,
        128,
        "the heads of one token; no model has more, so more are tokens",
    ),
    "qk.head_dim": Limit(
        16,
        256,
        "the head sizes of attention; a wider weightless norm is another",
    ),
}
"""Every size that a guard compares with, and the reason for it."""

PRIORITY = {"rms_norm": ("xpu_fp16_row", "xpu_weightless_qk")}
"""The providers to put before ``native``, per op, where a graph of one known size is
compiled. An order that a user chose is left alone."""

_ROWS, _HIDDEN = LIMITS["row.rows"], LIMITS["row.hidden"]
_HEADS, _HEAD_DIM = LIMITS["qk.rows"], LIMITS["qk.head_dim"]
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_KERNEL_ARGUMENTS = [
    ("Tensor", True),
    ("Tensor", False),
    ("Optional[Tensor]", False),
    ("float", False),
]


def kernel_refused() -> str | None:
    """Why ``_C.rms_norm`` is not called on this platform, or None.

    The names of its arguments may differ; what they are and which is written may not.
    """
    if not current_platform.is_xpu():
        return "not an XPU"
    if not hasattr(torch.ops._C, "rms_norm"):
        return "no _C.rms_norm"
    schema = torch.ops._C.rms_norm.default._schema
    found = [
        (str(argument.type), bool(argument.alias_info and argument.alias_info.is_write))
        for argument in schema.arguments
    ]
    if found != _KERNEL_ARGUMENTS or schema.returns:
        logger.warning("normalization kernel not used, unknown schema: %s", schema)
        return "unknown schema of _C.rms_norm"
    return None


def fp16_row_refused(
    x: Tensor, weight: Tensor | None, variance_size: int | None = None
) -> str | None:
    """Why ``x`` is not one float16 row ``[1, hidden]`` with its weight, or None.

    ``[1, heads, head_dim]`` is not one row. The first question is the one that most
    other calls answer with no.
    """
    if weight is None:
        return "no weight"
    if x.dtype is not torch.float16:
        return "not float16"
    if x.ndim != 2:
        return "not 2-D"
    if torch.compiler.is_dynamo_compiling():
        return "traced"
    rows, hidden = x.shape
    if type(rows) is not int or type(hidden) is not int:
        return "symbolic size"
    if not _ROWS.low <= rows <= _ROWS.high:
        return "rows outside the limits"
    if not _HIDDEN.low <= hidden <= _HIDDEN.high:
        return "last dimension outside the limits"
    if weight.dtype is not torch.float16:
        return "weight of another dtype"
    if weight.ndim != 1 or weight.shape[0] != hidden:
        return "weight of another shape"
    if weight.device != x.device:
        return "weight on another device"
    if not weight.is_contiguous():
        return "weight not contiguous"
    if not x.is_contiguous():
        return "input not contiguous"
    if variance_size is not None:
        return "variance of a part"
    return None


def weightless_qk_refused(
    x: Tensor, weight: Tensor | None, variance_size: int | None = None
) -> str | None:
    """Why ``x`` is not the heads ``[heads, head_dim]`` of a token, or None.

    Rows may lie apart, as in a view of qkv; each must be dense and none overlap.
    """
    if weight is not None:
        return "has a weight"
    if x.ndim != 2:
        return "not 2-D"
    if x.dtype not in _DTYPES:
        return "dtype without a kernel"
    if torch.compiler.is_dynamo_compiling():
        return "traced"
    rows, head_dim = x.shape
    if type(rows) is not int or type(head_dim) is not int:
        return "symbolic size"
    if not _HEAD_DIM.low <= head_dim <= _HEAD_DIM.high:
        return "last dimension outside the limits"
    if not _HEADS.low <= rows <= _HEADS.high:
        return "rows outside the limits"
    row_stride, stride = x.stride()
    if stride != 1 or (rows > 1 and row_stride < head_dim):
        return "rows not dense"
    if variance_size is not None:
        return "variance of a part"
    return None


def supports_fp16_row(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return fp16_row_refused(x, weight, variance_size) is None


def supports_weightless_qk(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return weightless_qk_refused(x, weight, variance_size) is None


KERNEL_REFUSED = kernel_refused()
"""Why neither provider is supported here, or None."""


@ir.ops.rms_norm.register_impl(
    "xpu_fp16_row",
    supports_args=supports_fp16_row,
    supported=KERNEL_REFUSED is None,
)
def fp16_row(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    output = torch.empty_like(x)
    torch.ops._C.rms_norm.default(output, x, weight, epsilon)
    return output


@ir.ops.rms_norm.register_impl(
    "xpu_weightless_qk",
    supports_args=supports_weightless_qk,
    supported=KERNEL_REFUSED is None,
)
def weightless_qk(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    # The kernel writes contiguous rows, whatever the strides of x.
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.ops._C.rms_norm.default(output, x, None, epsilon)
    return output


def why_not_placed(vllm_config: VllmConfig) -> str | None:
    """Why the providers do not belong first in ``vllm_config``, or None."""
    if KERNEL_REFUSED is not None:
        return KERNEL_REFUSED
    if envs.VLLM_BATCH_INVARIANT:
        # The order of the kernel's reductions depends on the number of tokens.
        return "batch-invariant mode"
    compilation = vllm_config.compilation_config
    one_row_range = 1 in (compilation.compile_ranges_endpoints or ())
    order = vllm_config.kernel_config.ir_op_priority
    default = current_platform.get_default_ir_op_priority(vllm_config)
    for op, providers in PRIORITY.items():
        current = getattr(order, op)
        if current[: len(providers)] == list(providers):
            continue
        if current != getattr(default, op):
            return f"the order for {op} is the user's own"
        if current[0] != "native":
            return f"{current[0]} stands first and runs the kernel"
        if not compilation.compile_sizes and not one_row_range:
            return "no graph of one known size is compiled"
    return None


def place_norm_providers(vllm_config: VllmConfig) -> str | None:
    """Put the providers first in ``vllm_config``, or say why they were not.

    To be called after the defaults that look at the first provider, or fusion passes
    would be switched with them. A second call changes nothing.
    """
    reason = why_not_placed(vllm_config)
    if reason is not None:
        return reason
    order = vllm_config.kernel_config.ir_op_priority
    for op, providers in PRIORITY.items():
        others = [name for name in getattr(order, op) if name not in providers]
        setattr(order, op, [*providers, *others])
    return None
