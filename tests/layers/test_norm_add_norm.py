"""``NormAddNorm``, as the optional patch adds it, on the norm layers of two releases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from normport.tools.tree import SourceTree

CHECK = Path(__file__).parent / "norm_add_norm_check.py"


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_every_path_is_two_norms_and_a_sum(
    release: Callable[[str], SourceTree], version: str
) -> None:
    root = release(version).root
    done = subprocess.run(
        [sys.executable, CHECK, root], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["paths"].pop("elements") > 500_000
    assert found["paths"] == {"native": 0, "cpu": 0, "definition": 0}
    # What is more than a plain norm, or would be another implementation, is called as it is.
    assert found["called"] == {"plain": False, "hook": True, "subclass": True, "priority": True}
    assert found["traced"]
    assert found["state"] == []
