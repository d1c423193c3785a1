"""What a norm class does beside its norm is refused by its line: it would go without a word."""

from __future__ import annotations

import re

import pytest
from norms import CALL, MODEL, changed, converted, refused, sites

INIT = "self.eps = eps\n"
FORWARD = "        h = x.float()\n"
LINE = {"__init__": 9, "forward": 12}

ACTS = {
    "print": "print(x)",
    "logger": "logger.info('norm')",
    "logging": "logging.getLogger('norm').debug('norm')",
    "warnings": "warnings.warn('norm')",
    "assert": "assert x == 1",
    "assert with an effect": "assert watch(x)",
    "assert that stores": "assert (y := x) is not None",
    "attribute of something else": "STATE.last = x",
    "item": "STATE['last'] = x",
    "own class": "type(self).count = 1",
    "call": "watch(x)",
    "call for its value": "y = watch(x)",
    "call kept": "y = {'a': watch(x)}",
    "call in a text": "y = f'{watch(x)}'",
    "call in a list": "y = [watch(i) for i in x]",
    "call on a condition": "watch(x) if self.eps else None",
    "call after and": "self.eps and watch(x)",
    "call in a chain": "y = 0 < watch(x) < 3",
    "call in keywords": "y = dict(**watch(x))",
    "two calls": "watch(x), watch(x)",
    "seed": "y = torch.manual_seed(0)",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "file": "y = torch.save(x, 'x.pt')",
    "random": "y = torch.rand(3)",
    "module": "self.proj = nn.Linear(3, 3)",
    "buffer late": "setattr(self, 'late', x)",
    "deleted": "del x",
    "import": "import vllm._custom_ops",
    "global": "global STATE; STATE = 1",
    "loop": "for i in x: watch(i)",
    "guarded": "try: watch(x)\nexcept ValueError: pass",
    "generator": "yield x",
    "own operator": "y = torch.ops.mine.sum(x)",
    "set after and": "y = self.eps > x and SEEN.add(x)",
    "set in a list": "y = [SEEN.add(i) for i in range(2)]",
    "set on a condition": "y = SEEN.add(x) if self.eps > x else None",
    "logger on a condition": "y = logger.log(20, 'x') if self.eps > x else None",
    "list that is extended": "y = STATE; y += [1]",
    "own list that is extended": "self.seen = STATE; self.seen += [1]",
}


def put(act: str, method: str) -> str:
    lines = [
        line if method == "forward" else re.sub(r"\bx\b", "dim", line) for line in act.split("\n")
    ]
    text = "".join(f"        {line}\n" for line in lines)
    if method == "forward":
        return changed(MODEL, (FORWARD, text + FORWARD))
    return changed(MODEL, (INIT, INIT + text))


@pytest.mark.parametrize("method", ["__init__", "forward"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_an_act_beside_the_norm_is_refused(act: str, method: str) -> None:
    code, reason = refused(put(act, method))
    assert code in ("NP212", "NP206")
    if code == "NP212":
        assert f"line {LINE[method]}" in reason


IN_PLACE = {
    "method": "x.mul_(2)",
    "method for its value": "y = x.mul_(2)",
    "out": "y = torch.mul(x, 2, out=x)",
    "item": "x[0] = 1",
    "operator on a view": "v = x.view(-1); v *= 2",
    "hook": "x.register_hook(watch)",
    "attribute": "self.last = x",
    "count": "self.eps += 1",
    "buffer": "self.register_buffer('late', x)",
    "initializer": "nn.init.zeros_(x)",
    "function by place": "y = nn.functional.relu(x, True)",
    "list of all calls": "s = self.seen; s += [1]",
}


@pytest.mark.parametrize("act", IN_PLACE.values(), ids=IN_PLACE)
def test_what_forward_writes_is_refused(act: str) -> None:
    code, reason = refused(put(act, "forward"))
    assert code in ("NP212", "NP210")
    if code == "NP212":
        assert f"line {LINE['forward']}" in reason


def test_a_helper_that_acts_is_refused() -> None:
    helper = "def rms(h):\n    print(h)\n    return h.pow(2).mean(-1, keepdim=True)\n\n\n"
    mean = "h.pow(2).mean(-1, keepdim=True)"
    code, reason = refused(changed(MODEL, (mean, "rms(h)"), ("class N", f"{helper}class N")))
    assert code == "NP212"
    assert "`print` in line 6" in reason


@pytest.mark.parametrize(
    "change",
    [
        ("eps=1e-6):", "eps=1e-6, more=watch(1)):"),
        ("def forward(self, x):", "def forward(self, x, more=watch(1)):"),
        ("def forward(self, x):", "def forward(self, x: watch(1)):"),
        ("def forward(self, x):", "def forward(self, x) -> watch(1):"),
        ("    def __init__", "    count: watch(1)\n\n    def __init__"),
        ("    def __init__", "    STATE['n'] = 1\n\n    def __init__"),
        ("    def __init__", "    a, STATE.n = 1, 2\n\n    def __init__"),
        (
            "    def forward",
            "    @watch\n    def extra_repr(self):\n        return ''\n\n    def forward",
        ),
        ("    def __init__", "    count = watch(1)\n\n    def __init__"),
        ("    def __init__", "    names = [watch(i) for i in range(3)]\n\n    def __init__"),
    ],
)
def test_what_acts_while_the_class_is_defined_is_refused(change: tuple[str, str]) -> None:
    assert refused(changed(MODEL, change))[0] == "NP212"


def test_a_helper_that_fills_its_default_is_refused() -> None:
    helper = (
        "def rms(h, seen=[]):\n    seen += [1]\n    return h.pow(2).mean(-1, keepdim=True)\n\n\n"
    )
    mean = "h.pow(2).mean(-1, keepdim=True)"
    code, reason = refused(changed(MODEL, (mean, "rms(h)"), ("class N", f"{helper}class N")))
    assert code == "NP212"
    assert "`seen += [1]` in line 6, which may change what others hold" in reason


def test_what_postponed_annotations_name_is_no_reason() -> None:
    annotated = changed(MODEL, ("def forward(self, x):", "def forward(self, x: watch(1)):"))
    assert "class N" not in converted(f"from __future__ import annotations\n\n{annotated}")


NOTHING = {
    "a docstring": "'''Nothing.'''",
    "an argument that must be there": "assert dim is not None",
    "a guard against an argument that is missing": "if dim is None: raise ValueError(dim)",
    "a number that is counted up": "n = 1\n        n += 1",
    "a branch that is never taken": "if False: print(dim)",
    "a function that is never called": "f = lambda: print(dim)",
    "a size": "size = int(dim)",
    "a value of torch": "tiny = torch.finfo(torch.float32).eps",
    "a module's initializer": "nn.init.ones_(self.weight)",
}


@pytest.mark.parametrize("line", NOTHING.values(), ids=NOTHING)
def test_what_does_nothing_is_no_reason(line: str) -> None:
    weight = "self.weight = nn.Parameter(torch.ones(dim))\n"
    assert "class N" not in converted(changed(MODEL, (weight, f"{weight}        {line}\n")))


def test_a_float32_input_that_is_overwritten_is_told() -> None:
    source = changed(MODEL, ("h = h * torch", "h *= torch"))
    (site,) = sites(source.encode())
    assert (site.code, site.verdict) == ("NP103", "convert")
    assert "The local class overwrites a float32 input" in (site.reason or "")
    (plain,) = sites(MODEL.encode())
    assert "overwrites" not in (plain.reason or "")


def test_what_the_caller_does_stays() -> None:
    new = converted(changed(MODEL, (CALL, f"print(x)\n        {CALL}")))
    assert "print(x)" in new
