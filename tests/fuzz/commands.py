"""The command line inside this process, and what must hold after every run of it."""

from __future__ import annotations

import io
import subprocess
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from normport.tools.cli import run

COMMAND = (sys.executable, "-c", "from normport.tools.cli import main; main()")


class FaultError(Exception):
    """Something that must never happen did; the message says what."""


@dataclass(frozen=True)
class Done:
    """What a run of the command printed and returned."""

    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def normport(*arguments: str | Path) -> Done:
    """Run the command here; a FaultError when anything escapes from it."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        # Whoever runs the command sees Python's own filters, which print such warnings.
        warnings.simplefilter("error", SyntaxWarning)
        try:
            status = run([str(argument) for argument in arguments])
        except Exception as error:
            raise FaultError(f"a traceback: {_told(error)}") from error
        out.flush()
    return check_told(Done(status, out.buffer.getvalue().decode(), err.getvalue()))  # type: ignore[attr-defined]


def normport_process(*arguments: str | Path) -> Done:
    """The same in a process of its own."""
    command = [*COMMAND, *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    return check_told(Done(done.returncode, done.stdout.decode(), done.stderr.decode()))


def check_told(done: Done) -> Done:
    """One sentence for each error, errors with status 2 and only there, nothing of Python's."""
    if done.status not in (0, 1, 2):
        raise FaultError(f"exit status {done.status}")
    if "Traceback" in done.err or "Warning: " in done.err:
        raise FaultError(f"Python's own words on stderr: {done.err[-500:]}")
    if (done.status == 2) != bool(done.errors):
        raise FaultError(f"exit status {done.status} with {len(done.errors)} errors on stderr")
    for line in done.errors:
        if not line.endswith("."):
            raise FaultError(f"an error that is no sentence: {line}")
    return done


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "normport" in f.filename]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__}: {error} at {', '.join([*where[-3:], last])}"
