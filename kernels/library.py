"""The ops in ``torch.ops.normport``: a provider is chosen where tracing does not look.

In traced code ``op(...)`` is the native function, which Inductor fuses with what is around it.
``torch_op(op)(...)`` is one node of the graph instead, and chooses a provider for the sizes of each
call. It has a fake implementation and no gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from normport.kernels.op import Op

NAMESPACE = "normport"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


@functools.cache
def torch_op(op: Op[..., Any]) -> Any:
    """``torch.ops.normport.<name>.default`` with the native function's parameters.

    Its results are contiguous whichever provider runs.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return _contiguous(op(*args, **kwargs))

    def fake(*args: Any, **kwargs: Any) -> Any:
        return _contiguous(op.native(*args, **kwargs))

    _library.define(op.name + torch.library.infer_schema(op.native, mutates_args=()))
    # Not decomposed when AOTAutograd normalizes the graph.
    _library.impl(op.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{op.name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), op.name).default


def _contiguous(result: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    if isinstance(result, Tensor):
        return result.contiguous()
    return tuple(part.contiguous() for part in result)
