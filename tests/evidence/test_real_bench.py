"""The report on files that a real ``vllm bench serve`` wrote (see tests/data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evidence_sources import Command

from normport.tools.ab_report.bench import VALUES, read_arm

BENCH = Path(__file__).resolve().parent.parent / "data" / "vllm_bench"
LOADS = ((32, 8, 1), (32, 8, 2))


def written_by_vllm(arm: str, batch: int) -> Any:
    return json.loads((BENCH / arm / f"repeat-1/32-8-bs{batch}/result.json").read_text())


@pytest.mark.parametrize("arm", ["off", "on"])
def test_what_is_read(arm: str) -> None:
    found = sorted(read_arm([BENCH / arm]), key=lambda result: result.key.order)
    assert [(r.key.input_len, r.key.output_len, r.key.batch_size) for r in found] == list(LOADS)
    for result, (_, output_len, batch) in zip(found, LOADS, strict=True):
        assert (result.key.model, result.key.precision) == ("tiny", "FP32")
        assert (result.key.tensor_parallel_size, result.key.num_prompts) == (1, batch)
        assert result.failed == 0
        values = result.values
        assert values["total_output_tokens"] == batch * output_len
        throughput = values["total_output_tokens"] / values["duration"]
        assert values["output_throughput"] == pytest.approx(throughput)
        assert set(VALUES.values()) <= values.keys()


def test_the_report(normport: Command, folder: Path) -> None:
    ran = normport("ab-report", "--off", BENCH / "off", "--on", BENCH / "on", "--out", "out")
    assert ran.status == 0
    assert ran.out.startswith("2 cells compared: 0 of 8 changes are shown by the interval; no ")
    report = json.loads((folder / "out/report.json").read_text())
    assert report["unmatched"] == []
    assert [cell["n"] for cell in report["cells"]] == ["1", "1"]
    for cell, (_, _, batch) in zip(report["cells"], LOADS, strict=True):
        off, on = written_by_vllm("off", batch), written_by_vllm("on", batch)
        for metric, field in VALUES.items():
            found = cell["changes"][metric]
            assert (found["off"], found["on"]) == (off[field], on[field])
            change = (on[field] - off[field]) / off[field] * 100
            assert found["change_percent"] == pytest.approx(change)
        for latency in ("ttft", "tpot", "itl", "e2el"):
            for percentile in ("50", "90", "95", "99"):
                field = f"p{percentile}_{latency}_ms"
                assert cell["percentiles"][latency]["on"][percentile] == on[field]
    page = (folder / "out/report.html").read_text()
    assert page.count('<svg role="img"') == 8
