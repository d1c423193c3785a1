"""Calls that pass or expect something else than the standard layers do: rewritten, or refused."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from norms import BUILD, CALL, MODEL, NEW, RETURN, changed, converted, refused, sites
from torch import Tensor, nn

from normport.codemods.model import Site
from normport.kernels import reference

FORWARD = (
    "def forward(self, x):\n        h",
    "def forward(self, hidden, other=None):\n        x = hidden\n        h",
)
IGNORES = changed(MODEL, FORWARD)
PAIR = changed(IGNORES, (RETURN, f"{RETURN}, other"))
ADDS = changed(
    IGNORES,
    (
        "h = x.float()\n",
        "h = x.float()\n        if other is not None:\n            h = h + other.float()\n"
        "            other = h.to(x.dtype)\n",
    ),
    (RETURN, f"h = {RETURN[7:]}\n        return h if other is None else (h, other)"),
)
ADDS = ADDS.replace(
    "return h if other is None else (h, other)",
    "if other is None:\n            return h\n        return h, other",
)


def model(source: str, body: str, more: str = "") -> str:
    """``source`` with another body of the layer's forward, and more after it."""
    layer = (
        "def forward(self, x):\n        return",
        "def forward(self, x, r=None):\n        return",
    )
    return changed(source, layer, (CALL, body.replace("\n", "\n        "))) + more


def body_of(source: str) -> str:
    """The layer's forward without its first line."""
    layer = ast.parse(source).body[-1]
    assert isinstance(layer, ast.ClassDef)
    return "\n".join(ast.unparse(statement) for statement in layer.body[-1].body)  # type: ignore[attr-defined]


REWRITTEN = {
    "other name of the input": (IGNORES, "return self.norm(hidden=x)", "return self.norm(x)"),
    "ignored argument": (IGNORES, "return self.norm(x, x.shape)", "return self.norm(x)"),
    "ignored keyword": (IGNORES, "return self.norm(x, other=None)", "return self.norm(x)"),
    "one in another": (
        IGNORES,
        "return self.norm(hidden=self.norm(hidden=x))",
        "return self.norm(self.norm(x))",
    ),
    "ignored *args and **kwargs": (
        changed(MODEL, ("def forward(self, x)", "def forward(self, x, *args, **kwargs)")),
        "return self.norm(x, 1, mask=None)",
        "return self.norm(x)",
    ),
    "handed through": (PAIR, "x, r = self.norm(x, r)\nreturn x", "x = self.norm(x)\nreturn x"),
    "handed through to another name": (
        PAIR,
        "x, s = self.norm(x, other=r)\nreturn x",
        "x, s = (self.norm(x), r)\nreturn x",
    ),
    "nothing handed through": (PAIR, "x, _ = self.norm(x)\nreturn x", "x = self.norm(x)\nreturn x"),
    "nothing, and looked at": (
        PAIR,
        "x, _ = self.norm(x)\nreturn x, _",
        "x, _ = (self.norm(x), None)\nreturn (x, _)",
    ),
    "the first of both": (PAIR, "return self.norm(x, r)[0]", "return self.norm(x)"),
    "both returned": (PAIR, "return self.norm(x, r)", "return (self.norm(x), r)"),
    "both at several calls": (
        PAIR,
        "x, r = self.norm(x, r)\nx, r = self.norm(hidden=x, other=r)\nreturn x",
        "x = self.norm(x)\nx = self.norm(x)\nreturn x",
    ),
    "added": (ADDS, "x, r = self.norm(x, r)\nreturn x", "x, r = self.norm(x, r)\nreturn x"),
    "added by a keyword": (
        ADDS,
        "r = x\nx = self.norm(x)\nx, r = self.norm(other=r, hidden=x)\nreturn x",
        "r = x\nx = self.norm(x)\nx, r = self.norm(x, r)\nreturn x",
    ),
}


@pytest.mark.parametrize("case", REWRITTEN, ids=str)
def test_a_call_is_rewritten_with_its_norm(case: str) -> None:
    source, before, expected = REWRITTEN[case]
    source = model(source, before)
    after = converted(source)
    assert body_of(after) == expected
    assert f"self.norm = {NEW}" in after
    (site,) = sites(source.encode())
    assert site.proof is not None
    if before != expected and case != "added":
        assert site.rewrites_calls
        assert site.together
    check_forms(site)


def check_forms(site: Site) -> None:
    """Each form of call gives the same before and after, as the proof will run it."""
    assert site.proof is not None
    names: dict[str, Any] = {}
    exec(site.proof.module, names)
    new = {"torch": torch, "RMSNorm": reference.RMSNorm, "SIZE": 8, "EPS": 1e-6}
    norms = eval(site.proof.old, {**names, "SIZE": 8, "EPS": 1e-6}), eval(site.proof.new, new)
    assert site.proof.forms
    x, residual = torch.linspace(-3, 5, 32).view(4, 8), torch.linspace(1, -2, 32).view(4, 8)
    for form in site.proof.forms:
        results = [
            eval(call, {"norm": norm, "x": x.clone(), "residual": residual.clone()})
            for norm, call in zip(norms, (form.old, form.new), strict=True)
        ]
        one, other = (r if isinstance(r, tuple) else (r,) for r in results)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert a is b is None or (isinstance(a, Tensor) and torch.equal(a, b))


def test_plain_calls_need_no_form() -> None:
    (site,) = sites(MODEL.encode())
    assert site.proof is not None
    assert site.proof.forms == ()
    assert not site.rewrites_calls
    assert isinstance(nn.Identity(), nn.Module)


NOT_REWRITTEN = {
    "dropped argument acts": ("NP208", IGNORES, "return self.norm(x, f(x))"),
    "argument that the class lacks": ("NP208", MODEL, "return self.norm(x, x)"),
    "keyword that the class lacks": ("NP208", IGNORES, "return self.norm(x, mask=None)"),
    "no input": ("NP208", IGNORES, "return self.norm(other=x)"),
    "spread": ("NP208", IGNORES, "return self.norm(*x)"),
    "unpacked tensor": ("NP208", IGNORES, "x, y = self.norm(x)\nreturn x"),
    "indexed tensor": ("NP208", IGNORES, "return self.norm(x)[0]"),
    "handed through, with an effect": ("NP216", PAIR, "x, r = self.norm(x, f(r))\nreturn x"),
    "handed through with a default of its own": (
        "NP216",
        changed(PAIR, ("other=None", "other=0")),
        "x, r = self.norm(x)\nreturn x",
    ),
    "another result": (
        "NP216",
        changed(IGNORES, (RETURN, f"{RETURN}, h")),
        "x, r = self.norm(x)\nreturn x",
    ),
    "gate": (
        "NP208",
        changed(
            IGNORES,
            (
                "h = x.float()\n",
                "h = x.float()\n        if other is not None:\n            h = h * other\n",
            ),
        ),
        "return self.norm(x, x)",
    ),
    "rounded before the norm": (
        "NP208",
        changed(ADDS, ("h = h + other.float()", "h = (h + other.float()).to(x.dtype).float()")),
        "x, r = self.norm(x, r)\nreturn x",
    ),
    "sum in the input's dtype": (
        "NP208",
        changed(
            ADDS,
            (
                "h = h + other.float()\n            other = h.to(x.dtype)",
                "other = x + other\n            h = other.float()",
            ),
        ),
        "x, r = self.norm(x, r)\nreturn x",
    ),
    "the sum is no fresh tensor": ("NP227", ADDS, "y, r = self.norm(x, r)\nreturn x"),
    "not replaced": ("NP227", ADDS, "return self.norm(x, r)"),
    "replaced, and kept in a list": (
        "NP227",
        ADDS,
        "all = [x]\nx, r = self.norm(x, r)\nreturn x, all",
    ),
    "replaced, and kept under a name": (
        "NP227",
        ADDS,
        "y = r\nx, r = self.norm(x, r)\nreturn x, y",
    ),
    "one tensor twice": ("NP227", ADDS, "r = x\nx, r = self.norm(x, r)\nreturn x"),
}


@pytest.mark.parametrize("case", NOT_REWRITTEN, ids=str)
def test_a_call_that_is_not_rewritten(case: str) -> None:
    code, source, body = NOT_REWRITTEN[case]
    found = refused(model(source, body))
    assert found[0] == code, found


def test_calls_change_only_where_everything_that_is_called_changes() -> None:
    body = "x, r = self.norm(x, r)\nreturn x"
    identity = changed(PAIR, (BUILD, f"{BUILD} if config.a else nn.Identity()"))
    code, reason = refused(model(identity, body))
    assert code == "NP208"
    assert "self.norm may hold something else than this norm" in reason
    either = changed(PAIR, (BUILD, f"{BUILD} if config.a else N(4)"))
    assert body_of(converted(model(either, body))) == "x = self.norm(x)\nreturn x"
    none = changed(PAIR, (BUILD, f"self.norm = None\n        if config.a:\n            {BUILD}"))
    assert body_of(converted(model(none, body))) == "x = self.norm(x)\nreturn x"


def test_one_refusal_keeps_all_calls_of_the_attribute() -> None:
    two = changed(PAIR, (BUILD, f"{BUILD} if config.a else N(*config.b)"))
    found = sites(model(two, "x, r = self.norm(x, r)\nreturn x").encode())
    assert [site.code for site in found] == ["NP226", "NP215"]


def test_a_norm_that_needs_its_residual_is_found() -> None:
    source = changed(ADDS, ("other=None", "other"))
    assert body_of(converted(model(source, "x, r = self.norm(x, r)\nreturn x")))
    assert refused(changed(source, (BUILD, "self.norm = None")))[0] == "NP216"
