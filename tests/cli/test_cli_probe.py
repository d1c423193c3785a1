"""``normport probe``: the distance it measures, and what it says where nothing can be probed."""

from __future__ import annotations

import pytest
import torch

from normport.layers import probe
from normport.tools import probe as command
from normport.tools.cli import run


@pytest.mark.parametrize("dtype", probe.DTYPES)
def test_ulps_count_the_steps_between_values(dtype: torch.dtype) -> None:
    one = torch.ones(3, dtype=dtype)
    next_up = torch.nextafter(one, one * 2)
    assert probe.ulps(one, one) == 0
    assert probe.ulps(one, next_up) == 1
    assert probe.ulps(next_up, one) == 1
    assert probe.ulps(-one, -next_up) == 1
    assert probe.ulps(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)) == 0
    assert probe.ulps(one[:0], one[:0]) == 0
    half = torch.full_like(one, 0.5)
    assert probe.ulps(one, half) == round(1 / torch.finfo(dtype).eps)


def test_a_wrong_kernel_and_one_that_raises_are_told() -> None:
    def wrong(x: torch.Tensor, residual: object, weight: torch.Tensor | None) -> torch.Tensor:
        if x.ndim > 2:
            raise RuntimeError("unsupported rank\nand more")
        return probe._native(x, None, weight) * 2  # type: ignore[no-any-return]

    subject = probe.Subject("wrong", wrong, probe._native)
    found = probe.look_at(subject, "cpu", timed=False)
    assert set(found.cases["7 x 6656"]) == {"float16", "bfloat16", "float32"}
    assert all(int(value) > 1 for value in found.cases["7 x 6656"].values())
    assert found.cases["0 x 128"] == {"float16": 0, "bfloat16": 0, "float32": 0}
    assert found.cases["5 x 3 x 128"]["float16"] == "raised: unsupported rank"
    assert found.ratio == {}


def test_without_vllm_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert run(["probe"]) == 2
    assert "The probe needs vLLM" in capsys.readouterr().err
