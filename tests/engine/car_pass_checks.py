"""The fusion pass on graphs made by hand: what is fused, what is left, and what is said."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.compilation.passes import pass_manager
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.config import PassConfig
    from vllm.config.utils import Range
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )

    from normport.layers.car_rmsnorm import counts, fusion, ops, providers
    from normport.layers.car_rmsnorm.contract import CONTRACT, Cell, digest

from car_graphs import GROUP, HIDDEN, Graph

from normport.layers.car_rmsnorm.fusion import CarRmsNormPass
from normport.layers.car_rmsnorm.sites import ADD, FUSED_ADD, NORM

pytestmark = pytest.mark.engine

TINY = Cell("qwen3.5-dense", "tiny", 2, HIDDEN, "BF16", (16,), (15, 16))


def config(tp: int = 2, **text: Any) -> Any:
    hf = {"model_type": "qwen3_5_text", "hidden_size": HIDDEN, **text}
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            splitting_ops=[],
            use_inductor_graph_partition=False,
            pass_config=SimpleNamespace(fuse_allreduce_rms=True),
            mode=None,
            backend="inductor",
            compilation_time=2.5,
        ),
        optimization_level=2,
        device_config=None,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=1),
        model_config=SimpleNamespace(
            dtype=torch.bfloat16, enforce_eager=False, quantization=None, hf_config=hf
        ),
    )


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A group that fails when something is reduced: no pass may run a collective."""
    group = SimpleNamespace(unique_name=GROUP, rank=0, device_communicator=None)
    monkeypatch.setattr("vllm.distributed.get_tp_group", lambda: group)
    monkeypatch.setattr(counts, "_reports", [])
    monkeypatch.setattr(ops, "_routes", {})
    return group


def make(**changes: Any) -> CarRmsNormPass:
    return CarRmsNormPass(config(**changes), (TINY,))


def apply(graph: Any, start: int = 17, end: int = 64, pass_: CarRmsNormPass | None = None) -> Any:
    pass_ = pass_ or make()
    with pass_context(Range(start, end)):
        pass_(graph)
    graph.lint()
    for node in graph.nodes:
        assert node.op == "output" or "val" in node.meta, node
    return pass_.report.ranges[start, end]


def targets(graph: Any) -> list[str]:
    return [
        node.target._opname
        for node in graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]


def residual_free() -> Any:
    """The first norm of a model: the reduced tensor goes on as the residual."""
    g = Graph()
    reduced = g.reduce(g.rows("x"))
    return g.done(g.norm(reduced, g.gemma(g.weight())), reduced)


def fused_add(*, raw: bool = False, swapped: bool = False) -> Any:
    g = Graph()
    x, residual, weight = g.rows("x"), g.rows("residual"), g.weight()
    reduced = g.reduce(x)
    pair = (residual, reduced) if swapped else (reduced, residual)
    both = g.fused_add(*pair, weight)
    outputs = [g.item(both, 0), g.item(both, 1)]
    return g.done(*outputs, *([reduced] if raw else []))


def separate_add(*, swapped: bool = False, keep: bool = True) -> Any:
    g = Graph()
    x, residual, weight = g.rows("x"), g.rows("residual"), g.weight()
    reduced = g.reduce(x)
    total = g.add(residual, reduced) if swapped else g.add(reduced, residual)
    return g.done(g.norm(total, weight), *([total] if keep else []))


def test_a_norm_after_an_all_reduce() -> None:
    graph = residual_free()
    count = apply(graph)
    assert (count.matched, count.replaced, dict(count.forms)) == (1, 1, {NORM: 1})
    assert targets(graph)[-1] == "all_reduce_rms_norm"
    assert "all_reduce" not in targets(graph)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_fused_add_after_an_all_reduce(swapped: bool) -> None:
    graph = fused_add(swapped=swapped)
    count = apply(graph)
    assert (count.replaced, dict(count.forms)) == (1, {FUSED_ADD: 1})
    assert targets(graph) == ["all_reduce_add_rms_norm"]


def test_the_reduced_tensor_is_a_third_result_when_something_reads_it() -> None:
    graph = fused_add(raw=True)
    apply(graph)
    assert targets(graph) == ["all_reduce_add_rms_norm_raw"]
    output = list(graph.nodes)[-1]
    assert [node.args[1] for node in output.args[0]] == [0, 1, 2]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_an_add_of_its_own_between_them(swapped: bool, keep: bool) -> None:
    graph = separate_add(swapped=swapped, keep=keep)
    count = apply(graph)
    assert dict(count.forms) == {ADD: 1}
    assert targets(graph) == ["all_reduce_add_rms_norm"]
    op = next(node for node in graph.nodes if node.op == "call_function")
    assert op.args[5] is True, "the sum was rounded before the norm"


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 3e-7, 1])
def test_any_eps(eps: float) -> None:
    g = Graph()
    graph = g.done(g.norm(g.reduce(g.rows("x")), g.weight(), eps))
    assert apply(graph).replaced == 1
    op = next(node for node in graph.nodes if node.op == "call_function")
    assert op.args[2] == eps


def test_users_that_come_before_the_norm_are_kept() -> None:
    g = Graph()
    x, residual, weight = g.rows("x"), g.rows("residual"), g.weight()
    reduced = g.reduce(x)
    early = g.call(torch.ops.aten.mul.Tensor, reduced, 2.0)
    late = g.gemma(weight)
    both = g.fused_add(reduced, residual, late)
    graph = g.done(early, g.item(both, 0), g.item(both, 1))
    assert apply(graph).replaced == 1
    assert "all_reduce_add_rms_norm_raw" in targets(graph)
    assert targets(graph)[-1] == "mul"


def test_two_norms_of_one_reduction_share_it() -> None:
    g = Graph()
    reduced = g.reduce(g.rows("x"))
    graph = g.done(g.norm(reduced, g.weight("a")), g.norm(reduced, g.weight("b")))
    assert apply(graph).replaced == 1
    assert targets(graph) == ["all_reduce_rms_norm", "rms_norm"]


def test_a_chain_of_layers() -> None:
    g = Graph()
    residual = g.reduce(g.rows("x"))
    hidden = g.norm(residual, g.weight("w0"))
    for layer in range(3):
        both = g.fused_add(g.reduce(hidden), residual, g.weight(f"w{layer + 1}"))
        hidden, residual = g.item(both, 0), g.item(both, 1)
    graph = g.done(hidden, residual)
    count = apply(graph)
    assert (count.matched, count.replaced) == (4, 4)
    assert targets(graph) == ["all_reduce_rms_norm"] + ["all_reduce_add_rms_norm"] * 3


def test_the_first_norm_is_found_whoever_is_named_first_among_the_readers() -> None:
    g = Graph()
    residual = g.reduce(g.rows("x"))
    same = g.call(torch.ops.aten.alias.default, residual)
    both = g.fused_add(g.reduce(g.norm(same, g.weight("a"))), residual, g.weight("b"))
    # What removing a no-op leaves: its reader comes last among those of what it was made of.
    same.replace_all_uses_with(residual)
    g.graph.erase_node(same)
    graph = g.done(g.item(both, 0), g.item(both, 1))
    count = apply(graph)
    assert (count.matched, count.replaced) == (2, 2)
    assert targets(graph) == ["all_reduce_rms_norm", "all_reduce_add_rms_norm"]


def test_a_norm_that_cannot_be_fused_does_not_hide_one_that_can() -> None:
    g = Graph()
    reduced = g.reduce(g.rows("x"))
    graph = g.done(g.norm(reduced, None), g.norm(reduced, g.weight()))
    count = apply(graph)
    assert (count.matched, count.replaced, dict(count.skipped)) == (1, 1, {})
    assert targets(graph) == ["all_reduce_rms_norm", "rms_norm"]


def test_results_may_be_read_more_than_once_in_part_and_overwritten_later() -> None:
    g = Graph()
    x, residual = g.rows("x"), g.rows("residual")
    reduced = g.reduce(x)
    both = g.fused_add(reduced, residual, g.weight())
    normed = [g.item(both, 0), g.item(both, 0)]
    total = [g.item(both, 1), g.item(both, 1)]
    part = g.call(torch.ops.aten.slice.Tensor, total[1], 1, 0, 8)
    flat = g.call(torch.ops.aten.view.default, normed[1], [-1])
    g.call(torch.ops.aten.copy_.default, residual, total[0])
    g.call(torch.ops.aten.mul_.Tensor, reduced, 2.0)
    graph = g.done(normed[0], part, flat, reduced)
    assert apply(graph).replaced == 1
    assert targets(graph) == ["all_reduce_add_rms_norm_raw", "slice", "view", "copy_", "mul_"]
    read = [node for node in graph.nodes if node.target is operator.getitem]
    assert [node.args[1] for node in read] == [0, 1, 2]
    names = {node.target._opname: node for node in graph.nodes if hasattr(node.target, "_opname")}
    readers = [names[name].args[i] for name, i in (("view", 0), ("slice", 0), ("mul_", 0))]
    assert readers == read
    assert names["copy_"].args == (residual, read[1])


def test_two_reductions_of_one_norm_leave_one() -> None:
    g = Graph()
    both = g.fused_add(g.reduce(g.rows("x")), g.reduce(g.rows("y")), g.weight())
    graph = g.done(g.item(both, 0), g.item(both, 1))
    assert apply(graph).replaced == 1
    assert targets(graph) == ["all_reduce", "all_reduce_add_rms_norm"]


def test_results_share_no_memory() -> None:
    graph = fused_add(raw=True)
    apply(graph)
    values = [n.meta["val"] for n in graph.nodes if n.target is operator.getitem]
    assert len({v.untyped_storage()._cdata for v in values}) == len(values) == 3


def slice_of(g: Graph, name: str) -> Any:
    """Half of each of twice as wide rows."""
    both = g.call(torch.ops.aten.cat.default, [g.rows(name), g.rows(f"{name}2")], 1)
    return g.call(torch.ops.aten.slice.Tensor, both, 1, 0, HIDDEN)


def rows_known_at_run_time(g: Graph) -> Any:
    shape_env = g.mode.shape_env
    assert shape_env is not None
    with g.mode:
        value = torch.empty(shape_env.create_unbacked_symint(), HIDDEN, dtype=g.dtype)
    return g.given("x", value)


def norm_of_changed(g: Graph, changed: str, view: bool = False) -> Any:
    """A norm of a reduced tensor, after what was reduced or came of it is changed in place."""
    given, weight = g.rows("x"), g.weight()
    reduced = g.reduce(given)
    which = given if changed == "given" else reduced
    if view:
        which = g.call(torch.ops.aten.slice.Tensor, which, 1, 0, 8)
    g.call(torch.ops.aten.mul_.Tensor, which, 2.0)
    return g.norm(reduced, weight)


REFUSED: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "scaled residual": (
        lambda g: g.norm(g.add(g.reduce(g.rows("x")), g.rows("r"), alpha=2), g.weight()),
        "alpha",
    ),
    "added number": (
        lambda g: g.norm(g.add(g.reduce(g.rows("x")), 1.0), g.weight()),
        "residual",
    ),
    "variance size": (
        lambda g: g.norm(g.reduce(g.rows("x")), g.weight(), 1e-6, 32),
        "variance size",
    ),
    "no weight": (lambda g: g.norm(g.reduce(g.rows("x")), None), "weight"),
    "other weight dtype": (
        lambda g: g.norm(g.reduce(g.rows("x")), g.weight(dtype=torch.float16)),
        "dtype",
    ),
    "residual is the reduced tensor": (
        lambda g: (lambda r: g.item(g.fused_add(r, r, g.weight()), 0))(g.reduce(g.rows("x"))),
        "order",
    ),
    "residual depends on the reduced tensor": (
        lambda g: (
            lambda r: g.item(
                g.fused_add(r, g.call(torch.ops.aten.mul.Tensor, r, 2.0), g.weight()), 0
            )
        )(g.reduce(g.rows("x"))),
        "order",
    ),
    # Reducing it gives a dense tensor; the op's argument is not.
    "a slice that is reduced": (
        lambda g: g.norm(g.reduce(slice_of(g, "x")), g.weight()),
        "contiguity",
    ),
    "a slice as the residual": (
        lambda g: g.item(g.fused_add(g.reduce(g.rows("x")), slice_of(g, "r"), g.weight()), 0),
        "contiguity",
    ),
    "rows that the data decides": (
        lambda g: g.norm(g.reduce(rows_known_at_run_time(g)), g.weight()),
        "rows",
    ),
    "results that are counted from the end": (
        lambda g: g.item(g.fused_add(g.reduce(g.rows("x")), g.rows("r"), g.weight()), -2),
        "results",
    ),
    "what is reduced is overwritten": (lambda g: norm_of_changed(g, "given"), "order"),
    "the reduced tensor is changed in place": (lambda g: norm_of_changed(g, "reduced"), "order"),
    "a part of it is": (lambda g: norm_of_changed(g, "reduced", view=True), "order"),
    "results that are read as one": (
        lambda g: g.fused_add(g.reduce(g.rows("x")), g.rows("r"), g.weight()),
        "results",
    ),
    "three dimensions": (
        lambda g: g.norm(
            g.reduce(g.call(torch.ops.aten.unsqueeze.default, g.rows("x"), 0)), g.weight()
        ),
        "rank",
    ),
    "rows that are not tokens": (
        lambda g: g.norm(
            g.reduce(g.call(torch.ops.aten.cat.default, [g.rows("x"), g.rows("y")])), g.weight()
        ),
        "rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone_and_why(name: str) -> None:
    build, word = REFUSED[name]
    g = Graph()
    graph = g.done(build(g))
    before = targets(graph)
    count = apply(graph)
    assert (count.matched, count.replaced) == (1, 0)
    assert [why.split(":")[0] for why in count.skipped] == [word]
    assert targets(graph) == before


def test_arguments_may_be_given_by_name() -> None:
    g = Graph()
    x, residual, weight = g.rows("x"), g.rows("residual"), g.weight()
    reduced = g.call(torch.ops.vllm.all_reduce.default, tensor=x, group_name=GROUP)
    total = g.call(torch.ops.aten.add.Tensor, reduced, other=residual)
    norm = g.call(torch.ops.vllm_ir.rms_norm.default, x=total, weight=weight, epsilon=1e-6)
    graph = g.done(norm)
    assert apply(graph).replaced == 1
    op = next(node for node in graph.nodes if node.op == "call_function")
    assert op.args[:4] == (x, residual, weight, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_activations_in_another_dtype(dtype: torch.dtype) -> None:
    g = Graph(dtype=dtype)
    graph = g.done(g.norm(g.reduce(g.rows("x")), g.weight()))
    count = apply(graph)
    assert (count.matched, count.replaced) == (1, 0)


def test_another_hidden_size() -> None:
    g = Graph(hidden=2 * HIDDEN)
    with g.mode:
        weight = g.given("w", torch.empty(2 * HIDDEN, dtype=torch.bfloat16))
    graph = g.done(g.norm(g.reduce(g.rows("x")), weight))
    assert "hidden size" in next(iter(apply(graph).skipped))


def test_another_group_is_not_ours() -> None:
    g = Graph()
    graph = g.done(g.norm(g.reduce(g.rows("x"), "world:0"), g.weight()))
    assert apply(graph).matched == 0


@pytest.mark.parametrize(
    ("start", "end", "code"),
    [
        (16, 16, "native-range"),
        (15, 17, "native-range"),
        (1, 64, "native-range"),
        (17, 8193, "range-above"),
        (17, 2**31 - 1, "range-above"),
    ],
)
def test_a_range_with_a_native_row_is_left_alone(start: int, end: int, code: str) -> None:
    graph = fused_add()
    count = apply(graph, start, end)
    assert (count.fused, count.code) == (False, code)
    assert (count.matched, count.replaced) == (1, 0)
    assert targets(graph) == ["all_reduce", "fused_add_rms_norm"]


@pytest.mark.parametrize(("start", "end"), [(1, 15), (17, 17), (17, 8192)])
def test_a_range_without_one_is_fused(start: int, end: int) -> None:
    assert apply(fused_add(), start, end).replaced == 1


def test_tensor_parallel_one_makes_a_whole_object_that_does_nothing() -> None:
    pass_ = make(tp=1)
    graph = residual_free()
    count = apply(graph, pass_=pass_)
    assert pass_.decision.code == "tp1"
    assert (count.matched, count.replaced) == (0, 0)
    assert pass_.uuid()
    assert pass_.report.as_json()["state"] == "off"


def test_a_model_outside_the_contract_is_left_alone_with_the_reason() -> None:
    pass_ = make(hidden_size=128)
    assert apply(residual_free(), pass_=pass_).replaced == 0
    assert pass_.report.as_json()["code"] == "size"


def test_the_uuid_covers_table_config_group_and_limit(group: Any) -> None:
    seen = {make().uuid(), make(tp=1).uuid(), make(hidden_size=128).uuid()}
    seen.add(CarRmsNormPass(config(), (replace(TINY, native_rows=(17,)),)).uuid())
    group.rank = 1
    seen.add(make().uuid())
    group.rank = 0
    group.unique_name = "tp:1"
    seen.add(make().uuid())
    limited = make()
    limited.max_rows = 32
    seen.add(limited.uuid())
    off = make()
    off.flag = False
    seen.add(off.uuid())
    assert len(seen) == 8
    group.unique_name = GROUP
    assert make().uuid() == make().uuid()
    assert digest((TINY,)) != digest(CONTRACT)


def test_a_range_beyond_the_providers_limit_is_native() -> None:
    pass_ = make()
    pass_.max_rows = 40
    assert apply(fused_add(), 17, 64, pass_).code == "provider-rows"
    assert apply(fused_add(), 17, 40, pass_).replaced == 1


def test_the_report_counts_per_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counts.REPORT_VARIABLE, str(tmp_path))
    pass_ = make()
    for start, end in ((1, 15), (16, 16), (17, 64)):
        apply(fused_add(), start, end, pass_)
        apply(separate_add(), start, end, pass_)
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert (found["state"], found["provider"], found["compiled"]) == ("on", "composed", True)
    assert [(r["start"], r["end"], r["matched"], r["replaced"]) for r in found["ranges"]] == [
        (1, 15, 2, 2),
        (16, 16, 2, 0),
        (17, 64, 2, 2),
    ]
    assert found["ranges"][0]["forms"] == {FUSED_ADD: 1, ADD: 1}
    assert (found["matched"], found["replaced"]) == (6, 4)


def test_a_draft_models_pass_adds_to_the_ranks_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(counts.REPORT_VARIABLE, str(tmp_path))
    shared = config()
    model, draft = CarRmsNormPass(shared, (TINY,)), CarRmsNormPass(shared, (TINY,))
    other = make()
    for pass_ in (model, model, draft):
        apply(fused_add(), 17, 64, pass_)
    apply(separate_add(), 1, 15, draft)
    counts.conclude()
    (path,) = tmp_path.iterdir()
    # One of another engine in this process says its own.
    apply(fused_add(), 17, 64, other)
    assert json.loads(path.read_text())["replaced"] == 1
    counts.conclude()
    model.report.save()
    found = json.loads(path.read_text())
    assert [(r["start"], r["graphs"], r["replaced"]) for r in found["ranges"]] == [
        (1, 1, 1),
        (17, 3, 3),
    ]
    assert found["ranges"][1]["forms"] == {FUSED_ADD: 3}
    assert (found["matched"], found["replaced"], found["compile_seconds"]) == (4, 4, 2.5)
    assert [model.report.replaced, draft.report.replaced] == [2, 2]
    assert found["seconds"] == pytest.approx(model.report.seconds + draft.report.seconds, abs=1e-5)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda g: g.norm(g.rows("x"), g.weight()), "no all-reduce"),
        (lambda g: g.reduce(g.rows("x")), "no vllm_ir norm"),
        (
            lambda g: g.norm(
                g.call(torch.ops.aten.mul.Tensor, g.reduce(g.rows("x")), 2.0), g.weight()
            ),
            "no norm follows",
        ),
        (lambda g: g.norm(g.reduce(g.rows("x")), None), "no site passed the checks"),
    ],
)
def test_no_rewrite_is_a_warning_with_the_likely_cause(
    build: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    log = SimpleNamespace(warning=lambda text, *a: said.append(text % a), info=lambda *_: None)
    monkeypatch.setattr(counts, "logger", lambda: log)
    pass_ = make()
    g = Graph()
    apply(g.done(build(g)), pass_=pass_)
    counts.conclude()
    counts.conclude()
    assert len(said) == 1
    assert "0 rewrites" in said[0]
    assert words in said[0]


def test_what_was_done_is_said_once_by_the_first_rank(
    monkeypatch: pytest.MonkeyPatch, group: Any
) -> None:
    said: list[str] = []
    log = SimpleNamespace(
        info=lambda text, *a: said.append(text % a),
        debug=lambda *_: None,
        warning=lambda *_: pytest.fail("nothing to warn of"),
    )
    monkeypatch.setattr(counts, "logger", lambda: log)
    first = make()
    group.rank = 1
    second = make()
    for pass_ in (first, second):
        apply(fused_add(), 16, 16, pass_)
        apply(fused_add(), 17, 64, pass_)
    counts.conclude()
    counts.conclude()
    assert said == [
        "CAR-RMSNorm: 1 of 2 sites rewritten in the graphs compiled: "
        "0 of 1 in 16:16 (native-range), 1 of 1 in 17:64."
    ]
    assert first.report.as_json()["compile_seconds"] == 2.5


def test_a_pass_that_saw_no_graph_is_not_complained_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    log = SimpleNamespace(info=lambda text, *a: said.append(text % a))
    monkeypatch.setattr(counts, "logger", lambda: log)
    make()
    counts.conclude()
    assert len(said) == 1
    assert "no graph was compiled" in said[0]


def test_the_release_stumbles_over_true_off_cuda_but_not_over_what_we_set() -> None:
    flag = {"fuse_allreduce_rms": True}
    with pytest.raises((AttributeError, ImportError)):
        PassConfig(**flag).flashinfer_max_size(2)
    limited = PassConfig(**flag, fi_allreduce_fusion_max_size_mb=81.0)
    assert limited.flashinfer_max_size(2) == 81 * 2**20
    assert not hasattr(pass_manager, "AllReduceFusionPass"), "what it would construct"


@pytest.mark.parametrize(
    "name",
    ["all_reduce_rms_norm", "all_reduce_add_rms_norm", "all_reduce_add_rms_norm_raw"],
)
def test_the_schemas_state_no_mutation(name: str) -> None:
    schema = getattr(torch.ops.normport_car, name).default._schema
    assert not schema.is_mutable
    assert all(argument.alias_info is None for argument in (*schema.arguments, *schema.returns))


def test_the_fakes_give_the_shapes_of_symbolic_rows() -> None:
    g = Graph()
    x, r, w = g.rows("x"), g.rows("r"), g.weight()
    call = torch.ops.normport_car.all_reduce_add_rms_norm_raw.default
    node = g.call(call, x, r, w, 1e-6, 0.0, False, GROUP, "composed")
    assert [v.shape for v in node.meta["val"]] == [x.meta["val"].shape] * 3


@pytest.mark.parametrize("inherited", [True, False])
def test_a_communicator_that_reduces_in_place_gets_a_copy(inherited: bool) -> None:
    class Communicator(DeviceCommunicatorBase):  # type: ignore[misc]
        if not inherited:

            def all_reduce(self, input_: Any) -> Any:
                return input_.clone()

    communicator = Communicator.__new__(Communicator)
    given: list[torch.Tensor] = []
    group = SimpleNamespace(
        device_communicator=communicator,
        _all_reduce_out_place=lambda x: given.append(x) or x,
    )
    # On the CPU it is always a copy.
    x = torch.empty(2, HIDDEN, device="meta")
    providers._reduce(x, group)
    assert (given[0] is x) == (not inherited)


def test_the_ops_ask_the_contract_about_their_rows(group: Any) -> None:
    group._all_reduce_out_place = lambda x: x
    w = torch.ones(HIDDEN, dtype=torch.bfloat16)
    last = (1e-6, 0.0)

    def run(rows: int) -> None:
        x = torch.ones(rows, HIDDEN, dtype=torch.bfloat16)
        ops.all_reduce_rms_norm(x, w, *last, GROUP, "composed")
        for op in (ops.all_reduce_add_rms_norm, ops.all_reduce_add_rms_norm_raw):
            op(x, x, w, *last, False, GROUP, "composed")

    # By hand any number will do; once a pass has a group, its cell's.
    run(16)
    make()
    run(15)
    for rows in (16, 8193):
        x = torch.ones(rows, HIDDEN, dtype=torch.bfloat16)
        with pytest.raises(providers.NativeRowsError, match=f"Native: row count {rows} is "):
            ops.all_reduce_rms_norm(x, w, *last, GROUP, "composed")
        for op in (ops.all_reduce_add_rms_norm, ops.all_reduce_add_rms_norm_raw):
            with pytest.raises(providers.NativeRowsError, match=f"row count {rows} is "):
                op(x, x, w, *last, False, GROUP, "composed")


def test_errors_have_names(group: Any) -> None:
    x, w = torch.ones(2, HIDDEN, dtype=torch.bfloat16), torch.ones(HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(providers.WrongGroupError, match="world:0"):
        ops.all_reduce_rms_norm(x, w, 1e-6, 0.0, "world:0", "composed")
    with pytest.raises(providers.ProviderDeclinedError, match="no provider"):
        ops.all_reduce_rms_norm(x, w, 1e-6, 0.0, GROUP, "magic")
    with pytest.raises(providers.ProviderDeclinedError, match="weight"):
        ops.all_reduce_rms_norm(x, w.half(), 1e-6, 0.0, GROUP, "composed")
    with pytest.raises(providers.ProviderDeclinedError, match="contiguous"):
        ops.all_reduce_rms_norm(x.t().contiguous().t(), w, 1e-6, 0.0, GROUP, "composed")
    with pytest.raises(providers.ProviderDeclinedError, match="residual"):
        ops.all_reduce_add_rms_norm(x, x[:1], w, 1e-6, 0.0, False, GROUP, "composed")
    with pytest.raises(providers.ProviderDeclinedError, match="no JIT communicator"):
        ops.all_reduce_rms_norm(x, w, 1e-6, 0.0, GROUP, "vllm-musa")
    assert fusion.CarRmsNormPass
