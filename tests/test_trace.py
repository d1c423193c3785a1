"""Counting kernels per decode step in traces, real ones of the CPU's operators among them."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from normport.tools.errors import UserError
from normport.tools.trace import count

PROMPT, DECODE = "execute_context_1(64)_generation_0(0)", "execute_context_0(0)_generation_2(2)"


def span(name: str, category: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    found = {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length}
    return {**found, "pid": 1, "tid": 1, "args": arguments}


def write(folder: Path, events: list[dict[str, Any]]) -> Path:
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def device_trace() -> list[dict[str, Any]]:
    """A prompt and two decode steps; the device runs after its host, so only launches tell."""
    events = [span(PROMPT, "user_annotation", 0, 100), span(DECODE, "user_annotation", 200, 100)]
    events.append(span(DECODE, "user_annotation", 400, 100))
    launches = [(10, "rms_norm_kernel"), (210, "rms_norm_kernel"), (220, "gemm"), (230, "add")]
    launches += [(410, "rms_norm_kernel"), (420, "gemm"), (350, "sampler")]
    for number, (time, name) in enumerate(launches):
        events.append(span("urEnqueueKernelLaunch", "xpu_runtime", time, 1, correlation=number))
        events.append(span(name, "kernel", 5000 + time, 1, correlation=number))
    return events


def test_kernels_count_where_they_were_launched(tmp_path: Path) -> None:
    found = count(write(tmp_path, device_trace()))
    assert [(step.tokens, step.kernels, step.norms) for step in found.steps] == [
        (2, 3, 1),
        (2, 2, 1),
    ]
    assert found.what == "kernels"
    assert found.other == 1


def test_unitrace_is_read_by_its_flows(tmp_path: Path) -> None:
    events = [span(DECODE, "cpu_op", 200, 100)]
    names = ["gemma_rms_norm<half>", "Tile #0: gemm[SIMD32]", "zeCommandListAppendMemoryCopy(H2D)"]
    for number, name in enumerate(names):
        flow = {"ph": "s", "name": "dep", "cat": f"Flow_H2D_{number}_0", "ts": 210, "id": number}
        events += [{**flow, "pid": 1, "tid": 1}, span(name, "gpu_op", 900, 1, id=str(number))]
    (step,) = count(write(tmp_path, events)).steps
    assert (step.kernels, step.norms) == (2, 1)


def test_a_kernel_is_known_by_the_operator_that_launched_it(tmp_path: Path) -> None:
    events = device_trace()[1:2]
    events.append(span("aten::rsqrt", "cpu_op", 205, 5, **{"External id": 7}))
    events.append(span("elementwise", "kernel", 206, 1, **{"External id": 7}))
    (step,) = count(write(tmp_path, events)).steps
    assert step.names == {"elementwise (aten::rsqrt)": 1}


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (device_trace()[:1], "has no decode steps (only 1 with prompt tokens)"),
        (device_trace()[3:], "has no decode steps (none that vLLM marks)"),
        (device_trace()[1:2], "without a kernel or an operator"),
    ],
)
def test_without_decode_steps_nothing_is_counted(
    tmp_path: Path, events: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(UserError, match="nothing was counted") as failed:
        count(write(tmp_path, events))
    assert reason in str(failed.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]\x00", gzip.compress(b"no json", mtime=0), b"{}"],
    ids=["empty", "cut", "a list", "gzip", "no events"],
)
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match="trace"):
        count(tmp_path / "file")


def test_a_real_trace_of_the_profiler(tmp_path: Path) -> None:
    """The chain of operators of a local norm against one operator, on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.ones(1, 64)

    def local(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step, norms in ((PROMPT, 3), (DECODE, 2), (DECODE, 1)):
            with record_function(step):
                for _ in range(norms):
                    x = local(x)
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    found = count(packed)
    assert found.what == "operators"
    assert found.other == 1
    assert [step.norms for step in found.steps] == [2, 1]
    assert found.steps[0].kernels == 2 * found.steps[1].kernels > 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ts", 10**400),
        ("ts", [1]),
        ("dur", "long"),
        ("dur", None),
        ("cat", ["kernel"]),
        ("args", "none"),
        ("args", {"correlation": [1], "External id": {}}),
        ("pid", [1]),
        ("name", f"execute_context_0(0)_generation_{'9' * 5000}(1)"),
    ],
)
def test_a_field_of_another_kind_counts_as_left_out(
    tmp_path: Path, field: str, value: object
) -> None:
    found = count(write(tmp_path, device_trace()))
    odd = [{**event, field: value} for event in device_trace()[-3:]]
    odd.append({**span("aten::add", "cpu_op", 1, 1), field: value})
    assert len(count(write(tmp_path, [*device_trace(), *odd])).steps) == len(found.steps)
    only = [{**event, field: value} for event in device_trace()]
    with suppress(UserError):
        count(write(tmp_path, only))
