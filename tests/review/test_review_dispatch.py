"""The table of paths: worked out from the series, and true of the releases it is about."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from review_series import COMMITTED, ROOT

from normport.tools.definitions import definitions
from normport.tools.manifest import Manifest, load
from normport.tools.review.dispatch import (
    DEVICES,
    EAGER_PROVIDERS,
    Dispatch,
    compiled,
    dispatch_table,
    eager,
    layer,
)
from normport.tools.review.page import read_review
from normport.tools.tree import SourceTree

RELEASES = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def table(version: str) -> Dispatch:
    return read_review(ROOT / "patches" / version, []).dispatch


def cells(found: Dispatch, title: str, device: str) -> tuple[str, str, str, str]:
    """Eager before and after, compiled before and after."""
    group = next(group for group in found.groups if group.title == title)
    row = next(row for row in group.rows if row.device == device)
    return (*(p.runs for p in row.eager), *(p.runs for p in row.compiled))


def test_the_series_of_0_29() -> None:
    found = table("0.29.0")
    local = "model-local norm to "
    native, fused = "native ops", "fused by Inductor"
    gemma = "Every GemmaRMSNorm of vLLM"
    assert cells(found, gemma, "XPU") == (native, "_C.gemma_rms_norm", fused, fused)
    assert cells(found, gemma, "CUDA") == (native, native, fused, fused)
    bare = f"{local}RMSNorm, weight of the run's dtype or none"
    for device in ("XPU", "CUDA"):
        assert cells(found, bare, device) == (native, "_C.rms_norm", fused, fused)
        wide = f"{local}RMSNorm with a float32 weight"
        assert cells(found, wide, device) == (native, native, fused, fused)
    assert cells(found, f"{local}GemmaRMSNorm", "XPU")[1] == "_C.gemma_rms_norm"
    sandwiches = "norm, sum and norm to NormAddNorm (optional/norm-add-norm.patch)"
    for device in ("CPU", "MUSA"):
        for group in found.groups:
            if group.title != sandwiches:
                assert cells(found, group.title, device) == (native, native, fused, fused)
    for device in DEVICES:
        apart = "each norm's own path, the sum apart"
        after = "NormAddNorm.forward_cpu" if device == "CPU" else apart
        assert cells(found, sandwiches, device) == (apart, after, fused, fused)
    optional = (
        "RMSNorm with a float32 weight to RMSNorm, weight of the run's dtype or none "
        "(optional/muse-glimmer-rounded-weight.patch)"
    )
    assert cells(found, optional, "XPU") == (native, "_C.rms_norm", fused, fused)
    names = [name for group in found.groups for name in group.sites]
    assert "muse_glimmer.py: qk_norm" in names
    assert names[-3:] == [
        "gemma4.py: Gemma4DecoderLayer.forward",
        "gemma4_mtp.py: Gemma4MTPDecoderLayer.forward",
        "muse_glimmer.py: MuseGlimmerDecoderLayer.forward",
    ]
    assert len(names) == 9 + 3


def test_what_was_not_run_is_not_said_to_be() -> None:
    known = {row.device: row.known for row in table("0.29.0").groups[1].rows}
    assert known["CPU"].startswith("run: ")
    assert known["XPU"].startswith("simulated: ")
    assert known["CUDA"].endswith("not run")
    assert "not known" in known["MUSA"]
    together = {row.device: row.known for row in table("0.29.0").groups[-1].rows}
    assert together["CPU"] == "run: normport's tests run muse_glimmer.py with it in the CPU engine"
    assert together["XPU"].endswith("not run")
    for version in ("0.31.0", "0.32.0"):
        for group in table(version).groups:
            for row in group.rows:
                assert not row.known.startswith(("run", "simulated"))


def test_a_release_that_ships_the_dispatch() -> None:
    found = table("0.31.0")
    assert cells(found, "model-local norm to GemmaRMSNorm", "XPU")[1] == "_C.gemma_rms_norm"
    assert "Every GemmaRMSNorm of vLLM" not in [group.title for group in found.groups]


def test_a_file_for_one_vendor() -> None:
    group = next(g for g in table("0.28.0").groups if any("vision_attention" in s for s in g.sites))
    assert [row.device for row in group.rows] == ["CUDA"]


@pytest.mark.parametrize("release", [None, "0.27.1", "0.34.0", "1.0", "of mine"])
def test_of_other_releases_nothing_is_claimed(release: str | None) -> None:
    manifest: Manifest = replace(load(COMMITTED), release=release)
    found = dispatch_table(manifest, [])
    assert found.groups == ()
    assert "does not know" in (found.problem or "")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("RMSNorm(n, eps=e)", "rms"),
        ("layernorm.RMSNorm(n, eps=e, has_weight=False)", "rms"),
        ("RMSNorm(n, eps=e, dtype=torch.float32)", "float32"),
        ("GemmaRMSNorm(n)", "gemma"),
        ("x, r = self.norm_add_norm(x, r)", "unknown"),
        (None, "unknown"),
    ],
)
def test_kinds_of_layers(target: str | None, kind: str) -> None:
    assert layer(target) == kind


def test_of_an_unknown_layer_no_path_is_claimed() -> None:
    for device in DEVICES:
        assert eager("unknown", device, True).runs == "not known"
        assert compiled("unknown", device, True).runs == "not known"


# What follows runs the releases' own code, each function by itself: vLLM cannot be imported here.

NONE, COMPILED = object(), object()


def function(source: str, name: str, inside: str | None = None) -> ast.FunctionDef | None:
    """The function of that name, in the class ``inside`` or anywhere."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if inside is not None and isinstance(node, ast.ClassDef) and node.name == inside:
            return next((n for n in node.body if getattr(n, "name", None) == name), None)
        if inside is None and isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def runnable(node: ast.FunctionDef, **names: Any) -> Callable[..., Any]:
    """The function without decorators, annotations and imports of its own."""
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    node.body = [one for one in node.body if not isinstance(one, ast.ImportFrom)]
    module = ast.fix_missing_locations(ast.Module([node], []))
    exec(compile(module, node.name, "exec"), names)
    return names[node.name]


def priority(root: Path, platform: str, mode: object) -> list[str]:
    """The IR's default order of providers on a platform of vLLM's, in a compilation mode."""
    folder = root / "vllm" / "platforms"
    node = function((folder / f"{platform}.py").read_text(), "get_default_ir_op_priority")
    if node is None:
        node = function((folder / "interface.py").read_text(), "get_default_ir_op_priority")
    assert node is not None
    backend = "inductor"
    config = SimpleNamespace(compilation_config=SimpleNamespace(backend=backend, mode=mode))
    return runnable(
        node,
        CompilationMode=SimpleNamespace(NONE=NONE),
        IrOpPriorityConfig=SimpleNamespace(with_default=lambda default, **_: default),
        envs=SimpleNamespace(VLLM_USE_OINK_OPS=False),
    )(None, config)


def takes(root: Path, x: str, weight: str | None) -> bool:
    """Whether ``vllm_c`` takes an input and a weight of these dtypes."""
    tree = ast.parse((root / "vllm" / "kernels" / "vllm_c.py").read_text())
    lambdas = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (norm,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "rms_norm"]
    (registered,) = [d for d in norm.decorator_list if isinstance(d, ast.Call)]
    (guard,) = [k.value for k in registered.keywords if k.arg == "supports_args"]
    assert isinstance(guard, ast.Name)
    supports = eval(compile(ast.Expression(lambdas[guard.id]), "guard", "eval"))
    given = None if weight is None else SimpleNamespace(dtype=weight)
    return supports(SimpleNamespace(dtype=x), given, 1e-6)


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_the_releases_themselves_say_so(version: str, release: Callable[[str], SourceTree]) -> None:
    root = release(version).root
    for device, platform in (
        ("CPU", "cpu"),
        ("CUDA", "cuda"),
        ("XPU", "xpu"),
        ("MUSA", "interface"),
    ):
        assert tuple(priority(root, platform, NONE)) == EAGER_PROVIDERS[device]
        assert priority(root, platform, COMPILED) == ["native"]
    assert takes(root, "bfloat16", "bfloat16")
    assert takes(root, "bfloat16", None)
    assert takes(root, "float32", "float32")
    assert not takes(root, "bfloat16", "float32")
    custom_op = (root / "vllm" / "model_executor" / "custom_op.py").read_text()
    for name in ("forward_oot", "forward_cpu", "forward_xpu"):
        node = function(custom_op, name, "CustomOp")
        assert node is not None
        layer = SimpleNamespace(forward_native=lambda *_: "native")
        assert runnable(node)(layer) == "native"
    layernorm = (root / "vllm" / "model_executor" / "layers" / "layernorm.py").read_bytes()
    ships = "GemmaRMSNorm.forward_xpu" in definitions(layernorm)
    assert ships == (version not in ("0.28.0", "0.29.0"))
    assert ships == any(
        "already has" in one.reason for one in load(ROOT / "patches" / version).obsolete
    )
