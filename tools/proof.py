"""Does a standard layer compute what the local norm computed? Both are run, elsewhere.

Needs no torch itself: a separate process with the same interpreter sees to it, in an empty folder
and without what the environment holds beside Python's own settings. Below it each norm runs in a
process that is confined and has a limit on time and memory (``normport.tools.proof_runner``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from normport.codemods.model import CallForm, ProofCase
from normport.tools.errors import UserError
from normport.tools.tree import SourceTree

Status = Literal["equal", "bounded", "different", "failed"]

BOUND = (
    "2 ulp in float16 and bfloat16, 32 ulp in float32; "
    "half the factor more where the normalized value is subnormal"
)

# What Python and torch need of the user's environment; it may hold credentials as well.
_PASSED_ON = (
    "CONDA_PREFIX",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
)

# One thread, and vector code that is the same on every processor of a kind: the counts of
# differing elements go into files that must come out the same on another machine.
_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class DtypeResult:
    """Old and new in one run dtype.

    max_ulp: the largest distance in ulps of that dtype. max_ulp_normal: the same where the
    normalized value is a normal number (a subnormal one has fewer digits). differing: elements
    more than 0 apart.
    elements, inputs: how much was compared (not everything once it is known to differ).
    beyond: elements further apart than the bound.
    nonfinite: elements where only one is infinite or NaN (they differ, at no distance).
    zero_signs: zeros of unlike sign, which count as 0 ulp.
    worst: the input and values of the largest distance. histogram: elements per distance.
    skipped: inputs that the old norm itself does not accept.
    """

    max_ulp: int
    max_ulp_normal: int
    differing: int
    elements: int
    inputs: int
    beyond: int
    nonfinite: int
    zero_signs: int
    worst: str | None
    histogram: dict[str, int]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Equivalence:
    """What the proof found about one case.

    status: ``equal`` (every bit of every output), ``bounded`` (only rounding, within ``BOUND``),
        ``different`` (another computation) or ``failed`` (it could not be run).
    results: per run dtype. partner: whose norms the new side ran.
    reason: one sentence, None if equal.
    forms: how sites call the norm, beside ``norm(x)`` with 2-D and 3-D input, which is what
        ``results`` are of; and per run dtype what was found, which enters the status. A form
        without results is what ``results`` are of instead.
    ranks: how many dimensions the inputs had that the old norm accepted; empty if it failed.
    float32_checkpoint: per run dtype, where the two weights have different dtypes: the distance
        when a float32 checkpoint is loaded (the narrower weight is rounded on load, the wider is
        not). It does not enter the status.
    """

    status: Status
    results: dict[str, DtypeResult]
    partner: str
    reason: str | None = None
    float32_checkpoint: dict[str, DtypeResult] = field(default_factory=dict)
    forms: dict[str, dict[str, DtypeResult]] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()

    def to_json(self) -> dict[str, Any] | None:
        """The ``equivalence`` object of a finding; None when nothing was run."""
        if self.status == "failed":
            return None
        found: dict[str, Any] = {name: _brief(result) for name, result in self.results.items()}
        if self.float32_checkpoint:
            found["float32_checkpoint"] = {
                name: _brief(result) for name, result in self.float32_checkpoint.items()
            }
        if self.forms:
            found["forms"] = {
                form: {name: _brief(result) for name, result in results.items()}
                for form, results in self.forms.items()
            }
        return found


def _brief(result: DtypeResult) -> dict[str, Any]:
    return {name: value for name, value in asdict(result).items() if name != "skipped" or value}


INSTALL_TORCH = (
    "install it (`pip install '.[proof]'` where normport's sources are), or pass "
    "--no-proof --allow-unproven."
)


def check_torch() -> None:
    """Tell at once, without loading torch, when there is none to run a proof with.

    Raises UserError when torch is not installed for this Python.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"The proof needs PyTorch, which is not installed for {sys.executable}: {INSTALL_TORCH}"
        )


def prove(
    cases: Sequence[ProofCase], tree: SourceTree | None, *, timeout_s: float = 120.0
) -> list[Equivalence]:
    """Run each case's old and new norm side by side and return what was found, in order.

    tree: the new norms are this tree's own layers; without one, ``normport.kernels.reference``.
    timeout_s: seconds that one case may take; loading torch may take as long again.
    Equal cases are run once. Raises UserError when the interpreter has no usable torch.
    """
    if not cases:
        return []
    distinct = list(dict.fromkeys(_unit(case) for case in cases))
    if tree is None:
        partner = "the 0.29 semantics (normport.kernels.reference)"
    else:
        partner = f"the layernorm of {tree.origin}"
    answers, last_words = _ask(distinct, tree, timeout_s, partner)
    if len(distinct) > 1:
        # A case that took the whole process with it must not cost the others their proof.
        for case in [case for case in distinct if case not in answers]:
            more, last_words = _ask([case], tree, timeout_s, partner)
            answers |= more
    reason = f"the proof process ended before it answered{last_words}"
    lost = Equivalence("failed", {}, partner, reason)
    return [_for_site(case, answers.get(_unit(case), lost)) for case in cases]


def _unit(case: ProofCase) -> ProofCase:
    """What has to be run for ``case``: the plain forms are run for every norm."""
    more = tuple(form for form in case.forms if not form.plain)
    if more and len(more) < len(case.forms):
        more = (CallForm("norm(x)"), *more)
    return replace(case, forms=more)


def _for_site(case: ProofCase, found: Equivalence) -> Equivalence:
    """``found``, unless the norm does not take the input that a site of ``case`` gives it."""
    for form in case.forms:
        if form.plain and form.rank and found.ranks and form.rank not in found.ranks:
            reason = f"the old norm accepts no {form.name}, which is what a site gives it"
            return Equivalence("failed", {}, found.partner, reason)
    return found


def _ask(
    cases: Sequence[ProofCase], tree: SourceTree | None, timeout_s: float, partner: str
) -> tuple[dict[ProofCase, Equivalence], str]:
    request = {
        "root": None if tree is None else str(tree.root.resolve()),
        "timeout_s": timeout_s,
        "cases": [asdict(case) for case in cases],
    }
    answers: dict[ProofCase, Equivalence] = {}
    output, last_words = _run(json.dumps(request), timeout_s * (len(cases) + 1) + 60.0)
    for line in output.splitlines():
        answer = json.loads(line)
        if "no_torch" in answer:
            raise UserError(
                f"The proof needs PyTorch, which {sys.executable} cannot import "
                f"({answer['no_torch']}): {INSTALL_TORCH}"
            )
        if "partner" in answer:
            reason = f"{partner} could not be loaded: {answer['partner']}"
            return {case: Equivalence("failed", {}, partner, reason) for case in cases}, ""
        answers[cases[answer["index"]]] = _equivalence(answer, partner)
    return answers, last_words


def _run(request: str, limit_s: float) -> tuple[str, str]:
    """The runner's output, and the last line it complained with, in brackets, or nothing."""
    # -P: the working directory may be a vLLM checkout, whose modules must not be imported.
    command = [sys.executable, "-P", "-m", "normport.tools.proof_runner"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryDirectory(prefix="normport-proof-") as folder,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=_environment(folder),
            cwd=folder,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(request, timeout=limit_s)
        except subprocess.TimeoutExpired as expired:
            partial = expired.output or b""
            output = partial.decode() if isinstance(partial, bytes) else partial
        finally:
            _end(process)
        errors.seek(0)
        lines = errors.read().split("\n")
        return output, next((f" ({line.strip()})" for line in reversed(lines) if line.strip()), "")


def _environment(folder: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # From another folder a relative entry would name another place.
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if paths:
        passed["PYTHONPATH"] = os.pathsep.join(paths)
    return {**passed, **_ENVIRONMENT, "HOME": folder, "TMPDIR": folder}


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and every process that it or a case has started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _equivalence(answer: dict[str, Any], partner: str) -> Equivalence:
    if "failed" in answer:
        return Equivalence("failed", {}, partner, f"the proof could not be run: {answer['failed']}")
    return Equivalence(
        answer["status"],
        _results(answer["results"]),
        partner,
        answer["reason"],
        _results(answer["float32_checkpoint"]),
        {form: _results(results) for form, results in answer["forms"].items()},
        frozenset(answer["ranks"]),
    )


def _results(found: dict[str, Any]) -> dict[str, DtypeResult]:
    return {
        name: DtypeResult(**{**result, "skipped": tuple(result["skipped"])})
        for name, result in found.items()
    }
