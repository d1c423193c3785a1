"""The Triton kernels, by Triton's interpreter on the CPU: correctness, and nothing about speed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton_cases

from normport.kernels.providers import triton
from normport.kernels.reasons import Reason


@pytest.fixture(scope="module")
def report() -> dict[str, str | None]:
    if importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed here"
        if os.environ.get("CI") == "true":
            pytest.fail(f"the Triton tests must run in CI: {reason}", pytrace=False)
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(Path(triton_cases.__file__))],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", triton_cases.NAMES)
def test_interpreted(report: dict[str, str | None], name: str) -> None:
    assert report[name] is None, report[name]


def test_every_case_is_reported(report: dict[str, str | None]) -> None:
    assert list(report) == triton_cases.NAMES


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton, "_device_type", lambda: None)
    installed = importlib.util.find_spec("triton") is not None
    assert triton.supported() == (Reason.OTHER_PLATFORM if installed else Reason.NOT_INSTALLED)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert triton.supported() == Reason.NOT_INSTALLED
