"""vllm-musa's ops as provider, on stand-ins with its schemas: for dispatch, not for numbers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.distributed  # noqa: F401  # defines torch.ops.vllm

    from normport.layers.car_rmsnorm import factories, ops, providers
    from normport.layers.car_rmsnorm.agreement import difference
    from normport.layers.car_rmsnorm.reading import read_vllm

from car_pass_checks import TINY, config

pytestmark = pytest.mark.engine

GROUP = "tp:0"
SCHEMAS = providers.MUSA_SCHEMAS
CALLS: list[tuple[Any, ...]] = []


def _two(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    CALLS.append((x, *rest))
    if rest[-2] == 0.5:
        raise RuntimeError("the registered communicator did not accept this tensor")
    return x + 1, x + 2


def _three(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (*_two(x, *rest), x + 3)


class Registered:
    """The three ops for as long as a test lasts; a schema can be changed, None leaves one out."""

    def __init__(self, **changed: str | None) -> None:
        self.library = torch.library.Library("vllm", "FRAGMENT")
        for name, schema in (SCHEMAS | changed).items():
            if schema is None:
                continue
            self.library.define(name + schema)
            if schema.startswith("."):
                continue
            three = "no_raw" not in name and "residual" in name
            self.library.impl(name, _three if three else _two, "CompositeExplicitAutograd")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.library._destroy()
        for name in SCHEMAS:
            vars(torch.ops.vllm).pop(name, None)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    comm = SimpleNamespace(_comm_id=5, max_size=64 * 40 * 2)
    custom = SimpleNamespace(disabled=False, _jit_comm=comm)
    group = SimpleNamespace(
        unique_name=GROUP, rank=0, device_communicator=SimpleNamespace(ca_comm=custom)
    )
    monkeypatch.setattr("vllm.distributed.get_tp_group", lambda: group)
    CALLS.clear()
    return group


@pytest.fixture
def musa(group: Any) -> Iterator[Any]:
    with Registered():
        yield group


X = torch.ones(2, 64, dtype=torch.bfloat16)
W = torch.ones(64, dtype=torch.bfloat16)
LAST = (GROUP, "vllm-musa")


def test_without_the_ops_the_steps_are_composed() -> None:
    assert providers.available().name == "composed"


def test_the_ops_are_chosen_when_they_are_there(musa: Any) -> None:
    found = providers.available()
    assert (found.name, found.problem) == ("vllm-musa", None)
    assert found.provider is not None
    assert found.provider.unusable(musa) is None
    assert found.provider.max_rows(musa, 64, 2) == 40


OTHERS: dict[str, Callable[[str], tuple[str | None, str]]] = {
    "another name": lambda given: (given.replace("float eps", "float epsilon"), "epsilon"),
    "written to": lambda given: (given.replace("Tensor input", "Tensor(a!) input"), "(a!)"),
    "an int": lambda given: (given.replace("SymInt", "int"), ", int comm_id"),
    "one result less": lambda given: (given.replace(", Tensor)", ")"), "-> "),
    "missing": lambda _: (None, "missing"),
    "an overload only": lambda given: (f".other{given}", "as other only"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_another_schema_is_used_by_nobody(group: Any, name: str, other: str) -> None:
    schema, words = OTHERS[other](SCHEMAS[name])
    with Registered(**{name: schema}):
        found = providers.available()
    assert found.provider is None
    assert found.problem is not None
    assert name in found.problem
    assert words in found.problem


@pytest.mark.parametrize("broken", ["__init__.py", "fused_allreduce_rmsnorm_ops.py"])
def test_a_vllm_musa_that_cannot_be_imported_is_used_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    package = tmp_path / "vllm_musa"
    package.mkdir()
    for name in ("__init__.py", "fused_allreduce_rmsnorm_ops.py"):
        (package / name).write_text("import no_such_library\n" if name == broken else "")
    monkeypatch.syspath_prepend(tmp_path)
    found = providers.available()
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm_musa"]:
        del sys.modules[name]
    assert found.provider is None
    assert "cannot be loaded (No module named 'no_such_library')" in str(found.problem)


def test_each_op_goes_to_its_own_kernel_with_the_communicators_id(musa: Any) -> None:
    normed, reduced = ops.all_reduce_rms_norm(X, W, 1e-6, 1.0, *LAST)
    assert (float(normed[0, 0]), float(reduced[0, 0])) == (2.0, 3.0)
    x, weight, eps, comm_id = CALLS.pop()
    assert (x is X, weight.dtype, float(weight[0]), eps, comm_id) == (
        True,
        torch.float32,
        2.0,
        1e-6,
        5,
    )
    three = ops.all_reduce_add_rms_norm_raw(X, X, W, 1e-6, 0.0, False, *LAST)
    assert [float(t[0, 0]) for t in three] == [2.0, 3.0, 4.0]
    two = ops.all_reduce_add_rms_norm(X, X, W, 1e-6, 0.0, False, *LAST)
    assert [float(t[0, 0]) for t in two] == [2.0, 3.0]


def test_a_communicator_that_declines_is_a_named_error(musa: Any) -> None:
    with pytest.raises(providers.ProviderDeclinedError, match="did not accept"):
        ops.all_reduce_rms_norm(X, W, 0.5, 0.0, *LAST)
    with pytest.raises(providers.ProviderDeclinedError, match="round the sum"):
        ops.all_reduce_add_rms_norm(X, X, W, 1e-6, 0.0, True, *LAST)
    musa.device_communicator.ca_comm.disabled = True
    with pytest.raises(providers.ProviderDeclinedError, match="no JIT communicator"):
        ops.all_reduce_rms_norm(X, W, 1e-6, 0.0, *LAST)


class Stock:
    """A platform's communicator, with the custom all-reduce that the group has."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.ca_comm = given["device_group"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, {"provider's problem": None, "provider's rows": 40}),
        ({"max_size": 64 * 20 * 2}, {"provider's problem": None, "provider's rows": 20}),
        ({"_comm_id": None}, {"provider's rows": None}),
    ],
    ids=["as the others", "smaller buffer", "no communicator"],
)
def test_ranks_compare_what_their_communicators_allow(
    musa: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: dict[str, Any]
) -> None:
    stated: list[dict[str, Any]] = []
    monkeypatch.setattr(factories, "check_agreement", lambda mine, *_: stated.append(mine))
    monkeypatch.setattr(factories, "_stock", lambda _: Stock)
    monkeypatch.setattr(factories, "_table", lambda: (TINY,))
    current = config()
    current.compilation_config.compile_ranges_endpoints = [15, 16]
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: current)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr(ops, "_routes", {})
    custom = musa.device_communicator.ca_comm
    usual = factories._usability(read_vllm(current, (TINY,)), musa.device_communicator)
    vars(custom._jit_comm).update(change)
    made = factories.make_communicator(cpu_group=None, unique_name=GROUP, device_group=custom)
    assert made.given == {"cpu_group": None, "unique_name": GROUP, "device_group": custom}
    first, then = stated
    assert first["provider"] == "vllm-musa"
    assert then.items() >= said.items()
    assert (difference([usual, then]) is None) == (not change)
    assert list(ops._routes) == [GROUP]
