"""``normport doctor`` where vLLM is not installed, and for a kernel wheel."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from normport.kernels.schemas import XPU_SCHEMAS
from normport.tools import doctor
from normport.tools.cli import run


def write_wheel(path: Path, schemas: dict[str, str]) -> Path:
    library = b"\x7fELF\0" + b"\0".join(f"{n}{s}".encode() for n, s in schemas.items()) + b"\0"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("vllm_xpu_kernels/_C.abi3.so", library)
    return path


def test_without_vllm_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name == "vllm" else find_spec(name)
    )
    assert run(["doctor"]) == 0
    assert "vLLM is not installed in this environment" in capsys.readouterr().out
    assert run(["doctor", "--output-format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["platform"] is None
    assert report["packages"]["torch"]


def test_wheel_of_the_expected_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = write_wheel(tmp_path / "kernels.whl", dict(XPU_SCHEMAS))
    assert run(["doctor", "--wheel", str(wheel)]) == 0
    assert capsys.readouterr().out.count("as expected") == len(XPU_SCHEMAS)


def test_wheel_of_another_schema_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**XPU_SCHEMAS, "rms_norm": "(Tensor! result, Tensor input) -> ()"}
    del other["gemma_rms_norm"]
    wheel = write_wheel(tmp_path / "kernels.whl", other)
    assert run(["doctor", "--wheel", str(wheel), "--output-format", "json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert kernels["fused_add_rms_norm"]["not_called_because"] is None
    assert "another schema" in kernels["rms_norm"]["not_called_because"]
    assert "does not register" in kernels["gemma_rms_norm"]["not_called_because"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--wheel", "missing.whl"], "missing.whl"),
        (["--dtype", "int8"], "--dtype int8 is not one of"),
    ],
)
def test_errors_are_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
