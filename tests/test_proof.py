"""The proof tells equal from rounded from different, and survives whatever a case does."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from normport.codemods.model import CallForm, ProofCase, WeightKind
from normport.tools import proof, proof_compare
from normport.tools.errors import UserError
from normport.tools.proof import Equivalence, prove
from normport.tools.proof_session import Session, load_tree
from normport.tools.sources import resolve
from normport.tools.tree import SourceTree

# A fork of a process with threads, which the test runner may have.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

DTYPES = {"float32", "float16", "bfloat16"}
FLOAT32 = "RMSNorm(SIZE, eps=EPS, dtype=torch.float32)"
PLAIN = "RMSNorm(SIZE, eps=EPS)"
WEIGHTLESS = "RMSNorm(SIZE, eps=EPS, has_weight=False)"
GEMMA = "GemmaRMSNorm(SIZE, eps=EPS)"

MODULE = """
import torch
from torch import nn


class Local(nn.Module):
    def __init__(self, size, eps, shape=None):
        super().__init__()
        self.eps = eps
        if size is not None:
            self.weight = nn.Parameter(torch.zeros(shape or size))

    def normed(self, x, dim=-1):
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(dim, keepdim=True) + self.eps)

    def forward(self, x):
        {body}
"""
IN_FLOAT32 = "return (self.normed(x) * self.weight.float()).to(x.dtype)"


def local(
    body: str,
    new: str = FLOAT32,
    weight: WeightKind = "scale",
    old: str = "Local(SIZE, EPS)",
    before: str = "",
) -> ProofCase:
    lines = f"\n{' ' * 8}".join(body.splitlines())
    return ProofCase(before + MODULE.replace("{body}", lines), old, new, weight)


SAME = local(IN_FLOAT32)
ALONE = """
import os
assert not os.listdir(".")
assert "A_PASSWORD" not in os.environ
assert os.environ["HOME"] == os.getcwd()
"""
EQUAL = {
    "scale in float32": SAME,
    "scale in the run dtype": local("return self.normed(x).to(x.dtype) * self.weight", PLAIN),
    "offset": local(
        "return (self.normed(x) * (self.weight.float() + 1)).type_as(x)", GEMMA, "offset"
    ),
    "weightless": local(
        "return self.normed(x).to(x.dtype)", WEIGHTLESS, "none", "Local(None, EPS)"
    ),
    "a function": replace(
        local("", WEIGHTLESS, "none", "lambda x: Local(None, EPS).normed(x).to(x.dtype)"),
        module=MODULE.replace("{body}", "return None"),
    ),
    "one eps": replace(SAME, eps=1e-3),
    "prints": local('print("noise", flush=True)\n' + IN_FLOAT32),
    "nothing of the user's": replace(SAME, module=f"{ALONE}{SAME.module}"),
    "of torch": ProofCase("", "torch.nn.RMSNorm(SIZE, eps=EPS)", FLOAT32, "scale"),
    "2-D only": local("rows, size = x.shape\n" + IN_FLOAT32),
}
BOUNDED = {
    "one rounding less": local(IN_FLOAT32, PLAIN),
    "offset weight rounded": local(
        "return (self.normed(x).to(x.dtype) * (self.weight + 1)).to(x.dtype)", GEMMA, "offset"
    ),
    "division": local(
        "wide = x.float()\nvariance = wide.pow(2).mean(-1, keepdim=True)\n"
        "return (wide / torch.sqrt(variance + self.eps) * self.weight.float()).to(x.dtype)"
    ),
    "another order of sums": local("x = x.contiguous()\n" + IN_FLOAT32),
    "sign of zeros": local(
        "return self.normed(x).to(x.dtype) + 0.0", WEIGHTLESS, "none", "Local(None, EPS)"
    ),
}
DIFFERENT = {
    "weight lost": (local(IN_FLOAT32, WEIGHTLESS), "checkpoint keys"),
    "weight gained": (
        local("return self.normed(x).to(x.dtype)", PLAIN, "none", "Local(None, EPS)"),
        "checkpoint keys",
    ),
    "weight of another shape": (
        local(IN_FLOAT32, old="Local(SIZE, EPS, (1, SIZE))"),
        "shapes of weight",
    ),
    "offset lost": (
        local("return (self.normed(x) * (self.weight.float() + 1)).to(x.dtype)", FLOAT32, "offset"),
        "ulp apart",
    ),
    "offset gained": (local(IN_FLOAT32, GEMMA), "ulp apart"),
    "another eps": (local(IN_FLOAT32, "RMSNorm(SIZE, 1e-5 if EPS < 1e-5 else 1e-6)"), "ulp apart"),
    "eps off by a thousandth": (local(IN_FLOAT32, "RMSNorm(SIZE, EPS * 1.001)"), "ulp apart"),
    "eps outside the root": (
        local(
            "wide = x.float()\nroot = torch.sqrt(wide.pow(2).mean(-1, keepdim=True))\n"
            "return (wide / (root + self.eps) * self.weight).to(x.dtype)"
        ),
        "ulp apart",
    ),
    "mean over another axis": (
        local("return (self.normed(x, 0) * self.weight).to(x.dtype)", FLOAT32),
        "ulp apart",
    ),
    "sum for mean": (
        local(
            "wide = x.float()\nvariance = wide.pow(2).sum(-1, keepdim=True)\n"
            "return (wide * torch.rsqrt(variance + self.eps) * self.weight).to(x.dtype)"
        ),
        "ulp apart",
    ),
    "LayerNorm": (
        local("x = x - x.float().mean(-1, keepdim=True).to(x.dtype)\n" + IN_FLOAT32),
        "ulp apart",
    ),
    "part of the row": (
        local(IN_FLOAT32, "RMSNorm(SIZE, EPS, var_hidden_size=SIZE // 2)"),
        "ulp apart",
    ),
    "all in the run dtype": (
        local(
            "variance = x.pow(2).mean(-1, keepdim=True)\n"
            "return x * torch.rsqrt(variance + self.eps) * self.weight"
        ),
        "ulp apart",
    ),
    "NaN replaced": (
        local("return torch.nan_to_num(self.normed(x) * self.weight, 0.0).to(x.dtype)"),
        "infinities or NaNs",
    ),
    "float32 out": (local("return self.normed(x) * self.weight"), "dtypes differ"),
    "flattened": (
        local("return (self.normed(x) * self.weight).to(x.dtype).flatten()"),
        "shapes differ",
    ),
    "a tuple": (local("return self.normed(x), None"), "differ in kind: tuple"),
    "in place": (
        local("y = (self.normed(x) * self.weight).to(x.dtype)\nx.zero_()\nreturn y"),
        "one writes to it",
    ),
    "new fails": (
        replace(SAME, new="torch.nn.BatchNorm1d(SIZE, track_running_stats=False)"),
        "checkpoint keys",
    ),
}
FAILED = {
    "no Python": (replace(SAME, module="class :"), "SyntaxError"),
    "imports more": (replace(SAME, module="import no_such_module"), "no_such_module"),
    "raises when built": (replace(SAME, old="Local(SIZE)"), "TypeError"),
    "unknown name": (replace(SAME, old="Other(SIZE)"), "NameError"),
    "no norm": (replace(SAME, old="EPS"), "builds float"),
    "no input taken": (local("raise ValueError('not today')"), "not today"),
    "weight not announced": (replace(SAME, weight="none"), "not weight none"),
    "returns nothing": (
        local("return None", "lambda x: None", "none", "Local(None, EPS)"),
        "NoneType",
    ),
    "exits": (local("raise SystemExit('bye')"), "bye"),
}


def run(case: ProofCase, tree: SourceTree | None = None, limit_s: float = 60.0) -> dict[str, Any]:
    """One case as the proof process runs it, without the start of another Python."""
    return Session(case, None if tree is None else tree.root, limit_s).run()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one length only: what a norm computes wrongly shows in them already."""
    monkeypatch.setattr(proof_compare, "SIZES", (64,))


@pytest.fixture(scope="module")
def found() -> dict[str, Equivalence]:
    cases = EQUAL | BOUNDED | {name: case for name, (case, _) in FAILED.items()}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("A_PASSWORD", "secret")
        return dict(zip(cases, prove(list(cases.values()), None), strict=True))


@pytest.mark.parametrize("name", EQUAL)
def test_the_same_computation_is_equal(found: dict[str, Equivalence], name: str) -> None:
    result = found[name]
    assert (result.status, result.reason) == ("equal", None)
    assert set(result.results) == DTYPES
    for seen in result.results.values():
        assert (seen.max_ulp, seen.differing, seen.nonfinite, seen.zero_signs) == (0, 0, 0, 0)
        assert seen.histogram["0"] == seen.elements > 100_000


@pytest.mark.parametrize("name", BOUNDED)
def test_another_rounding_is_bounded(found: dict[str, Equivalence], name: str) -> None:
    result = found[name]
    assert result.status == "bounded"
    assert result.reason is not None
    assert result.reason.startswith("equal but for")
    assert all(seen.beyond == seen.nonfinite == 0 for seen in result.results.values())


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_computation_is_different(name: str, short: None) -> None:
    case, reason = DIFFERENT[name]
    result = run(case)
    assert (result.get("status"), reason in str(result)) == ("different", True), result


@pytest.mark.parametrize("name", FAILED)
def test_what_cannot_be_run_says_why(found: dict[str, Equivalence], name: str) -> None:
    result = found[name]
    assert (result.status, FAILED[name][1] in str(result.reason)) == ("failed", True), result
    assert result.to_json() is None


def test_a_rounding_step_before_the_multiply_moves_a_fifth_of_the_elements_by_one_ulp(
    found: dict[str, Equivalence],
) -> None:
    results = found["one rounding less"].results
    assert results["float32"].max_ulp == 0
    for name in ("float16", "bfloat16"):
        assert results[name].max_ulp_normal == 1
        assert 0.15 < results[name].differing / results[name].elements < 0.3
        assert results[name].histogram["1"] > 0.99 * results[name].differing
    assert results["bfloat16"].max_ulp == 1
    assert "rows of" in str(results["bfloat16"].worst)


def test_a_zero_of_the_other_sign_is_no_distance_but_noted(found: dict[str, Equivalence]) -> None:
    results = found["sign of zeros"].results
    assert {seen.max_ulp for seen in results.values()} == {0}
    assert results["float16"].zero_signs > 0


def test_a_float32_checkpoint_is_noted_only_where_the_weights_have_different_dtypes(
    found: dict[str, Equivalence],
) -> None:
    note = found["scale in float32"].float32_checkpoint
    assert set(note) == {"float16", "bfloat16"}
    assert all(seen.max_ulp_normal == 1 and seen.differing > 0 for seen in note.values())
    assert not found["offset"].float32_checkpoint
    assert not found["one rounding less"].float32_checkpoint


def test_inputs_that_the_old_norm_does_not_take_are_left_out_and_named(
    found: dict[str, Equivalence],
) -> None:
    seen = found["2-D only"].results["float32"]
    assert seen.inputs < found["offset"].results["float32"].inputs
    assert all(note.startswith("3-D") and "ValueError" in note for note in seen.skipped)


def test_a_stated_eps_is_the_only_one_that_is_run(found: dict[str, Equivalence]) -> None:
    assert (
        found["one eps"].results["float32"].inputs
        < found["scale in float32"].results["float32"].inputs
    )


def test_the_json_has_one_entry_per_dtype(found: dict[str, Equivalence]) -> None:
    written = json.loads(json.dumps(found["scale in float32"].to_json()))
    assert DTYPES | {"float32_checkpoint"} == set(written)
    assert all(written[name]["max_ulp"] == 0 for name in DTYPES)
    assert sum(written["float16"]["histogram"].values()) == written["float16"]["elements"]


ADDS = """
def forward(self, x, residual=None, scale=None):
    if residual is None:
        return self.normed(x).to(x.dtype)
    x = x + residual
    return self.normed(x).to(x.dtype), x
Local.forward = forward
"""
PAIR = "return self.normed(x).to(x.dtype), residual"


def form(old: str, new: str | None = None, rank: int | None = None) -> CallForm:
    return CallForm(old, old, new or old, rank)


def weightless(*forms: CallForm, body: str = "return x", after: str = "") -> ProofCase:
    case = local(body, WEIGHTLESS, "none", "Local(None, EPS)")
    module = case.module.replace("forward(self, x)", "forward(self, x, residual=None)")
    return replace(case, module=module + after, eps=1e-6, forms=forms)


FORMS = {
    "keyword": (weightless(form("norm(x=x)"), after=ADDS), "equal", None),
    "another keyword": (
        weightless(form("norm(x, scale=None)", "norm(x)"), form("norm(x)"), after=ADDS),
        "equal",
        None,
    ),
    "residual": (
        weightless(form("norm(x, residual)"), form("norm(x)"), after=ADDS),
        "bounded",
        "norm(x, residual): equal but for rounding",
    ),
    "residual the other way round": (
        weightless(form("norm(x, residual)", "norm(residual, x)"), body=PAIR),
        "different",
        "ulp apart",
    ),
    "residual handed through": (
        weightless(form("norm(x, residual)", "(norm(x), residual)"), body=PAIR),
        "equal",
        None,
    ),
    "first of a tuple": (weightless(form("norm(x)[0]", "norm(x)"), body=PAIR), "equal", None),
    "not taken": (
        weightless(form("norm(x, other=x)"), form("norm(x)"), after=ADDS),
        "failed",
        "the old norm does not accept norm(x, other=x)",
    ),
    "4-D": (
        weightless(form("norm(x)", rank=4), body="return self.normed(x).to(x.dtype)"),
        "equal",
        None,
    ),
    "4-D is another thing": (
        weightless(
            form("norm(x)", rank=4),
            body="return self.normed(x, 1 if x.dim() == 4 else -1).to(x.dtype)",
        ),
        "different",
        "ulp apart",
    ),
    "1-D": (
        weightless(form("norm(x)", rank=1), body="return self.normed(x).to(x.dtype)"),
        "equal",
        None,
    ),
    "float32 input": (
        replace(
            local("return self.normed(x).to(x.dtype) * self.weight", PLAIN),
            eps=1e-6,
            forms=(CallForm("float32 input", dtype="float32"),),
        ),
        "different",
        "float32 input: in float16 up to",
    ),
    "float64 input": (
        replace(SAME, eps=1e-6, forms=(CallForm("float64 input", dtype="float64"),)),
        "equal",
        None,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_call_is_run(name: str, short: None) -> None:
    case, status, reason = FORMS[name]
    result = run(case)
    assert result.get("status", "failed") == status, result
    told = result.get("reason", result.get("failed"))
    assert told == reason if reason is None else reason in told
    if status == "equal":
        for form_ in case.forms:
            assert form_.plain or form_.name in result["forms"]


def test_no_cases_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert prove([], None) == []


def answers(monkeypatch: pytest.MonkeyPatch, *outputs: dict[str, object] | None) -> list[int]:
    """Stands for the proof process: each run gives the next answer, for all its cases, or none.

    Gives the number of cases of each run.
    """
    asked: list[int] = []

    def answer(request: str, limit_s: float) -> tuple[str, str]:
        found = outputs[len(asked)]
        asked.append(len(json.loads(request)["cases"]))
        lines = [json.dumps({"index": n, **found}) for n in range(asked[-1]) if found]
        return "\n".join(lines), " (Killed)"

    monkeypatch.setattr(proof, "_run", answer)
    return asked


EQUALS = {
    "status": "equal", "reason": None, "results": {}, "float32_checkpoint": {}, "forms": {},
    "ranks": [2],
}  # fmt: skip


def test_equal_cases_are_run_once_and_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, EQUALS)
    other = replace(SAME, forms=(CallForm("2-D input", rank=2),))
    deep = replace(SAME, forms=(CallForm("3-D input", rank=3),))
    first, second, third, fourth = prove([SAME, BOUNDED["division"], deep, other], None)
    assert asked == [2]
    assert first is fourth
    assert (second.status, third.status) == ("equal", "failed")
    assert third.reason == "the old norm accepts no 3-D input, which is what a site gives it"


def test_a_case_that_takes_the_process_with_it_is_alone_in_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answers(monkeypatch, None, None, EQUALS)
    first, second = prove([SAME, BOUNDED["division"]], None)
    assert asked == [2, 1, 1]
    assert (first.status, second.status) == ("failed", "equal")
    assert first.reason == "the proof process ended before it answered (Killed)"


def test_without_torch_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"`pip install '\.\[proof\]'`.* or pass --no-proof"):
        prove([SAME], None)


def write_tree(root: Path, files: dict[str, str]) -> SourceTree:
    for name, text in files.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(root, None, "a made-up tree", git=False, writable=True)


LAYERNORM = "model_executor/layers/layernorm.py"
OLD_STYLE = """
import torch
from torch import nn
from vllm.model_executor.custom_op import CustomOp
from vllm.platforms import current_platform
{extra}

@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    def __init__(self, hidden_size, eps=1e-6, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype))
        self.eps = eps

    def forward_native(self, x, residual=None):
        assert not current_platform.is_rocm()
        {first}
        wide = x.float()
        y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)

class GemmaRMSNorm(RMSNorm):
    pass
"""


@pytest.mark.parametrize(
    ("extra", "first", "status", "reason"),
    [
        ("", "x = x * 2", "different", "ulp apart"),
        ("from vllm import envs", "x = x if envs.ODD else x * 2", "failed", "vllm.envs.ODD"),
        ("import flashinfer_stand_in", "", "failed", "flashinfer_stand_in"),
        ("raise SystemExit(3)", "", "failed", "SystemExit: 3"),
    ],
)
def test_the_new_side_is_the_tree_s_own_layer(
    tmp_path: Path, extra: str, first: str, status: str, reason: str
) -> None:
    text = OLD_STYLE.replace("{extra}", extra).replace("{first}", first)
    tree = write_tree(tmp_path, {LAYERNORM: text})
    unloaded = load_tree(tree.root, 60.0)
    result = {"failed": unloaded} if unloaded is not None else run(SAME, tree)
    assert (result.get("status", "failed"), reason in str(result)) == (status, True), result
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_tree_without_a_layernorm_is_not_replaced_by_the_reference(tmp_path: Path) -> None:
    (result,) = prove([SAME], write_tree(tmp_path, {"version.py": ""}))
    assert result.status == "failed"
    assert result.partner == "the layernorm of a made-up tree"
    assert "could not be loaded" in str(result.reason)
    assert "the tree has no vllm/model_executor/layers/layernorm" in str(result.reason)


def muse_glimmer_cases(tree: SourceTree) -> dict[str, ProofCase]:
    text = (tree.root / "vllm/model_executor/models/muse_glimmer.py").read_text(encoding="utf-8")
    name = "MuseGlimmerRMSNorm"
    (node,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    module = f"import torch\nfrom torch import nn\n\n{ast.get_source_segment(text, node)}\n"
    return {
        "sandwich": ProofCase(module, f"{name}(SIZE, eps=EPS, weight_offset=1)", GEMMA, "offset"),
        "weightless": ProofCase(module, f"{name}(eps=EPS, with_scale=False)", WEIGHTLESS, "none"),
        "final": ProofCase(module, f"{name}(SIZE, eps=EPS)", FLOAT32, "scale"),
        "final, plain": ProofCase(module, f"{name}(SIZE, eps=EPS)", PLAIN, "scale"),
    }


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.33.0"])
def test_muse_glimmer_against_the_release_s_own_layers(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A vLLM on the path is not asked.
    (tmp_path / "vllm.py").write_text("raise RuntimeError('the installed vLLM was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = resolve(f"vllm=={version}", note=lambda text: None)
    results = {name: run(case, tree) for name, case in muse_glimmer_cases(tree).items()}
    assert {name: result.get("status") for name, result in results.items()} == {
        "sandwich": "equal",
        "weightless": "equal",
        "final": "equal",
        "final, plain": "bounded",
    }, results


def test_the_grid_holds_every_row_count_size_magnitude_and_layout() -> None:
    points = list(proof_compare.grid(proof_compare.EPS))
    assert len(points) == len(set(points))
    eps, sizes, layouts, rows, magnitudes = (set(axis) for axis in zip(*points, strict=True))
    assert eps == {1e-5, 1e-6, 1e-8}
    assert sizes == set(proof_compare.SIZES)
    assert layouts == set(proof_compare.LAYOUTS)
    assert rows == {0, 1, 2, 7, 83}
    assert magnitudes == set(proof_compare.MAGNITUDES)
    contiguous = {(size, r, m) for _, size, layout, r, m in points if layout.name == "2-D" and r}
    wanted = set(product(proof_compare.SIZES, (1, 2, 7, 83), proof_compare.MAGNITUDES))
    assert wanted - contiguous <= {(6656, rows, kind) for _, rows, kind in wanted if rows > 2}


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_inputs_are_fresh_finite_and_laid_out_as_named(name: str) -> None:
    inputs = proof_compare.Inputs(name, proof_compare.noise(proof_compare.POOL))
    dtype = proof_compare.DTYPES[name]
    for eps, size, layout, rows, kind in proof_compare.grid((1e-6,)):
        first = proof_compare.make_input(inputs, eps, size, layout, rows, kind)
        second = proof_compare.make_input(inputs, eps, size, layout, rows, kind)
        assert first.dtype == dtype
        assert first.shape[0] == rows
        assert first.shape[-1] == size
        assert torch.equal(first.nan_to_num(), second.nan_to_num())
        if rows:
            assert first.data_ptr() != second.data_ptr()
            assert first.isfinite().all() == (kind != proof_compare.MAGNITUDES[-1])
        if rows > 1:
            assert first.is_contiguous() == (layout.name in ("2-D", "3-D"))
        if kind == "large":
            assert first.float().pow(2).sum(-1).isfinite().all()
        if kind == "subnormal" and rows:
            assert 0 < first.abs().max() < torch.finfo(dtype).tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ulp_index_counts_the_values_between(dtype: torch.dtype) -> None:
    index: Callable[..., list[int]] = lambda *values: proof_compare.ulp_index(  # noqa: E731
        torch.tensor(values, dtype=dtype)
    ).tolist()
    info = torch.finfo(dtype)
    one, after = index(1.0, 1.0 + info.eps)
    assert after - one == 1
    assert index(0.0, -0.0) == [0, 0]
    assert index(info.smallest_normal, -info.smallest_normal)[0] > 1
    smallest = info.smallest_normal * info.eps
    assert index(smallest, -smallest) == [1, -1]
    largest, infinity = index(info.max, math.inf)
    assert infinity - largest == 1
    assert index(-1.0) == [-one]


def tally(old: list[float], new: list[float]) -> proof_compare.Tally:
    seen = proof_compare.Tally()
    half = torch.float16
    one, other = torch.tensor(old, dtype=half), torch.tensor(new, dtype=half)
    seen.add(one, other, torch.ones(len(old)), 2, "here")
    assert sum(seen.histogram) == seen.elements == len(old)
    return seen


def test_nan_and_infinity_must_stand_at_the_same_places() -> None:
    same = [math.nan, math.inf, -math.inf, 1.0]
    assert tally(same, same).nonfinite == 0
    assert tally([-math.nan, math.inf], [math.nan, math.inf]).nonfinite == 0
    assert tally([math.nan, math.inf, 0.0], [0.0, -math.inf, 0.0]).nonfinite == 2
    assert tally([math.inf], [65504.0]).nonfinite == 1


def test_the_bound_widens_where_the_normalised_value_is_subnormal() -> None:
    step = 2.0**-24
    seen = proof_compare.Tally()
    pair = torch.tensor([[100 * step], [103 * step]], dtype=torch.float16)
    seen.add(pair[0], pair[1], torch.tensor([1.0]), 2, "")
    assert (seen.beyond, seen.max_ulp, seen.max_ulp_normal) == (1, 3, 0)
    seen.add(pair[0], pair[1], torch.tensor([2.0]), 2, "")
    assert seen.beyond == 1
    seen.add(
        torch.tensor([1.0]).half(), torch.tensor([1.0 + 3 * 2**-10]).half(), torch.ones(1), 2, ""
    )
    assert (seen.beyond, seen.max_ulp_normal) == (2, 3)
