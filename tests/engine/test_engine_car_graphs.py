"""The fusion pass and the ops of vllm-musa, in processes of their own.

Their checks import vLLM, which takes long, starts threads and changes what a process does; so they
are no test files, which every worker would import.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
HERE = Path(__file__).resolve().parent


CHECKS = ("car_pass_checks.py", "car_musa_checks.py")


def test_the_checks_pass() -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS],
        env=kept | {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    passed = re.search(r"^(\d+) passed in", said, re.MULTILINE)
    assert passed is not None, said
    assert int(passed[1]) > 40, said
