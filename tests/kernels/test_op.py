"""The registry: what a call runs, what ``choose`` says about it, and the torch ops."""

from __future__ import annotations

import pytest
import torch
from norm_cases import draw
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from normport.kernels import op as registry
from normport.kernels.library import torch_op
from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.op import Choice, Op, op
from normport.kernels.qk_norm import qk_norm
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

ran: list[str] = []


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Op[..., Tensor]:
    """An op that doubles; on the CPU ``first`` takes rows and ``second`` anything."""
    ran.clear()
    monkeypatch.setattr(registry, "OPS", {})
    monkeypatch.setitem(registry.PRIORITY, "cpu", ("missing", "broken", "first", "second"))

    @op
    def double(x: Tensor, times: int = 1) -> Tensor:
        ran.append("native")
        return x * 2 * times

    def rows_only(x: Tensor, times: int = 1) -> str | None:
        return None if x.dim() == 2 else Reason.RANK

    @double.provider("broken", supported=lambda: Reason.NOT_INSTALLED)
    def broken(x: Tensor, times: int = 1) -> Tensor:
        raise AssertionError("it is not supported")

    @double.provider("first", supports_args=rows_only)
    def first(x: Tensor, times: int = 1) -> Tensor:
        ran.append("first")
        return x * 2 * times

    @double.provider("second", supported=lambda: None)
    def second(x: Tensor, times: int = 1) -> Tensor:
        ran.append("second")
        return x * 2 * times

    return double


def test_the_first_provider_that_takes_the_call_runs(double: Op[..., Tensor]) -> None:
    assert torch.equal(double(torch.ones(2, 2), times=3), torch.full((2, 2), 6.0))
    double(torch.ones(2))
    assert ran == ["first", "second"]


def test_the_first_argument_may_be_named(double: Op[..., Tensor]) -> None:
    assert torch.equal(double(x=torch.ones(2, 2)), torch.full((2, 2), 2.0))
    assert double.choose(times=2, x=torch.ones(2, 2)).provider == "first"
    assert ran == ["first"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        double(times=2)


def test_choose_says_what_would_run_and_why_others_would_not(double: Op[..., Tensor]) -> None:
    broken = ("broken", Reason.NOT_INSTALLED)
    assert double.choose(torch.ones(2, 2)) == Choice("first", (broken,))
    assert double.choose(torch.ones(2)) == Choice("second", (broken, ("first", Reason.RANK)))
    assert double.choose(torch.ones(2, 2, device="meta")) == Choice("native")
    assert ran == []


def test_a_device_without_providers_runs_the_native_function(double: Op[..., Tensor]) -> None:
    double(torch.ones(2, 2, device="meta"))
    assert ran == ["native"]


def test_support_is_asked_once_and_again_after_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "OPS", {})
    monkeypatch.setitem(registry.PRIORITY, "cpu", ("late",))
    answers: list[str | None] = [Reason.OP_MISSING, None]

    @op
    def one(x: Tensor) -> Tensor:
        return x + 1

    @one.provider("late", supported=lambda: answers.pop(0))
    def late(x: Tensor) -> Tensor:
        return x + 100

    x = torch.zeros(1)
    assert [one(x).item(), one(x).item()] == [1, 1]
    one.refresh()
    assert [one(x).item(), one(x).item()] == [100, 100]


def test_a_provider_has_the_natives_parameters_and_a_name_of_its_own(
    double: Op[..., Tensor],
) -> None:
    def other(x: Tensor, times: int = 2) -> Tensor:
        return x

    def guard(y: Tensor, times: int = 1) -> str | None:
        return None

    with pytest.raises(ValueError, match="provider third of double takes"):
        double.provider("third")(other)
    with pytest.raises(ValueError, match="guard of provider third of double takes"):
        double.provider("third", supports_args=guard)(double.native)
    with pytest.raises(ValueError, match="already has a provider first"):
        double.provider("first")(double.native)
    with pytest.raises(ValueError, match="double is already defined"):
        op(double.native)


def test_every_policy_names_providers_that_exist() -> None:
    rms_norm.candidates("cpu")
    known = {name for each in registry.OPS.values() for name in each.providers}
    assert {name for names in registry.PRIORITY.values() for name in names} <= known


def test_fake_tensors_run_the_native_function() -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(draw(7, 64))
        z, y = norm_add_norm(x, x, None, None, 1e-8, 1e-5)
        choice = norm_add_norm.choose(x, x, None, None, 1e-8, 1e-5)
    assert z.shape == y.shape == (7, 64)
    assert choice.provider == "native"
    assert dict(choice.skipped)["cpu"] == Reason.TRACED


def calls() -> list[tuple[Op[..., object], tuple[object, ...]]]:
    qkv = draw(5, 12 * 16)
    q, k, _ = qkv.split([8 * 16, 2 * 16, 2 * 16], dim=-1)
    heads = (q.unflatten(-1, (8, 16)), k.unflatten(-1, (2, 16)))
    return [
        (rms_norm, (draw(7, 64), draw(64), 1e-6)),
        (rms_norm, (draw(7, 192)[:, :64], draw(64), 1e-6, None, True, True)),
        (norm_add_norm, (draw(7, 64), draw(7, 64), draw(64), None, 1e-8, 1e-5, True, True)),
        (qk_norm, (*heads, None, None, 1e-5, False, False, 0.5)),
    ]


@pytest.mark.parametrize("index", range(4))
def test_the_torch_ops_pass_torchs_own_check(index: int) -> None:
    called, args = calls()[index]
    torch.library.opcheck(
        torch_op(called),
        args,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_traced_code_has_no_graph_break_and_one_graph_for_all_row_counts() -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    opaque_op = torch_op(norm_add_norm)

    def block(x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        plain = norm_add_norm(x, residual, None, None, 1e-8, 1e-5)
        opaque = opaque_op(x, residual, None, None, 1e-8, 1e-5)
        return (*plain, *opaque)

    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=True)
    for rows in (2, 7, 83):
        x, residual = draw(rows, 64), draw(rows, 64)
        z, y, opaque_z, opaque_y = compiled(x, residual)
        wanted = norm_add_norm.native(x, residual, None, None, 1e-8, 1e-5)
        assert torch.equal(z, wanted[0])
        assert torch.equal(y, wanted[1])
        provided = norm_add_norm(x, residual, None, None, 1e-8, 1e-5)
        assert torch.equal(opaque_z, provided[0])
        assert torch.equal(opaque_y, provided[1])
    assert len(graphs) == 1
    opaque = [n for n in graphs[0].graph.nodes if n.target == opaque_op]
    assert len(opaque) == 1
