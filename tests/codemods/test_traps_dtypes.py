"""Files in which a dtype is not what the rules take it for."""

from __future__ import annotations

import pytest
from norms import BUILD, CALL, MODEL, RETURN, changed, refused, sites

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


def flows(*steps: str) -> tuple[str, str]:
    return CALL, "\n        ".join((*steps, "return self.norm(h)"))


def up(*body: str) -> tuple[str, str]:
    method = "\n    def up(self, x):\n        " + "\n        ".join(body)
    return CALL, f"h = self.up(x)\n        return self.norm(h)\n{method}"


F32 = "dtype=torch.float32"
CONVERTED = {
    "by a caller": ("self.layer(x)", "self.layer(x.float())"),
    "by a caller, by its name": ("self.layer(x)", "self.layer(x=x.double())"),
    "by a caller, for items": (
        ASSIGN,
        "self.layers = nn.ModuleList([Layer(config)])\n\n    def run(self, x):\n"
        "        h = x.float()\n        for layer in self.layers:\n            h = layer(h)",
    ),
    "annotated": flows("h: torch.Tensor = x.float()"),
    "by a dtype": flows(f"h = torch.softmax(x, -1, {F32})"),
    "by a dtype given by position": flows("h = torch.softmax(x, -1, torch.float32)"),
    "by a dtype in a variable": flows("d = torch.float32", "h = x.to(d)"),
    "to a dtype that is kept": flows("h = x.to(device=x.device, dtype=self.dtype)"),
    "unpacked": flows("h, r = x.float(), x"),
    "unpacked from a call": flows("h, r = pair(x.float())"),
    "augmented": flows(f"h = torch.zeros(x.shape, {F32})", "h += x"),
    "made in the default dtype": flows("h = torch.zeros(x.shape)", "h += x"),
    "over two variables": flows("y = x.float()", "h = y * 2"),
    "in a condition": flows("print(h := x.float())"),
    "in a loop": flows("for h in (x, x.float()):", "    h"),
    "by a method": up("return x.float()"),
    "by a method, over a variable": up("y = x.float()", "return y"),
    "by a function": (
        MODEL_CLASS,
        f"{MODEL_CLASS}\n\ndef up(x):\n    return x.float()\n",
    ),
    "by a buffer": (
        "def forward(self, x):\n        return self.norm(x)",
        f"def add(self):\n        self.register_buffer('b', torch.ones(4, {F32}))\n\n"
        "    def forward(self, x):\n        return self.norm(x + self.b)",
    ),
    "by a layer": (
        f"{BUILD}\n\n    def forward(self, x):\n        return self.norm(x)",
        f"{BUILD}\n        self.up = nn.Linear(4, 4, {F32})\n\n"
        "    def forward(self, x):\n        return self.norm(self.up(x))",
    ),
    "in a sequence": (
        BUILD,
        f"{BUILD.replace('N(', 'nn.Sequential(nn.Linear(4, 4, dtype=torch.half), N(')})",
    ),
}


@pytest.mark.parametrize("change", CONVERTED.values(), ids=CONVERTED)
def test_an_input_is_converted(change: tuple[str, str]) -> None:
    """Such an input is rounded by the local norm to its own dtype, by RMSNorm to the weight's."""
    more = [(CALL, "return self.norm(up(x))")] if "def up(x)" in change[1] else []
    code, reason = refused(changed(WHOLE, ROUNDED, change, *more))
    assert code == "NP208"
    assert "multiplies in the input's dtype" in reason


NOT_CONVERTED = {
    "nothing": ("x", "x"),
    "back to another's dtype": flows("h = (x * 2).to(x.dtype)"),
    "to another's type": flows("h = (x * 2).type_as(x)"),
    "to a device": flows("h = x.to(x.device)"),
    "elsewhere": flows("y = x.float()", "h = x", "self.seen = y"),
    "unpacked apart": flows("r, h = x.float(), x"),
    "by another class": ("self.layer(x)", "self.layer(x) + self.other(x.float())"),
    "a shape": flows("n = x.float().shape[0]", "h = x[:2]"),
    "a factory of its dtype": flows("h = torch.zeros(4, dtype=x.dtype)"),
}


@pytest.mark.parametrize("change", NOT_CONVERTED.values(), ids=NOT_CONVERTED)
def test_an_input_is_not_converted(change: tuple[str, str]) -> None:
    assert converts(changed(WHOLE, ROUNDED, change))


@pytest.mark.parametrize("change", CONVERTED.values(), ids=CONVERTED)
def test_a_float32_multiply_takes_any_input(change: tuple[str, str]) -> None:
    more = [(CALL, "return self.norm(up(x))")] if "def up(x)" in change[1] else []
    found = sites(changed(WHOLE, change, *more).encode())
    assert {site.code for site in found} == {"NP103"}


def test_a_float32_weight_times_a_rounded_input() -> None:
    """The weight of plain RMSNorm would be in the run's dtype."""
    stored = ("torch.ones(dim)", "torch.ones(dim, dtype=torch.float32)")
    rounded = (RETURN, "return (self.weight * h.to(x.dtype)).to(x.dtype)")
    assert refused(changed(WHOLE, stored, rounded))[0] == "NP206"
    assert converts(changed(WHOLE, stored))
    in_its_dtype = (RETURN, "return (self.weight * h.to(self.weight.dtype)).to(x.dtype)")
    (site,) = sites(changed(WHOLE, stored, in_its_dtype).encode())
    assert (site.code, "dtype=torch.float32" in (site.target or "")) == ("NP103", True)


def method(*body: str) -> tuple[str, str]:
    """A change that adds a method to the model."""
    text = "\n        ".join(body)
    return MODEL_CLASS, f"{MODEL_CLASS}\n    def extra(self, weights):\n        {text}\n"


DATA = {
    "of an item": method("p = dict(self.named_parameters())", "p['x'].data = weights"),
    "of a loop's variable": method("for p in self.parameters():", "    p.data = p.data.half()"),
    "of a parameter": function("param.data = value", "param, value"),
    "a new parameter": method("for m in self.modules():", "    m.weight = nn.Parameter(weights)"),
    "by name": method("for m in self.modules():", "    setattr(m, 'weight', nn.Parameter(m.b))"),
    "the dict of parameters": method("self._parameters['x'] = weights"),
    "a state dict that is assigned": method("self.load_state_dict(weights, assign=True)"),
    "set_": method("for p in self.parameters():", "    p.set_(weights)"),
}


@pytest.mark.parametrize("change", DATA.values(), ids=DATA)
def test_a_weight_gets_new_data(change: tuple[str, str]) -> None:
    code, reason = refused(changed(WHOLE, change))
    assert code == "NP222"
    assert "may give its weight another dtype" in reason


OTHER_DATA = {
    "copied": method("for p in self.parameters():", "    p.data.copy_(weights)"),
    "another's weight": method("self.proj.weight.data = weights"),
    "another parameter": method("self.scale.data = weights"),
    "another's, in a variable": method("p = self.proj.weight", "p.data = weights"),
    "a state dict": method("self.load_state_dict(weights)"),
}


@pytest.mark.parametrize("change", OTHER_DATA.values(), ids=OTHER_DATA)
def test_another_weight_gets_new_data(change: tuple[str, str]) -> None:
    assert converts(changed(WHOLE, change))


READ = {
    "the first": method("return next(self.parameters()).dtype"),
    "of a part": method("return next(self.layer.parameters()).dtype"),
    "of a variable": method("p = next(iter(self.parameters()))", "return p.dtype"),
    "through many variables": method(
        "a = next(iter(self.parameters()))",
        *(f"{x} = {y}" for x, y in zip("bcdefgh", "abcdefg", strict=True)),
        "return h.dtype",
    ),
    "of all": method("return {p.dtype for p in self.parameters()}"),
    "of named ones": method("return [p.dtype for _, p in self.named_parameters()]"),
    "of weights": method("return [m.weight.dtype for m in self.children()]"),
}


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_the_dtype_of_some_parameter_is_read(change: tuple[str, str]) -> None:
    code, reason = refused(changed(WHOLE, change))
    assert code == "NP214"
    assert "becomes float32" in reason
    # A weight that was float32 before tells the same afterwards.
    assert converts(changed(WHOLE, ("ones(dim)", "ones(dim, dtype=torch.float32)"), change))


NOT_READ = {
    "of another part": method("return next(self.vision.parameters()).dtype"),
    "a device": method("return next(self.parameters()).device"),
    "of another weight": method("return self.proj.weight.dtype"),
}


@pytest.mark.parametrize("change", NOT_READ.values(), ids=NOT_READ)
def test_the_dtype_of_another_parameter_is_read(change: tuple[str, str]) -> None:
    assert converts(changed(WHOLE, change))


def test_the_first_parameter_is_seen_to_be_another() -> None:
    first = (ASSIGN, f"self.a = 1\n        self.up = nn.Linear(4, 4)\n        {ASSIGN}")
    assert converts(changed(WHOLE, READ["the first"], first))
    for other in ("Up(4)", "nn.Identity()", "config.up and nn.Linear(4, 4)"):
        hidden = (ASSIGN, f"self.up = {other}\n        {ASSIGN}")
        assert refused(changed(WHOLE, READ["the first"], hidden))[0] == "NP214"


@pytest.mark.parametrize(
    ("head", "around"),
    [
        ("", "with set_default_torch_dtype(torch.float32):\n            "),
        ("", "torch.set_default_dtype(torch.float32)\n        "),
        ("from torch import set_default_dtype as choose\n", "choose(torch.float32)\n        "),
    ],
)
def test_a_norm_that_is_built_in_another_default_dtype(head: str, around: str) -> None:
    source = changed(
        MODEL, ROUNDED, (BUILD, f"{around}{BUILD}"), ("import torch\n", f"import torch\n{head}")
    )
    code, reason = refused(source)
    assert code == "NP222"
    assert "torch's default dtype is set in line" in reason
    # What is offset is added in float32, whatever the weight is stored in.
    offset = ("self.weight.float()", "(1 + self.weight.float())")
    assert converts(
        changed(MODEL, offset, ("torch.ones", "torch.zeros"), (BUILD, f"{around}{BUILD}"))
    )


HUGGING_FACE = (
    ("h = x.float()\n", "dtype = x.dtype\n        x = x.to(torch.float32)\n"),
    ("h = h * torch.rsqrt(h.pow", "x = x * torch.rsqrt(x.pow"),
    (RETURN, "return self.weight * x.to(dtype)"),
)


@pytest.mark.parametrize(
    "call",
    [
        "x = self.norm(x)\n        return x",
        "x = x + self.norm(x)\n        x = x + self.norm(x)\n        return x",
        "if x.shape[0] > 1:\n            x = self.norm(x)\n        return self.norm(x)",
    ],
)
def test_what_is_stored_after_a_dtype_was_read_is_not_read(call: str) -> None:
    assert converts(changed(MODEL, *HUGGING_FACE, (CALL, call)))


@pytest.mark.parametrize(
    "call",
    [
        "x = x.to(torch.float32)\n        x = self.norm(x)\n        return x",
        "for _ in 1, 2:\n            x = self.norm(x)\n            x = x.half()\n        return x",
        "while x.sum():\n            y = self.norm(x)\n            x = y.half()\n        return x",
        "if x.shape[0] > 1:\n            x = x.float()\n        return self.norm(x)",
        "return self.norm(x := x.float())",
        "with no_grad():\n            x = x.half()\n            x = self.norm(x)\n        return x",
    ],
)
def test_what_may_be_stored_before_is_read(call: str) -> None:
    assert refused(changed(MODEL, *HUGGING_FACE, (CALL, call)))[0] == "NP208"
