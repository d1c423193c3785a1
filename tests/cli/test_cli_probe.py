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


SAID = {
    torch.float16: "unsupported rank\nand more",
    torch.bfloat16: "",
    torch.float32: "\x1b[31mred",
}


def test_a_wrong_kernel_and_one_that_raises_are_told() -> None:
    def wrong(x: torch.Tensor, residual: object, weight: torch.Tensor | None) -> torch.Tensor:
        if x.ndim > 2:
            raise RuntimeError(SAID[x.dtype])
        return probe._native(x, None, weight) * 2  # type: ignore[no-any-return]

    subject = probe.Subject("wrong", wrong, probe._native)
    found = probe.look_at(subject, "cpu", timed=False)
    assert set(found.cases["7 x 6656"]) == {"float16", "bfloat16", "float32"}
    assert all(int(value) > 1 for value in found.cases["7 x 6656"].values())
    assert found.cases["0 x 128"] == {"float16": 0, "bfloat16": 0, "float32": 0}
    assert found.cases["5 x 3 x 128"] == {
        "float16": "raised: unsupported rank",
        "bfloat16": "raised: RuntimeError",
        "float32": "raised:  [31mred",
    }
    assert found.ratio == {}


def in_place(aliasing: bool) -> probe.Subject:
    def kernel(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> object:
        wanted = probe._native(x, residual, weight)
        if aliasing:
            x.copy_(wanted[0])
            residual.copy_(wanted[1])
            return x, residual
        return wanted

    return probe.Subject("fused", kernel, probe._native, residual=True, in_place=True)


@pytest.mark.parametrize("aliasing", [True, False])
def test_a_kernel_that_does_not_work_in_place_is_told(aliasing: bool) -> None:
    found = probe.look_at(in_place(aliasing), "cpu", timed=False)
    assert found.aliases is aliasing
    assert found.keeps_inputs is None


def test_a_kernel_that_changes_its_input_is_told() -> None:
    def kernel(x: torch.Tensor, residual: None, weight: torch.Tensor) -> object:
        wanted = probe._native(x, None, weight)
        if x.dtype is torch.bfloat16:
            weight.zero_()
        return wanted

    found = probe.look_at(probe.Subject("careless", kernel, probe._native), "cpu", timed=False)
    assert found.keeps_inputs is False
    assert found.aliases is None


def test_a_musa_provider_is_run_past_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "musa", object(), raising=False)
    subjects = {subject.name: subject for subject in probe.subjects("musa")}
    ran = [name for name, subject in subjects.items() if subject.against is None]
    assert ran == ["rms_norm: musa", "rms_norm, weightless: musa", "rms_norm, Gemma: musa"]
    for name in ran:
        found = probe.look_at(subjects[name], "cpu", timed=False)
        assert all(value == 0 for case in found.cases.values() for value in case.values()), name


@pytest.mark.parametrize(("out", "said"), [("no/file", "no is no folder"), (".", "is a folder")])
def test_where_the_record_cannot_go_is_said_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str, said: str
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    assert run(["probe", "--out", out]) == 2
    assert said in capsys.readouterr().err


def test_without_vllm_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert run(["probe"]) == 2
    assert "The probe needs vLLM" in capsys.readouterr().err
