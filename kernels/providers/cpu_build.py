"""Compiles ``cpu_norms.cpp`` once per machine and compiler, and loads it.

The file includes nothing but the C++ library, so it takes some seconds, once: the result is kept
in the user's cache folder (or below ``NORMPORT_CACHE``) under a name made of the source, the flags
and everything that the compiler predefines, which includes its version and the instructions that
the machine has. torch.compile on the CPU needs the same compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from normport.kernels.reasons import Reason

SOURCE = Path(__file__).with_name("cpu_norms.cpp")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fopenmp",
    "-shared",
    "-fPIC",
)


@dataclass(frozen=True)
class Built:
    """The loaded library, or the reason why there is none, with what the compiler said."""

    library: ctypes.CDLL | None
    reason: str | None = None
    details: str = ""


@functools.cache
def build() -> Built:
    """The compiled kernels of this process; tried once."""
    compiler = _compiler()
    if compiler is None or sys.platform == "win32":
        return Built(None, Reason.NO_COMPILER)
    macros = _run([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    if macros.returncode:
        return Built(None, Reason.NO_COMPILER, macros.stdout)
    parts = (SOURCE.read_text(encoding="utf-8"), " ".join(FLAGS), compiler, macros.stdout)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"cpu_norms-{digest}.so"
        if not path.is_file():
            said = _compile(compiler, path)
            if said is not None:
                return Built(None, Reason.CANNOT_LOAD, said)
        return Built(ctypes.CDLL(str(path)))
    except OSError as error:
        return Built(None, Reason.CANNOT_LOAD, str(error))


def _compile(compiler: str, path: Path) -> str | None:
    """Make ``path``, whole or not at all; what the compiler said if it failed."""
    with tempfile.TemporaryDirectory(dir=path.parent) as drafts:
        draft = Path(drafts) / path.name
        done = _run([compiler, *FLAGS, str(SOURCE), "-o", str(draft)])
        if done.returncode:
            return done.stdout
        draft.replace(path)
    return None


def _compiler() -> str | None:
    """The compiler named by ``CXX``, else the first of the usual ones."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++"]
    return next((found for name in candidates if (found := shutil.which(name))), None)


def _folder() -> Path:
    named = os.environ.get("NORMPORT_CACHE")
    return (Path(named) if named else platformdirs.user_cache_path("normport")) / "kernels"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
