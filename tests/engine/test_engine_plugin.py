"""The plug-in in vLLM's engine, on a simulated XPU: eager, compiled, beside the patches.

The model is the ported MuseGlimmer on an otherwise unpatched vLLM, so its Gemma norms have no
``forward_xpu`` but the plug-in's. Its final norm is float16 here, as the optional patch makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_trees import (
    HERE,
    SERIES,
    TIMEOUT_S,
    VERSION,
    apply_series,
    environment,
    release,
    run,
)

from normport.tools.diffs import git_diff
from normport.tools.optional_dispatch import optional_dispatch
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.engine

MODEL = "0002-muse-glimmer-standard-norms.patch"
DISPATCH = "0001-xpu-gemma-rms-norm-dispatch.patch"
ROUNDED = "optional/muse-glimmer-rounded-weight.patch"
GUARDED = "generated"
"""Stands for the optional patch that ``port --with-xpu-norms`` writes."""
INSTALLED = {
    "GemmaRMSNorm.forward_xpu": "installed",
    "IR providers of rms_norm": "installed",
    "Gemma in the one-row graph": "installed",
}
LAYERS, DECODE_STEPS = 2, 3
GEMMA = 4 * LAYERS
PLAIN = 2 + 2 * LAYERS
"""Of one forward pass: the embedding's and the final norm, and q and k of every layer."""

RUNS = {
    "eager": ("eager", [MODEL, ROUNDED], {}),
    "compiled": ("compiled", [MODEL, ROUNDED], {}),
    "patched": ("compiled", [DISPATCH, MODEL, ROUNDED, GUARDED], {}),
    "disabled": ("eager", [MODEL, ROUNDED], {"NORMPORT_DISABLE": "1"}),
}
"""Name -> mode, patches of the tree, and what is added to the environment."""


def start(name: str, base: Path) -> subprocess.Popen[bytes]:
    mode, patches, more = RUNS[name]
    home = base / name
    home.mkdir()
    generated = home / "guarded.patch"
    tree = SourceTree(release().parent, VERSION, f"vllm {VERSION}", git=False, writable=False)
    generated.write_bytes(git_diff(optional_dispatch(tree).changes))
    series = [generated if patch == GUARDED else SERIES / patch for patch in patches]
    apply_series(release(), home / "tree", series)
    env = environment(home, home / "tree") | more
    env["PYTHONPATH"] = os.pathsep.join(
        [env["PYTHONPATH"], str(HERE.parent / "simulated"), str(HERE)]
    )
    env |= {
        "NORMPORT_SIMULATE": "xpu-engine",
        # A graph that comes from a cache went through no pass.
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    command = [sys.executable, HERE / "plugin_runner.py", base / "checkpoints" / "float16"]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, home / "record.json", mode],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=home,
        )


def finish(name: str, base: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    try:
        code = process.wait(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    end = (base / name / "log").read_text(errors="replace")[-4000:]
    assert code == 0, f"the {name} engine exited {code}; its log ends:\n{end}"
    record: dict[str, Any] = json.loads((base / name / "record.json").read_text())
    return record


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    base = tmp_path_factory.mktemp("plugin")
    run([sys.executable, HERE / "tiny_muse_glimmer.py", base / "checkpoints"])
    found = {}
    # One that compiles beside one that does not: two processes at a time.
    for pair in (("compiled", "eager"), ("patched", "disabled")):
        started = {name: start(name, base) for name in pair}
        try:
            found |= {name: finish(name, base, process) for name, process in started.items()}
        finally:
            for process in started.values():
                process.kill()
                process.wait()
    return found


def test_eager_norms_run_their_kernels(records: dict[str, dict[str, Any]]) -> None:
    record = records["eager"]
    assert record["plugin"] == INSTALLED
    assert {norm["method"] for norm in record["norms"].values()} == {"forward_xpu"}
    passes = 1 + DECODE_STEPS
    assert record["calls"] == {"gemma_rms_norm": GEMMA * passes, "rms_norm": PLAIN * passes}


def kernels(graph: dict[str, Any]) -> dict[str, int]:
    wanted = {"_C.rms_norm.default": "plain", "vllm.xpu_gemma_rms_norm.default": "gemma"}
    return {wanted[op]: count for op, count in graph["ops"].items() if op in wanted}


@pytest.mark.parametrize("name", ["compiled", "patched"])
def test_only_the_one_row_graphs_have_the_kernels(
    records: dict[str, dict[str, Any]], name: str
) -> None:
    record = records[name]
    assert record["mode"] == "VLLM_COMPILE"
    assert record["priority"] == ["xpu_fp16_row", "xpu_weightless_qk", "native"]
    # As without the plug-in: who stands first in the order must not switch a fusion on.
    assert record["fuse_norm_quant"] is False
    one_row = [graph for graph in record["graphs"] if graph["range"] == [1, 1]]
    others = [graph for graph in record["graphs"] if graph["range"] != [1, 1]]
    assert len(one_row) == len(others) > 0
    assert sum(kernels(graph).get("gemma", 0) for graph in one_row) == GEMMA
    assert sum(kernels(graph).get("plain", 0) for graph in one_row) == PLAIN
    for graph in others:
        assert kernels(graph) == {}
        assert not any("vllm_ir" in op for op in graph["ops"])
    assert record["calls"] == {
        "gemma_rms_norm": GEMMA * DECODE_STEPS,
        "rms_norm": PLAIN * DECODE_STEPS,
    }


def test_a_patched_vllm_keeps_its_own_dispatch(records: dict[str, dict[str, Any]]) -> None:
    record = records["patched"]
    assert set(record["plugin"]) == set(INSTALLED)
    assert set(record["plugin"].values()) == {"in vLLM already, left as it is"}
    assert record["tokens"] == records["compiled"]["tokens"]


def test_the_switch_leaves_vllm_alone(records: dict[str, dict[str, Any]]) -> None:
    record = records["disabled"]
    assert record["plugin"] == {"plug-in": "turned off by NORMPORT_DISABLE=1"}
    assert record["priority"] == ["vllm_c", "native"]
    assert record["calls"] == {"rms_norm": PLAIN * (1 + DECODE_STEPS)}
