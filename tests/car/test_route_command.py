"""``normport route``: the four cells, what lies outside, both formats, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from car_configs import FP8, dense, moe, quantized

from normport.tools.cli import run

MODELS = {
    "27B-BF16": (dense(), 2),
    "27B-FP8": (quantized(dense(), FP8), 2),
    "35B-BF16": (moe(), 4),
    "35B-FP8": (quantized(moe(), FP8), 4),
}
ENDPOINTS = {2: [3, 4, 15, 16, 63], 4: [15, 16, 63, 64]}
NATIVE_ROWS = {"27B-BF16": [16], "27B-FP8": [4, 16], "35B-BF16": [16, 64], "35B-FP8": [64]}


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(config: Any, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        status = run(["route", "--model-config", str(path), *options])
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return ask


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_each_cell(ask: Any, name: str) -> None:
    config, tp = MODELS[name]
    status, out, err = ask(config, "--tp", str(tp), "--output-format", "json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["eligible", "native", "native_rows", "endpoints"]
    assert found["native_rows"] == NATIVE_ROWS[name]
    assert found["endpoints"] == ENDPOINTS[tp]
    _, text, _ = ask(config, "--tp", str(tp))
    assert text.splitlines()[1].split() == [
        "eligible",
        *(f"[{low},{high}]" for low, high in found["eligible"]),
    ]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--rows", "16"], "native-row"),
        (["--rows", "17"], "eligible"),
        (["--range", "15:17"], "native-range"),
        (["--range", "17:63"], "eligible"),
        (["--rows", "0"], "rows-below"),
        (["--rows", "1", "--dtype", "float16"], "dtype"),
        (["--rows", "1", "--dtype", "half"], "dtype"),
        (["--rows", "8193"], "rows-above"),
        (["--range", "17:15"], "range-reversed"),
        (["--range", "0:15"], "range-below"),
        (["--range", "17:8193"], "range-above"),
        (["--rows", "1", "--tp", "4"], "tp"),
        (["--rows", "1", "--tp", "8"], "tp8"),
        (["--rows", "1", "--tp", "1"], "tp1"),
        (["--rows", "1", "--pp", "2"], "pp"),
    ],
    ids=" ".join,
)
def test_one_question(ask: Any, options: list[str], code: str) -> None:
    status, out, _ = ask(dense(), "--tp", "2", *options, "--output-format", "json")
    found = json.loads(out)
    assert status == 0
    assert list(found) == ["fused", "code", "reason"]
    assert (found["fused"], found["code"]) == (code == "eligible", code)
    _, text, _ = ask(dense(), "--tp", "2", *options)
    word = "fused" if found["fused"] else "native"
    assert text == f"{word} [{code}] {found['reason']}\n"


def test_outside_the_contract_everything_is_native(ask: Any) -> None:
    _, out, _ = ask(dense(), "--tp", "8", "--output-format", "json")
    assert json.loads(out) == {
        "eligible": [],
        "native": [[1, 8192]],
        "native_rows": [],
        "endpoints": [],
    }
    _, text, _ = ask(dense(), "--tp", "8")
    assert "tensor parallel size 8 is outside the contract" in text


@pytest.mark.parametrize(
    ("dtype", "fused"), [("bfloat16", True), ("float32", True), (None, True), ("float16", False)]
)
def test_the_dtype_is_the_models_as_vllm_serves_it(ask: Any, dtype: str, fused: bool) -> None:
    _, out, _ = ask(dense(dtype=dtype), "--tp", "2", "--rows", "1", "--output-format", "json")
    assert json.loads(out)["fused"] == fused


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("{", []),
        ("[1]", []),
        ("[" * 100_000, []),
        (dense(), ["--range", "1"]),
        (dense(), ["--range", "a:b"]),
        (dense(), ["--rows", "x"]),
        (dense(), ["--rows", "1", "--range", "1:2"]),
        (dense(), ["--output-format", "sarif"]),
        ("{}", []),
        ({"model_type": None}, []),
        (dense(), ["--tp", "0"]),
        (dense(), ["--tp", "-2"]),
        (dense(), ["--pp", "0"]),
        (dense(), ["--dtype", "int7"]),
        (dense(), ["--rows", "1.5"]),
        (dense(), ["--range", "1:" + "9" * 5000]),
        (dense(), ["--range", ""]),
    ],
    ids=range(17),
)
def test_bad_input_is_one_sentence(ask: Any, config: Any, options: list[str]) -> None:
    status, out, err = ask(config, "--tp", "2", *options)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith(".\n")


def test_a_model_of_another_family_is_native(ask: Any) -> None:
    _, text, _ = ask({"model_type": "llama", "hidden_size": 5120}, "--tp", "2", "--rows", "1")
    assert text == "native [family] Native: the model is of no family that the contract knows.\n"


def test_a_quantization_config_beside_the_models_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dense()))
    question = ["route", "--model-config", str(tmp_path), "--tp", "2", "--rows", "1"]
    assert run(question) == 0
    assert capsys.readouterr().out.startswith("fused ")
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert run(question) == 0
    assert capsys.readouterr().out.startswith("native [precision] ")
    beside.write_text("{")
    assert run(question) == 2


def test_a_missing_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["route", "--model-config", str(tmp_path / "none.json"), "--tp", "2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_asking_needs_neither_torch_nor_vllm_nor_libcst() -> None:
    code = (
        "import sys, normport.tools.route\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'libcst')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
