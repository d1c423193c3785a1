"""One engine run with tensor parallel 2 under the test platform: start it, read what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_trees import environment

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1500

# Row 16 is native, as for the real models, and a prompt of 30 tokens reaches the range after it.
CELLS = [
    {
        "family": f"qwen3.5-{kind}",
        "size": "tiny",
        "tensor_parallel": 2,
        "hidden_size": 64,
        "precision": "BF16",
        "native_rows": [16],
        "endpoints": [15, 16],
    }
    for kind in ("dense", "moe")
]


@dataclass(frozen=True)
class Run:
    """What a run generated, its log, and the folder with the ranks' reports."""

    outputs: list[dict[str, Any]]
    log: str
    report: Path

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.report.glob("*.json"))]


def car_environment(home: Path, name: str) -> dict[str, str]:
    """Caches are those of ``home``: runs that share one share the compile cache."""
    return environment(home, None) | {
        "PYTHONPATH": str(HERE / "car_plugin"),
        "NORMPORT_CAR_TEST": json.dumps(CELLS),
        "NORMPORT_CAR_REPORT": str(home / name / "report"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }


def run_engine(home: Path, kind: str, name: str = "run", *, off: bool = False) -> Run:
    """Compile and generate; ``kind`` is dense or moe."""
    checkpoint = home / f"checkpoint-{kind}"
    kept = car_environment(home, name)
    (home / name).mkdir(parents=True)
    if not checkpoint.exists():
        make = [sys.executable, HERE / "tiny_qwen.py", checkpoint, kind]
        subprocess.run(make, check=True, capture_output=True, env=environment(home, None))
    out = home / name / "outputs.json"
    command = [sys.executable, HERE / "car_engine_runner.py", checkpoint, out]
    done = subprocess.run(
        [*command, *(["--off"] if off else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=kept | {"HOME": os.environ.get("HOME", str(home))},
        cwd=home,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"the {name} engine failed; its log ends:\n{done.stdout[-4000:]}"
    return Run(json.loads(out.read_text()), done.stdout, home / name / "report")
