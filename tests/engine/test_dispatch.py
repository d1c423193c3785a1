"""The dispatch of every norm on every platform: the matrix, what it does not vary, and doctor.

Each platform has a process of its own, because vLLM settles on one when it is imported. The XPU and
the MUSA are simulated (``tests/simulated``), vLLM's layers, IR and configurations are its own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_trees import TIMEOUT_S, VERSION

from normport.kernels.schemas import XPU_SCHEMAS
from normport.tools.probe_record import read_probe

pytestmark = pytest.mark.engine

SIMULATED = Path(__file__).resolve().parent.parent / "simulated"
CASES = 24_822
"""7 x 8 x 7 x 3 of rows, hidden sizes, layouts and dtypes, and 2 x 3 with 4096 rows; each with the
12 pairs of weight and residual of RMSNorm and the 9 of GemmaRMSNorm, which always has a weight."""
GUARDED_CASES = 4_728
"""Those of RMSNorm without a residual, which on XPU run again as compile mode orders providers."""


def environment(platform: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "NORMPORT_"))}
    return kept | {
        "PYTHONPATH": str(SIMULATED),
        "NORMPORT_SIMULATE": "" if platform == "cpu" else platform,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Large tensors would otherwise go back to the system after every case.
        "MALLOC_MMAP_THRESHOLD_": "2000000000",
        "MALLOC_TRIM_THRESHOLD_": "4000000000",
    }


def run_python(platform: str, *command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(platform),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_matrix(platform: str) -> dict[str, Any]:
    output = run_python(platform, SIMULATED / "matrix_runner.py", platform)
    record: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"dispatch matrix, {platform}: {record['cases']} cases", record["paths"])
    print(record["guarded_paths"])
    return record


@pytest.mark.parametrize("platform", ["cpu", "xpu", "musa"])
def test_matrix(platform: str) -> None:
    record = run_matrix(platform)
    assert record["wrong"] == []
    assert record["cases"] == record["size"] == CASES
    assert sum(record["paths"].values()) == CASES
    paths = {path.partition(" (")[0] for path in record["paths"]}
    assert (
        paths
        == {
            "cpu": {"native"},
            "xpu": {"gemma", "vllm_c", "native", "empty"},
            "musa": {"guard", "native"},
        }[platform]
    )
    guarded = {path.partition(" (")[0] for path in record["guarded_paths"]}
    assert guarded == ({"guard", "native"} if platform == "xpu" else set())
    assert sum(record["guarded_paths"].values()) == (GUARDED_CASES if guarded else 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_matrix_on_cuda_is_the_vllm_of_before() -> None:
    record = run_matrix("cpu")
    assert record["plugin"] == {"plug-in": "nothing to do on this platform"}


def test_what_the_matrix_does_not_vary() -> None:
    results = json.loads(run_python("xpu", SIMULATED / "xpu_checks.py").splitlines()[-1])
    failed = {name: told for name, told in results.items() if told is not None}
    assert not failed, "\n".join(failed.values())
    assert len(results) == 16


@functools.cache
def reports(platform: str) -> dict[str, Any]:
    """What doctor and, where there is a device to look at, probe say as JSON."""
    script = """
import sys
from normport.tools.cli import run
for command in sys.argv[1:]:
    assert run([command, "--output-format", "json"]) == 0
    print("\\0")
"""
    commands = ["doctor"] if platform == "cpu" else ["doctor", "probe"]
    told = run_python(platform, "-c", script, *commands).split("\0\n")
    return {name: json.loads(text) for name, text in zip(commands, told, strict=False)}


def doctor(platform: str) -> dict[str, Any]:
    report: dict[str, Any] = reports(platform)["doctor"]
    return report


def paths(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (answer["norm"], answer["situation"]): answer["path"]
        for mode in report["modes"]
        for answer in mode["answers"]
    }


def test_doctor_tells_guard_ir_and_native_apart_on_xpu() -> None:
    report = doctor("xpu")
    assert report["platform"] == "xpu"
    assert report["simulated"] is True
    assert {found["not_called_because"] for found in report["kernels"].values()} == {None}
    found = paths(report)
    assert found["RMSNorm", "eager, 1 token"] == "kernel by IR"
    assert found["RMSNorm", "eager, 64 tokens"] == "kernel by IR"
    assert found["RMSNorm, float32 weight", "eager, 1 token"] == "native"
    assert found["GemmaRMSNorm with residual", "eager, 64 tokens"] == "kernel by guard"
    for norm in ("RMSNorm", "RMSNorm, weightless, of heads", "GemmaRMSNorm"):
        assert found[norm, "compiled, one-row graph"] == "kernel by guard"
        assert found[norm, "compiled, other ranges"] == "native"
    eager, compiled = report["modes"]
    assert not eager["native_by_compile"]
    assert compiled["native_by_compile"]
    for answer in compiled["answers"]:
        if answer["norm"].startswith("GemmaRMSNorm") and answer["path"] == "native":
            other = answer["situation"].endswith("other ranges")
            why = "it is for the graph of one row" if other else "with a residual the kernel"
            assert any(name == "pass" and why in told for name, told in answer["skipped"]), answer
    other = next(a for a in compiled["answers"] if a["situation"].endswith("other ranges"))
    assert ["xpu_fp16_row", "symbolic size"] in other["skipped"]
    unplaced = ["xpu_fp16_row", "vllm_c stands first and runs the kernel"]
    assert unplaced in eager["answers"][0]["skipped"]


@pytest.mark.parametrize("platform", ["cpu", "xpu", "musa"])
def test_doctor_gives_a_reason_for_each_one_not_chosen(platform: str) -> None:
    for mode in doctor(platform)["modes"]:
        for answer in mode["answers"]:
            named = {name for name, _ in answer["skipped"]}
            if answer["path"] == "native":
                assert named, answer
                assert "native" not in named
            # A device's method is not a reason on another one.
            assert not named & ({"forward_xpu", "pass"} if platform != "xpu" else {"forward_musa"})


def test_doctor_on_musa_and_cpu() -> None:
    musa = doctor("musa")
    assert musa["plugin"] == {"RMSNorm": "installed", "GemmaRMSNorm": "installed"}
    found = paths(musa)
    assert found["RMSNorm", "eager, 64 tokens"] == "native"
    assert found["RMSNorm", "compiled, one-row graph"] == "native"
    cpu = doctor("cpu")
    assert cpu["plugin"] == {"plug-in": "nothing to do on this platform"}
    assert set(paths(cpu).values()) == {"native"}


@pytest.mark.parametrize("platform", ["xpu", "musa"])
def test_a_probe_of_a_simulation_says_that_it_is_one(platform: str) -> None:
    report = reports(platform)["probe"]
    probe = read_probe(report)
    assert probe.simulated
    assert probe.standing == (
        "a SIMULATION, which says nothing of the hardware (NORMPORT_SIMULATE is set)"
    )
    assert (probe.platform, probe.device, probe.vllm) == (platform, None, VERSION)
    assert all(found.ratio == {} for found in probe.kernels.values())


def test_the_probe_finds_what_the_stand_ins_of_xpu_kernels_do() -> None:
    kernels = read_probe(reports("xpu")["probe"]).kernels
    assert set(kernels) == {*XPU_SCHEMAS, "rms_norm, weightless"}
    for name, found in kernels.items():
        fused = name.startswith("fused")
        assert found.worst is not None
        assert found.worst <= (2 if fused else 0)
        assert (found.aliases, found.keeps_inputs) == ((True, None) if fused else (None, True))
        assert found.cases["0 x 128"]["float16"] == "raised: an empty grid was submitted"
        # The fused ones step by stride(-2) and would leave their tensor here.
        assert str(found.cases["(N, 1, D)"]["float32"]).startswith("not run") is fused
        assert isinstance(found.cases["last stride 2"]["bfloat16"], int)


def test_the_probe_looks_at_every_provider_on_musa() -> None:
    kernels = read_probe(reports("musa")["probe"]).kernels
    ran = {name for name, found in kernels.items() if found.not_called_because is None}
    assert ran == {"rms_norm: musa", "rms_norm, weightless: musa", "rms_norm, Gemma: musa"}
    assert all(len(kernels[name].cases) == 12 for name in ran)
    assert all(kernels[name].keeps_inputs for name in ran)
    missing = "its package does not register the op"
    assert kernels["fused_add_rms_norm: musa"].not_called_because == missing
    assert kernels["rms_norm: triton"].not_called_because


def test_a_musa_class_registered_by_others_stays() -> None:
    script = """
import json
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.custom_op import op_registry_oot

@RMSNorm.register_oot
class Theirs(RMSNorm):
    def forward_oot(self, x, residual=None):
        return self.forward_musa(x, residual)

    def forward_musa(self, x, residual=None):
        return self.forward_native(x, residual)

import torch
from normport.layers import diagnosis, musa, plugin
plugin.load()
told = [dict(plugin.OUTCOME)]

@GemmaRMSNorm.register_oot
class TheirsToo(GemmaRMSNorm):
    pass

told.append(musa.registered())
told.append([op_registry_oot["RMSNorm"] is Theirs, op_registry_oot["GemmaRMSNorm"] is TheirsToo])
told.append([musa.MusaGemmaRMSNorm.name])
eager = diagnosis.diagnose(torch.float16)[0].answers
told.append([[answer.norm, answer.path, answer.runs] for answer in eager[:2] + eager[-4:-3]])
told.append(eager[-4].skipped[0])
print(json.dumps(told))
"""
    first, later, theirs, names, asked, why = json.loads(
        run_python("musa", "-c", script).splitlines()[-1]
    )
    left = "__main__.Theirs is registered and left in place"
    assert first == {"RMSNorm": left, "GemmaRMSNorm": "installed"}
    assert later["GemmaRMSNorm"] == "__main__.TheirsToo is registered and left in place"
    assert theirs == [True, True]
    assert names == ["gemma_rms_norm"]
    # What their method does is theirs, so doctor does not speak of our guards.
    assert asked[:2] == [["RMSNorm", "kernel by layer", "__main__.Theirs.forward_oot"]] * 2
    # A class without a method of its own has vLLM's, which is the native norm.
    assert asked[2] == ["GemmaRMSNorm", "native", "native"]
    assert why == ["forward_musa", "the layer has none: see what the plug-in did"]
