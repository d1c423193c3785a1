"""Generated model files through the command: each is rewritten once, and does what it did."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.behavior import compare
from fuzz.byte_forms import to_bytes
from fuzz.choices import Choices
from fuzz.commands import FaultError, normport
from fuzz.model_files import ModelFile, model_file

UNPROVEN = ("rewrite", "--write", "--no-proof", "--allow-unproven")
PROVEN = ("rewrite", "--write")


@dataclass(frozen=True)
class Case:
    """One generated package. files: name -> content."""

    seed: str
    model: ModelFile
    files: Mapping[str, bytes]


@dataclass
class Tally:
    """What came of a batch. faults: seed of the case -> what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)


def make(seed: str, plain: frozenset[str] = frozenset()) -> Case:
    """The case of a seed; see ``Choices`` for ``plain``."""
    return of(Choices(seed, plain))


def of(choices: Choices) -> Case:
    """The case of these choices."""
    model = model_file(choices)
    files = {name: to_bytes(choices, text) for name, text in model.files.items()}
    return Case(choices.seed, model, files)


def check_all(cases: Sequence[Case], folder: Path, *, proof: bool = False) -> Tally:
    """Rewrite all ``cases`` in one run in ``folder``, which is empty and left empty.

    proof: run the proof and accept what it calls safe, which must then be bit-equal.
    """
    tally = Tally()
    try:
        failed = _run(cases, folder, proof, tally)
    finally:
        _empty(folder)
    if failed is not None:
        for case in cases:  # which of them was it?
            try:
                alone = Tally()
                fault = _run([case], folder, proof, alone) if len(cases) > 1 else failed
            finally:
                _empty(folder)
            tally.counts += alone.counts
            tally.faults |= alone.faults
            if fault is not None:
                tally.faults[case.seed] = fault
    return tally


def _run(cases: Sequence[Case], folder: Path, proof: bool, tally: Tally) -> str | None:
    """Fill ``tally``; what went wrong with the run as a whole is returned instead."""
    for number, case in enumerate(cases):
        for name, data in case.files.items():
            path = folder / f"case{number}" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    expected = sorted(path for path in folder.rglob("*"))
    arguments = PROVEN if proof else UNPROVEN
    try:
        roots = sorted(folder.iterdir())  # apart, so that no case is another's neighbor
        done = normport(*arguments, *roots)
        if done.status == 2:
            return done.err
        after = [_read(folder / f"case{number}", case) for number, case in enumerate(cases)]
        again = normport(*arguments, *roots)
        if again.status == 2:
            return f"the second rewrite failed: {again.err}"
    except FaultError as fault:
        return str(fault)
    if sorted(path for path in folder.rglob("*")) != expected:
        return "stray files"
    for number, case in enumerate(cases):
        try:
            if _read(folder / f"case{number}", case) != after[number]:
                raise FaultError("the second rewrite changed it again")
            outcome = _outcome(case, after[number], exact=proof or case.model.exact)
        except FaultError as fault:
            tally.faults[case.seed] = str(fault)
            outcome = "fault"
        tally.counts[outcome] += 1
    return None


def _outcome(case: Case, after: Mapping[str, bytes], *, exact: bool) -> str:
    if after == case.files:
        return "left"
    for name, data in after.items():
        _check_bytes(case.files[name], data)
    return "converted" if compare(case.files, after, exact=exact) == "same" else "no program"


def _check_bytes(before: bytes, after: bytes) -> None:
    """The file compiles and keeps its line ends, its byte order mark and its last line's end."""
    try:
        compile(after, "after", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise FaultError(f"the rewritten file does not compile: {error}") from error
    for one, two in ((before, after), (after, before)):
        if one.startswith(b"\xef\xbb\xbf") and not two.startswith(b"\xef\xbb\xbf"):
            raise FaultError("a byte order mark came or went")
    for end in (b"\r\n", b"\n", b"\r"):
        if _ends(before) == {end} != _ends(after):
            raise FaultError(f"line ends {_ends(after)} in a file that had {end!r}")


def _ends(data: bytes) -> set[bytes]:
    ends = {b"\r\n"} if b"\r\n" in data else set()
    rest = data.replace(b"\r\n", b"")
    return ends | {end for end in (b"\n", b"\r") if end in rest}


def _read(folder: Path, case: Case) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in case.files}


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry)
