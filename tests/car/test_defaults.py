"""The start-up line: the effective state, who asked for it, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from normport.layers.car_rmsnorm.cells import Decision
from normport.layers.car_rmsnorm.defaults import describe

IN = Decision(True, "cell", "Supported.")
OUT = Decision(False, "tp8", "Native: outside.")


def said(flag: bool, requested: Any, decision: Decision, largest: int | None = 100) -> str:
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            pass_config=SimpleNamespace(fuse_allreduce_rms=flag),
            compile_ranges_endpoints=[1, 16, 100, 999],
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=largest),
    )
    return describe(config, requested, decision).removeprefix("CAR-RMSNorm: ")


@pytest.mark.parametrize(
    ("flag", "requested", "decision", "line"),
    [
        (
            True,
            "auto",
            IN,
            "on, by default. Supported. Compile range endpoints: 16.",
        ),
        (
            True,
            "on",
            IN,
            "on, as requested. Supported. Compile range endpoints: 16.",
        ),
        (True, "on", OUT, "requested, but it does nothing. Native: outside."),
        (False, "auto", OUT, "off, by default. Native: outside."),
        (False, "off", IN, "off, as requested by pass_config.fuse_allreduce_rms=False."),
        (False, "off", OUT, "off, as requested by pass_config.fuse_allreduce_rms=False."),
        # The default was on, or somebody asked for it, and neither is so any more.
        (False, "auto", IN, "off. The platform turned pass_config.fuse_allreduce_rms off."),
        (False, "on", IN, "off. The platform turned pass_config.fuse_allreduce_rms off."),
        (False, "on", OUT, "off. The platform turned pass_config.fuse_allreduce_rms off."),
    ],
)
def test_the_line(flag: bool, requested: str, decision: Decision, line: str) -> None:
    assert said(flag, requested, decision) == line


def test_without_a_largest_batch_every_endpoint_is_named() -> None:
    assert said(True, "auto", IN, None).endswith("endpoints: 16, 100, 999.")
