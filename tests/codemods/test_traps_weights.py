"""Weights and sizes that a standard layer would have otherwise."""

from __future__ import annotations

import pytest
from norms import BUILD, CALL, MODEL, changed, converted, refused, sites

MADE = "nn.Parameter(torch.ones(dim))"


@pytest.mark.parametrize(
    "size",
    [
        *("(config.size,)", "[config.size]", "(config.a, config.b)", "config.a.shape[1:]"),
        *("config.a.shape", "config.a.size()", "tuple(config.a)", "torch.Size([8])"),
    ],
)
def test_a_shape_in_place_of_a_size(size: str) -> None:
    code, reason = refused(changed(MODEL, (BUILD, BUILD.replace("config.size", size))))
    assert code == "NP206"
    assert size in reason


def test_a_weight_on_a_device() -> None:
    here = changed(MODEL, (MADE, "nn.Parameter(torch.ones(dim, device='cpu'))"))
    code, reason = refused(here)
    assert code == "NP206"
    assert "'cpu'" in reason
    passed = (MADE, "nn.Parameter(torch.ones(dim, device=device))")
    passed_on = changed(MODEL, passed, ("eps=1e-6):", "eps=1e-6, device=None):"))
    assert "RMSNorm(" in converted(passed_on)
    given = (BUILD, BUILD.replace("eps=config.eps", "eps=config.eps, device='xpu'"))
    assert refused(changed(passed_on, given))[0] == "NP206"


@pytest.mark.parametrize("made", [MADE[:-1] + ", requires_grad=False)", MADE])
def test_a_weight_without_a_gradient_is_told(made: str) -> None:
    (site,) = sites(changed(MODEL, (MADE, made)).encode())
    assert site.verdict == "convert"
    assert ("requires_grad=False" in (site.reason or "")) is (made != MADE)


BARE = changed(
    MODEL,
    ("self, dim, eps", "self, eps"),
    (f"        self.weight = {MADE}\n", ""),
    ("(h * self.weight.float())", "h"),
    (BUILD, "self.up = nn.Linear(8, config.size)\n        self.norm = N(config.eps)"),
    (CALL, "return self.norm(self.up(x))"),
)


@pytest.mark.parametrize(
    "change",
    [
        "config.size = config.size * 2",
        "config.size *= 2",
        "setattr(config, 'size', 2)",
        "del config.size",
    ],
)
def test_a_size_that_changes_before_the_norm_is_built(change: str) -> None:
    assert "RMSNorm(config.size, " in converted(BARE)
    between = ("self.norm = N(", f"{change}\n        self.norm = N(")
    assert refused(changed(BARE, between))[0] == "NP207"
