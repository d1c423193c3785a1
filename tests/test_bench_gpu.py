"""The GPU benchmark: without a GPU it says so; in the interpreter it compares and times nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normport.tools import bench_gpu


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_gpu.main(["--out", str(tmp_path / "report")]) == 2
    assert "no CUDA GPU here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_has_every_side_with_its_spread_and_share() -> None:
    row = {
        "norm": "rms_norm",
        "rows": 16,
        "bytes": 2048,
        "difference": {"eager": 0.0},
        "us": {"triton": [1.0, 2.0, 3.0], "copy": [0.5, 1.0, 1.5]},
        "share_of_copy": {"triton": 0.5},
    }
    report = {
        "date": "2026-11-30",
        "device": "a GPU",
        "torch": "2.13.0",
        "interpreted": False,
        "dtype": "bfloat16",
        "hidden": 64,
        "cases": [row],
    }
    text = bench_gpu.table(report)
    assert "# Triton kernels on a GPU\n" in text
    assert "2026-11-30" in text
    assert "| rms_norm | 16 | triton | 2.0 [1.0, 3.0] | 50% |" in text
    assert "| rms_norm | 16 | copy | 1.0 [0.5, 1.5] |  |" in text


def test_interpreted_it_compares_every_norm(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Triton must be installed in CI", pytrace=False)
        pytest.skip("Triton is not installed here")
    out = tmp_path / "report"
    sizes = ["--rows", "1", "2", "--hidden", "64", "--dtype", "float32", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "normport.tools.bench_gpu", *sizes],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.with_suffix(".md").read_text()
    assert "interpreter on the CPU: results only, no times" in done.stdout
    report = json.loads(out.with_suffix(".json").read_text())
    assert report["interpreted"] is True
    names = ["rms_norm", "gemma rms_norm", "norm_add_norm", "qk_norm"]
    assert [(row["norm"], row["rows"]) for row in report["cases"]] == [
        (name, rows) for rows in (1, 2) for name in names
    ]
    for row in report["cases"]:
        assert "us" not in row
        assert row["difference"]
        assert max(row["difference"].values()) < 1e-5
