"""Tensors whose values are not what lies at their address: kernels get the address only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from normport.kernels.guards import readable
from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.op import Op
from normport.kernels.providers import triton
from normport.kernels.qk_norm import qk_norm
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm


class Wrapped(Tensor):
    """Holds its values in another tensor, as DTensor does, and has no memory of its own."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> Wrapped:
        made: Wrapped = Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device=values.device
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def inner(value: Any) -> Any:
            return value.values if isinstance(value, Wrapped) else value

        return function(*tree_map(inner, args), **tree_map(inner, kwargs or {}))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


X, W = draw(3, 2, 16), draw(16)
ODD = {"negated": torch._neg_view, "wrapped": Wrapped}
CALLS: list[tuple[Op[..., Any], tuple[Any, ...]]] = [
    (rms_norm, (X, W, 1e-6)),
    (norm_add_norm, (X, X + 1, W, W, 1e-6, 1e-5)),
    (qk_norm, (X, X[:, :1], W, W, 1e-6)),
    (qk_norm, (X, X[:, :1], None, None, 1e-6)),
]
PLACES = [
    (op, args, place)
    for op, args in CALLS
    for place, value in enumerate(args)
    if isinstance(value, Tensor)
]


def parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("op", "args", "place"), PLACES)
def test_what_has_no_values_at_its_address_is_computed_natively(
    op: Op[..., Any], args: tuple[Any, ...], place: int, odd: str
) -> None:
    given = (*args[:place], ODD[odd](args[place]), *args[place + 1 :])
    for found, wanted in zip(parts(op(*given)), parts(op.native(*given)), strict=True):
        assert torch.equal(found, wanted)
    for name in ("cpu", "triton"):
        guard = op.providers[name].supports_args
        assert guard is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton, "_device_type", lambda: "cpu")
            assert guard(*args) is None
            assert guard(*given) == Reason.NO_MEMORY


def test_a_key_on_another_device_is_left() -> None:
    """There it has another address space, and on ``meta`` none at all."""
    key = torch.empty(3, 1, 16, device="meta")
    for name in ("cpu", "triton"):
        for weights in ((None, None), (W, W)):
            assert qk_norm.providers[name].why_not(X, key, *weights, 1e-6) == Reason.DEVICE


def test_what_has_its_values_at_its_address() -> None:
    class Named(torch.nn.Parameter):
        """As vLLM's parameters that know how they are loaded."""

    assert readable(X)
    assert readable(X[:, 1:])
    assert readable(torch.nn.Parameter(W))
    assert readable(Named(W))
    assert not readable(FakeTensorMode().from_tensor(X))
