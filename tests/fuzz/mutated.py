"""One mutated file through the command: nothing escapes, and the file is the old or a whole new."""

from __future__ import annotations

import random
import signal
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz.commands import Done, FaultError, normport, normport_process
from fuzz.mutations import mutate
from normport.codemods.analyze import find_sites, may_hold_norm
from normport.codemods.depth import with_deep_stack

SECONDS = 120
"""What a run may take at most: a tenth of that would be suspicious, but other work goes on."""

OPTIONS = (
    ("rewrite", "--write", "--no-proof", "--allow-unproven"),
    ("rewrite", "--write", "--no-proof", "--allow-unproven", "--unsafe"),
    ("rewrite", "--diff", "--no-proof", "--allow-unproven"),
    ("scan", "--no-proof", "--output-format=json"),
    ("scan", "--no-proof", "--output-format=sarif", "--strict"),
)
WEIGHTS = (6, 1, 1, 1, 1)
_ROOT = b"rsqrt"


@dataclass(frozen=True)
class Mutant:
    """A file to run the command on. name: its file name; data: what it holds."""

    name: str
    data: bytes
    options: tuple[str, ...]


def corpus(tree: Path) -> list[Path]:
    """The model files of a vLLM tree that may hold a norm.

    Those in which one is refused are half of the list, for which they occur several times. Those
    in which one is converted are few of it, since each takes seconds.
    """
    folders = [tree / "vllm" / "model_executor" / "models", tree / "vllm" / "models"]
    kinds: dict[str, list[Path]] = {"convert": [], "refuse": [], "other": []}
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        data = path.read_bytes()
        if may_hold_norm(data):
            verdicts = (
                {site.verdict for site in find_sites(data, path.name)} if _ROOT in data else ()
            )
            kind = next((kind for kind in kinds if kind in verdicts), "other")
            kinds[kind].append(path)
    shares = {"convert": 0.03, "refuse": 1.0, "other": 1.0}
    many = len(kinds["other"])
    return [
        path
        for kind, files in kinds.items()
        for path in files * max(1, round(many * shares[kind] / max(1, len(files))))
    ]


def make(seed: str, files: Sequence[Path]) -> Mutant:
    """The mutant of a seed."""
    rng = random.Random(seed)
    path = rng.choice(files)
    original = path.read_bytes()
    data = mutate(rng, original)
    for _ in range(rng.choice((0, 4, 8))):  # a file that does not parse is soon done with
        if parses(data):
            break
        data = mutate(rng, original)
    return Mutant(path.name, data, rng.choices(OPTIONS, WEIGHTS)[0])


def check(mutant: Mutant, folder: Path, *, process: bool = False) -> str:
    """Run the command on it in ``folder``, which is empty and left empty; what came of it.

    process: the command runs in a process of its own as well, and must say the same.

    Raises FaultError.
    """
    path = folder / mutant.name
    path.write_bytes(mutant.data)
    try:
        with _limited():
            return _check(mutant, path, process)
    finally:
        for left in folder.iterdir():
            left.unlink()


def _check(mutant: Mutant, path: Path, process: bool) -> str:
    done = normport(*mutant.options, path)
    after = path.read_bytes()
    _check_alone(path)
    if process:
        path.write_bytes(mutant.data)
        other = normport_process(*mutant.options, path)
        if other != done or path.read_bytes() != after:
            raise FaultError(f"a process of its own says {other}, this one {done}")
    if "--write" not in mutant.options and after != mutant.data:
        raise FaultError("the file was changed without --write")
    if after != mutant.data:
        _check_rewritten(done, after)
        again = normport(*mutant.options, path)
        if path.read_bytes() != after:
            raise FaultError("the second rewrite changed the file again")
        if again.status == 2:
            raise FaultError(f"the second rewrite failed: {again.err}")
        return "converted"
    if not parses(mutant.data) and done.status != 2:
        raise FaultError("a named file that does not parse was not told of")
    if "--diff" in mutant.options and done.out:
        _check_diff(path, done)
        return "diff"
    return "error" if done.status == 2 else "left"


def _check_rewritten(done: Done, after: bytes) -> None:
    if done.status == 2:
        raise FaultError(f"the file was changed although the run failed: {done.err}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(after, "after", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise FaultError(f"the rewritten file does not compile: {error}") from error


def _check_alone(path: Path) -> None:
    names = sorted(entry.name for entry in path.parent.iterdir())
    if names != [path.name]:
        raise FaultError(f"stray files: {names}")


def _check_diff(path: Path, done: Done) -> None:
    checked = subprocess.run(
        ["git", "apply", "--check", "-"],
        cwd=path.parent,
        input=done.out.encode(),
        capture_output=True,
        check=False,
    )
    if checked.returncode != 0:
        raise FaultError(f"git apply does not take the diff: {checked.stderr.decode()}")


def parses(data: bytes) -> bool:
    """Whether the text is Python's; how deep it may nest is left to who reads it, as far as there
    is room."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with_deep_stack(
                lambda: compile(data, "before", "exec", dont_inherit=True, flags=_ONLY_AST)
            )
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise FaultError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
