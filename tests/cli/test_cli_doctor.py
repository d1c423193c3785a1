"""``normport doctor`` where vLLM is not installed, and for a kernel wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
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
    assert run(["doctor", "--wheel", str(wheel), "--output-format", "json"]) == 1
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


@pytest.mark.parametrize("where", ["data", "flag", "method"])
def test_a_damaged_wheel_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    wheel = tmp_path / "kernels.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_C.abi3.so", b"rms_norm" * 100)
    content = bytearray(wheel.read_bytes())
    central = content.index(b"PK\x01\x02")
    if where == "data":
        content[30 + len("_C.abi3.so")] = 0xFF
    elif where == "flag":  # encrypted
        content[6] |= 1
        content[central + 8] |= 1
    else:  # a compression that does not exist
        content[8] = content[central + 10] = 99
    wheel.write_bytes(content)
    assert run(["doctor", "--wheel", str(wheel)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {wheel} cannot be read (")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["doctor", "probe"])
def test_a_vllm_that_cannot_be_imported_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('no libcuda')\n")
    done = subprocess.run(
        [sys.executable, "-c", "from normport.tools.cli import main; main()", command],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "(no libcuda)" in done.stderr


def test_what_pydantic_says_around_an_error_is_left_out() -> None:
    error = ValueError(
        "1 validation error for VllmConfig\n  Value error, Wrong op [type=value_error, "
        "input_value={}]\n    For further information visit https://errors.pydantic.dev/"
    )
    assert doctor.sentence(error) == "Wrong op"
