"""Does a standard layer compute what the local norm computed? Both are run, elsewhere.

Needs no torch itself: a separate process with the same interpreter runs the norms and is given
a time and a memory limit per case (``normport.tools.proof_runner``).
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
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from normport.codemods.model import ProofCase
from normport.tools.errors import UserError
from normport.tools.tree import SourceTree

Status = Literal["equal", "bounded", "different", "failed"]

BOUND = (
    "2 ulp in float16 and bfloat16, 32 ulp in float32; "
    "half the factor more where the normalized value is subnormal"
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
    float32_checkpoint: per run dtype, where the two weights have different dtypes: the distance
        when a float32 checkpoint is loaded (the narrower weight is rounded on load, the wider is
        not). It does not enter the status.
    """

    status: Status
    results: dict[str, DtypeResult]
    partner: str
    reason: str | None = None
    float32_checkpoint: dict[str, DtypeResult] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any] | None:
        """The ``equivalence`` object of a finding; None when nothing was run."""
        if self.status == "failed":
            return None
        found: dict[str, Any] = {name: _brief(result) for name, result in self.results.items()}
        if self.float32_checkpoint:
            found["float32_checkpoint"] = {
                name: _brief(result) for name, result in self.float32_checkpoint.items()
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
    distinct = list(dict.fromkeys(cases))
    if not distinct:
        return []
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
    return [answers.get(case, lost) for case in cases]


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
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env={**os.environ, **_ENVIRONMENT},
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
    )


def _results(found: dict[str, Any]) -> dict[str, DtypeResult]:
    return {
        name: DtypeResult(**{**result, "skipped": tuple(result["skipped"])})
        for name, result in found.items()
    }
