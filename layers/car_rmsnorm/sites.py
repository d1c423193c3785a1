"""Sites in a post-grad graph where a norm follows an all-reduce, and what is wrong with one.

Everything is judged from the nodes' fake values; nothing runs and no guard is added.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

NORM = "all_reduce+rms_norm"
FUSED_ADD = "all_reduce+fused_add_rms_norm"
ADD = "all_reduce+add+rms_norm"


@dataclass(frozen=True)
class Site:
    """One all-reduce and the norm after it.

    form: one of the three above. add: the node that adds the residual, in form ADD. normed and
    total: the nodes whose users take the op's results (the reduced tensor's users are the
    all-reduce's).
    """

    form: str
    reduce: fx.Node
    norm: fx.Node
    add: fx.Node | None
    residual: Any
    weight: Any
    eps: Any
    variance_size: Any

    @property
    def consumed(self) -> tuple[fx.Node, ...]:
        """The nodes that the op replaces."""
        return (self.reduce, self.norm) if self.add is None else (self.reduce, self.add, self.norm)

    @property
    def raw_users(self) -> list[fx.Node]:
        """Who else reads the reduced tensor."""
        return [user for user in self.reduce.users if user not in self.consumed]


@dataclass(frozen=True)
class Limits:
    """What the pass fuses: the model's hidden size and dtype, and the range's rows."""

    hidden_size: int
    dtype: torch.dtype
    start: int
    end: int


def all_reduces(graph: fx.Graph, group: str, comm_id: int | None) -> Iterator[fx.Node]:
    """The all-reduces over the tensor-parallel group; those over another group are not ours."""
    musa = getattr(torch.ops.vllm, "musa_jit_custom_all_reduce", None)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is torch.ops.vllm.all_reduce.default:
            if argument(node, 1, "group_name") == group:
                yield node
        elif (
            comm_id is not None
            and musa is not None
            and node.target is musa.default
            and argument(node, 1, "comm_id") == comm_id
        ):
            yield node


def norms(graph: fx.Graph) -> int:
    """How many vLLM norms a graph has."""
    targets = (_rms_norm(), _fused_add())
    return sum(node.op == "call_function" and node.target in targets for node in graph.nodes)


def sites_of(reduce: fx.Node) -> Iterator[Site]:
    """Each norm that reads an all-reduce, directly or through an add; the direct ones first.

    More than one is common: a model's first norm, and the next layer's that takes the reduced
    tensor as its residual. The order of a node's users is not the graph's.
    """
    for user in reduce.users:
        if user.op != "call_function":
            continue
        if user.target is _fused_add():
            x, residual = argument(user, 0, "x"), argument(user, 1, "x_residual")
            # The sum is the same either way round.
            other = residual if x is reduce else x
            yield _site(FUSED_ADD, reduce, user, None, other, first=2)
        elif user.target is _rms_norm() and argument(user, 0, "x") is reduce:
            yield _site(NORM, reduce, user, None, None, first=1)
    for user in reduce.users:
        if user.target is not torch.ops.aten.add.Tensor:
            continue
        a, b = argument(user, 0, "self"), argument(user, 1, "other")
        for norm in user.users:
            if norm.target is _rms_norm() and argument(norm, 0, "x") is user:
                yield _site(ADD, reduce, norm, user, b if a is reduce else a, first=1)


def problem(site: Site, limits: Limits) -> str | None:
    """Why a site cannot be fused, as a short phrase that can be counted; None if it can."""
    reduced = _value(site.reduce)
    weight = _value(site.weight)
    given = _value(argument(site.reduce, 0, "tensor"))
    if reduced is None or given is None:
        return "value: the all-reduce has no fake value"
    if weight is None:
        return "weight: the norm has none"
    if site.variance_size is not None:
        return "variance size: the norm looks at a part of the row"
    if not isinstance(site.eps, int | float):
        return "eps: it is not a number"
    if site.add is not None and site.add.kwargs.get("alpha", 1) != 1:
        return "alpha: the residual is scaled"
    # A slice may be reduced too; what comes out of it is dense, what the op would get is not.
    tensors = [given, reduced]
    if site.form != NORM:
        residual = _value(site.residual)
        if residual is None:
            return "residual: it is not a tensor"
        tensors.append(residual)
    for tensor in tensors:
        wrong = _tensor_problem(tensor, limits)
        if wrong is not None:
            return wrong
    if not statically_known_true(tensors[-1].shape[0] == reduced.shape[0]):
        return "residual: it has other rows"
    if weight.dtype not in (limits.dtype, torch.float32):
        return f"dtype: the weight is in {weight.dtype}"
    if weight.dim() != 1 or weight.shape[0] != limits.hidden_size or not _contiguous(weight):
        return "weight: it is not one dense row"
    if any(_depends(argument, site.reduce) for argument in (site.residual, site.weight)):
        return "order: the residual or the weight depends on the reduced tensor"
    if _writes_between(site.reduce, site.norm):
        # The op reduces where the norm stood, and takes readers that stood before it along.
        return "order: something is written between the all-reduce and the norm"
    return None


def _site(
    form: str, reduce: fx.Node, norm: fx.Node, add: fx.Node | None, residual: Any, *, first: int
) -> Site:
    return Site(
        form,
        reduce,
        norm,
        add,
        residual,
        weight=argument(norm, first, "weight"),
        eps=argument(norm, first + 1, "epsilon"),
        variance_size=argument(norm, first + 2, "variance_size"),
    )


def _tensor_problem(tensor: Tensor, limits: Limits) -> str | None:
    if tensor.dtype != limits.dtype:
        return f"dtype: the activations are in {tensor.dtype}"
    if tensor.dim() != 2:
        return f"rank: the tensor has {tensor.dim()} dimensions"
    if not statically_known_true(tensor.shape[1] == limits.hidden_size):
        return f"hidden size: {tensor.shape[1]} is not the model's"
    rows: Any = tensor.shape[0]
    if isinstance(rows, torch.SymInt):
        # The range is about tokens; rows that are computed from them are another number, and so
        # are those that are only known once it ran.
        if not rows.node.expr.is_Symbol or free_unbacked_symbols(rows):
            return "rows: they are not the number of tokens"
    elif not limits.start <= rows <= limits.end:
        return "rows: they lie outside the range"
    if not _contiguous(tensor):
        return "contiguity: the tensor is not dense"
    return None


def _contiguous(tensor: Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def _depends(node: Any, ancestor: fx.Node) -> bool:
    """Whether a node is computed from another one."""
    if not isinstance(node, fx.Node):
        return False
    seen = {node}
    todo = [node]
    while todo:
        current = todo.pop()
        if current is ancestor:
            return True
        for before in current.all_input_nodes:
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return False


def _writes_between(first: fx.Node, last: fx.Node) -> bool:
    """Whether an op that mutates something stands between two nodes of a graph."""
    node = first.next
    while node is not last and node.op != "root":
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return True
        node = node.next
    return False


def results(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The getitem nodes of a node with two results; None when something else reads it."""
    found: dict[int, list[fx.Node]] = {}
    for user in node.users:
        index = user.args[1] if user.target is operator.getitem else None
        if not isinstance(index, int) or not 0 <= index <= 1:
            return None
        found.setdefault(index, []).append(user)
    return found


def argument(node: fx.Node, index: int, name: str) -> Any:
    """An argument of a node, given by place or by name; None where it is left out."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _rms_norm() -> Any:
    return torch.ops.vllm_ir.rms_norm.default


def _fused_add() -> Any:
    return torch.ops.vllm_ir.fused_add_rms_norm.default
