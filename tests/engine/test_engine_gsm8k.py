"""``normport gsm8k`` with the real engine in its process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_trees import HERE, SERIES, VERSION, environment, run

NORMPORT = Path(sys.executable).with_name("normport")
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 1,
    "disable_log_stats": True,
}
RECORDS = [
    {"question": f"Ann has {n} pears and buys 3 more. How many?", "answer": f"#### {n + 3}"}
    for n in range(1, 5)
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What one run over three questions wrote, and where."""
    home = tmp_path_factory.mktemp("gsm8k")
    run([sys.executable, HERE / "tiny_chat_model.py", home / "model"])
    (home / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    done = subprocess.run(
        [
            *(NORMPORT, "gsm8k", "--model", home / "model", "--engine-args", json.dumps(ENGINE)),
            *("--data", home / "data.jsonl", "--num-shots", "1", "--num-questions", "3"),
            *("--max-tokens", "8", "--series", SERIES, "--out", home / "result.json"),
        ],
        env={**environment(home, None), "VLLM_LOGGING_LEVEL": "INFO"},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # vLLM's log does not go among the scores.
    assert "INFO" in done.stderr
    assert "INFO" not in done.stdout
    path = home / "result.json"
    return path, json.loads(path.read_text())


@pytest.mark.engine
def test_what_the_engine_answered(result: tuple[Path, dict[str, Any]]) -> None:
    _, written = result
    assert written["complete"]
    about = written["run"]
    assert about["vllm_version"].startswith(VERSION)
    assert (about["backend"], about["model"]) == ("in process", "model")
    assert (about["dtype"], about["compilation"]) == ("torch.float32", "NONE")
    assert about["patch_series"]["state"] == "absent"
    for question in written["questions"]:
        assert 0 < question["output_tokens"] == len(question["tokens"]) <= 8
        # Its tokens are the bytes, with one at the start.
        assert question["prompt_tokens"] > len(RECORDS[0]["question"])
        assert question["latency_ms"] > 0
        # Noise: what are no whole characters among the bytes is not shown.
        text = question["output"].encode()
        assert question["output_sha256"] == hashlib.sha256(text).hexdigest()


@pytest.mark.engine
def test_a_run_equals_itself(result: tuple[Path, dict[str, Any]]) -> None:
    path, _ = result
    compared = subprocess.run(
        [NORMPORT, "gsm8k", "compare", path, path, "--require-identical"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0
    assert "outputs: 3 identical, 0 different" in compared.stdout
