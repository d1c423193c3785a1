"""Files in which a dtype is not what the rules take it for."""

from __future__ import annotations

import pytest
from norms import CALL, MODEL, RETURN, changed, refused, sites

ROUNDED = (RETURN, "return self.weight * h.to(x.dtype)")
MODEL_CLASS = """\


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = Layer(config)

    def forward(self, x):
        return self.layer(x)
"""
WHOLE = MODEL + MODEL_CLASS
ASSIGN = "self.layer = Layer(config)"
DTYPE = "torch.bfloat16"


def converts(source: str) -> bool:
    return {site.verdict for site in sites(source.encode())} == {"convert"}


def function(body: str, signature: str = "config") -> tuple[str, str]:
    """A change that adds a function at the end of the file."""
    return MODEL_CLASS, f"{MODEL_CLASS}\n\ndef build({signature}):\n    {body}\n"


CASTS = {
    "of a construction": (ASSIGN, f"{ASSIGN}.to({DTYPE})"),
    "of a construction in a list": (
        ASSIGN,
        f"self.layers = nn.ModuleList([Layer(config) for _ in range(2)]).to({DTYPE})",
    ),
    "of a variable": function(f"m = Layer(config)\n    m.to(dtype={DTYPE})\n    return m"),
    "of a variable, assigned back": function("m = Layer(config)\n    m = m.half()\n    return m"),
    "of a variable, returned": function("m = Layer(config)\n    return m.cuda().bfloat16()"),
    "of an item": (
        ASSIGN,
        "self.layers = [Layer(config)]\n        self.first = self.layers[0].half()",
    ),
    "of an attribute, as a value": (ASSIGN, f"{ASSIGN}\n        self.alias = self.layer.half()"),
    "of a parameter": function("return layer.to(dtype)", "layer: Layer, dtype"),
    "of a module whatever it is": function("return layer.to(dtype)", "layer: nn.Module, dtype"),
    "of self, returned": (
        "    def forward(self, x):\n        return self.layer",
        "    def cast(self):\n        return self.to(torch.half)\n\n"
        "    def forward(self, x):\n        return self.layer",
    ),
    "through a function that builds": (
        MODEL_CLASS,
        f"{MODEL_CLASS}\n\ndef make(c):\n    return Layer(c)\n\n\nlayer = make(None).half()\n",
    ),
    "through nn.Module": function(f"m = Layer(config)\n    return nn.Module.to(m, {DTYPE})"),
    "through a kept method": function("cast = Layer(config).half\n    return cast()"),
    "in a comprehension": (ASSIGN, f"{ASSIGN}\n        [m.half() for m in self.modules()]"),
    "in a lambda for apply": (ASSIGN, f"{ASSIGN}\n        self.apply(lambda m: m.half())"),
    "in a function for apply": (
        MODEL_CLASS,
        f"{MODEL_CLASS}\n\ndef cast(m):\n    return m.half()\n\n\nModel(None).apply(cast)\n",
    ),
}


@pytest.mark.parametrize("change", CASTS.values(), ids=CASTS)
def test_a_module_of_the_file_is_converted(change: tuple[str, str]) -> None:
    assert converts(WHOLE)
    code, reason = refused(changed(WHOLE, change))
    assert code == "NP222"
    assert "is converted in line" in reason
    assert refused(changed(WHOLE, ROUNDED, change))[0] == "NP222"


NO_CASTS = {
    "a device": (ASSIGN, f"{ASSIGN}\n        self.layer.to(config.device)"),
    "a device by its keyword": function("return Layer(config).to(device='cuda')"),
    "a tensor": (CALL, "y = self.norm(x)\n        y = y.to(x.dtype)\n        return y"),
    "a result": function("return Layer(config)(x).float()", "config, x"),
    "an object that is no module": function(
        "return Inputs(config).to(torch.half)\n\n\nclass Inputs:\n    def to(self, d): ..."
    ),
}


@pytest.mark.parametrize("change", NO_CASTS.values(), ids=NO_CASTS)
def test_nothing_is_converted(change: tuple[str, str]) -> None:
    assert converts(changed(WHOLE, change))
