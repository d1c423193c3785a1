"""``trace`` and ``decode-latency`` as commands: what they print, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_sources import Command

DECODE = "execute_context_0(0)_generation_1(1)"


def write(name: str, kernels: list[str]) -> Path:
    step = {"ph": "X", "cat": "user_annotation", "name": DECODE, "ts": 0, "dur": 100}
    events = [step, {"ph": "M", "name": "process_name"}]
    events += [
        {"ph": "X", "cat": "kernel", "name": kernel, "ts": 5 + number, "dur": 1, "args": {}}
        for number, kernel in enumerate(kernels)
    ]
    file = Path(name)
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_two_traces_are_set_beside_each_other(folder: Path, normport: Command) -> None:
    before = write("before.json", ["pow", "mean", "rsqrt", "mul", "gemm"])
    after = write("after.json", ["gemma_rms_norm", "gemm"])
    result = normport("trace", before, after)
    assert (result.status, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()]
    assert ["decode", "steps", "1", "1"] in rows
    assert ["kernels", "per", "step", "5", "2"] in rows
    assert ["norm", "kernels", "per", "step", "1", "1"] in rows
    assert "gemma_rms_norm" in result.out
    found = json.loads(normport("trace", before, after, "--output-format", "json").out)
    assert [trace["kernels_per_step"]["median"] for trace in found["traces"]] == [5, 2]


def test_a_trace_without_decode_steps_is_not_counted(folder: Path, normport: Command) -> None:
    file = write("trace.json", ["gemm"])
    file.write_text(file.read_text().replace("context_0(0)", "context_1(7)"))
    result = normport("trace", file)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(
        "error: trace.json has no decode steps (only 1 with prompt tokens)"
    )
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Name a server with --base-url, or a model"),
        (["--model", "m", "--runner", "v3"], "model runners are v1 and v2"),
        (["--model", "m", "--engine-args", "{"], "--engine-args is not JSON"),
        (["--model", "m", "--engine-args", "[]"], "no JSON object"),
        (["--base-url", "http://127.0.0.1:9"], "does not list its models"),
        (["--base-url", "http://127.0.0.1:9", "--out", "no/file"], "no is no folder"),
        (["--model", "m", "--output-format", "sarif"], "'sarif' is not one of"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    folder: Path, normport: Command, arguments: list[str], reason: str
) -> None:
    result = normport("decode-latency", *arguments)
    assert result.status == 2
    assert result.out == ""
    assert reason in result.err
    assert "Traceback" not in result.err
