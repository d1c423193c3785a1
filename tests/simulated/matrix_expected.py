"""Which path each case of the matrix takes on each device, and why: written down apart from
the guards, so that a guard that drifts is seen.

A path is (implementation, reason). The implementations: ``guard`` (our guarded kernel), ``gemma``
(Gemma's kernel), ``vllm_c`` (vLLM's own IR provider), ``native`` and ``empty`` (nothing to run).
The reason is why the guard before it said no; None where there is none to ask.
"""

from __future__ import annotations

import torch
from matrix_cases import Case

Path = tuple[str, str | None]
Question = tuple[bool, str]

STRIDED = ("split of qkv", "last stride 2", "odd outer strides")


def first(questions: list[Question]) -> str | None:
    return next((reason for met, reason in questions if met), None)


def row_reason(case: Case) -> str | None:
    return first(
        [
            (case.dtype is not torch.float16, "not float16"),
            (case.rank != 2, "not 2-D"),
            (case.rows != 1, "rows outside the limits"),
            (case.weight == "float32", "weight of another dtype"),
            (case.weight == "strided", "weight not contiguous"),
            (case.layout == "last stride 2", "input not contiguous"),
        ]
    )


def heads_reason(case: Case) -> str | None:
    return first(
        [
            (case.rank != 2, "not 2-D"),
            (case.hidden == 8 or case.hidden > 256, "last dimension outside the limits"),
            (case.rows == 0 or case.rows > 128, "rows outside the limits"),
            (case.layout == "last stride 2", "rows not dense"),
        ]
    )


def guard_reason(case: Case) -> str | None:
    return heads_reason(case) if case.weight == "none" else row_reason(case)


def guarded(case: Case) -> Path:
    """By the guards alone, which stand before native: on MUSA, and on XPU in compile mode."""
    reason = guard_reason(case)
    return ("guard" if reason is None else "native"), reason


def on_cpu(case: Case) -> Path:
    return "native", None


def on_musa(case: Case) -> Path:
    if case.residual != "none":
        return "native", None
    return guarded(case)


def on_xpu(case: Case) -> Path:
    return _gemma(case) if case.layer == "GemmaRMSNorm" else _plain(case)


def _plain(case: Case) -> Path:
    matching = case.weight == "none" or case.weight_dtype is case.dtype
    return ("vllm_c" if matching else "native"), None


def _gemma(case: Case) -> Path:
    weight = [
        (case.weight_dtype is not case.dtype, "weight of another dtype"),
        (case.weight == "strided", "weight not contiguous"),
    ]
    # A tensor of no or one row is contiguous whatever its outer strides.
    apart = case.layout in STRIDED and case.rows > (0 if case.layout == "last stride 2" else 1)
    residual = [
        (apart, "input not contiguous"),
        (case.rows == 0, "no elements"),
        (case.layout == "(N, 1, D)" and case.rows > 1, "rows not at their own distance"),
        (case.residual == "aliasing", "input and residual share memory"),
    ]
    if case.residual == "none":
        residual = [(case.rows == 0, "no elements")]
    reason = first(weight + residual)
    if reason is None:
        return "gemma", None
    if reason == "no elements" and case.residual == "none":
        return "empty", reason
    return "native", reason


EXPECTED = {"cpu": on_cpu, "xpu": on_xpu, "musa": on_musa}
