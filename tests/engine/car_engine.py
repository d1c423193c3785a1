"""Engine runs under the test platform: what is run, and what each wrote."""

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
TIMEOUT_S = 3000

LAYERS = 2
HIDDEN = 64
VOCABULARY = 512
"""As ``tiny_qwen.py`` makes them."""
# Row 16 is native, as for the real models, and a prompt of 30 tokens reaches the range after it.
CELLS = [
    {
        "family": f"qwen3.5-{kind}",
        "size": "tiny",
        "tensor_parallel": ranks,
        "hidden_size": HIDDEN,
        "precision": precision,
        "native_rows": [16],
        "endpoints": [15, 16],
    }
    for kind in ("dense", "moe")
    for ranks in (2, 4)
    for precision in ("BF16", "FP8")
]
OFF = {"compilation_config": {"pass_config": {"fuse_allreduce_rms": False}}}


@dataclass(frozen=True)
class Run:
    """What a run generated, how it ended, its log, and its ranks' reports.

    outputs: None where nothing was generated. status: 0, or why it ended otherwise (None: killed
    because it took too long).
    """

    outputs: list[dict[str, Any]] | None
    status: int | None
    seconds: float
    log: str
    ranks: list[dict[str, Any]]
    report: Path


def job(name: str, kind: str, *, then: str = "", **options: Any) -> dict[str, Any]:
    """One run: kind is that of ``tiny_qwen``, then what happens afterwards, options ``LLM``'s."""
    return {"name": name, "kind": kind, "then": then, "options": options}


def run_engine(home: Path, *jobs: dict[str, Any]) -> dict[str, Run]:
    """Run them one after the other, with one compile cache; the results by name.

    A run that ends with an error is a result too.
    """
    home.mkdir(exist_ok=True)
    plan = home / "jobs.json"
    plan.write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, HERE / "car_engine_runner.py", home, plan],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment(home, None)
        | {
            "HOME": os.environ.get("HOME", str(home)),
            "PYTHONPATH": str(HERE / "car_plugin"),
            "NORMPORT_CAR_TEST": json.dumps(CELLS),
            "VLLM_LOGGING_LEVEL": "INFO",
        },
        cwd=home,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"the runner failed; its log ends:\n{done.stdout[-4000:]}"
    return {job["name"]: _read(home / job["name"]) for job in jobs}


def _read(folder: Path) -> Run:
    outputs = folder / "outputs.json"
    report = folder / "report"
    ended = json.loads((folder / "ended.json").read_text())
    return Run(
        outputs=json.loads(outputs.read_text()) if outputs.exists() else None,
        status=ended["status"],
        seconds=ended["seconds"],
        log=(folder / "log").read_text(errors="replace"),
        ranks=[json.loads(path.read_text()) for path in sorted(report.glob("*.json"))],
        report=report,
    )
