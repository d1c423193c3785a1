"""Traps about what a name means: other classes of the name, aliases, exports, strings, imports."""

from __future__ import annotations

import pytest
from norms import BUILD, CALL, HEAD, LAYER, MODEL, NEW, NORM, changed, converted, refused, sites

from normport.codemods.analyze import Options, find_sites
from normport.codemods.convert import convert
from normport.codemods.model import RefusedEdit

STANDARD = "vllm.model_executor.layers.layernorm"
LOCAL = MODEL.replace("class N(", "class RMSNorm(").replace("= N(", "= RMSNorm(")
LEFT = "\n\nspare = RMSNorm(4)\n"


def test_a_class_of_the_layers_name_goes() -> None:
    after = converted(LOCAL)
    assert f"from {STANDARD} import RMSNorm\n" in after
    assert "class RMSNorm" not in after
    assert f"self.norm = {NEW}" in after


STAYS = {
    "another construction stays": LOCAL + LEFT,
    "exported": '__all__ = ["RMSNorm"]\n' + LOCAL,
    "another class has the name": changed(
        MODEL, ("class N(", "class RMSNorm:\n    pass\n\n\nclass N(")
    ),
    "a variable has the name": MODEL + "\n\nRMSNorm = None\n",
    "a parameter has the name": changed(MODEL, ("self, config", "self, config, RMSNorm=None")),
    "another package's layer has it": "from other import RMSNorm\n" + MODEL + "\n\ny = RMSNorm\n",
}


@pytest.mark.parametrize("source", STAYS.values(), ids=STAYS)
def test_where_the_name_is_taken_the_layer_is_reached_through_its_module(source: str) -> None:
    found = find_sites(source.encode(), "model.py")
    after = convert(source.encode(), found, Options()).source.decode()
    assert "from vllm.model_executor.layers import layernorm\n" in after
    assert f"self.norm = layernorm.{NEW}" in after
    # The name means what it meant.
    assert after.count("RMSNorm") - after.count("layernorm.RMSNorm") == source.count("RMSNorm") - (
        source.count("self.norm = RMSNorm")
    )
    again = find_sites(after.encode(), "model.py")
    assert [s.verdict for s in again if s.line and s.code == "NP100"] == ["done"]
    assert convert(after.encode(), again, Options()).source.decode() == after


def test_the_name_by_which_the_file_knows_the_layer_is_used() -> None:
    source = f"from {STANDARD} import RMSNorm as Norm\n" + LOCAL + LEFT
    found = find_sites(source.encode(), "model.py")
    after = convert(source.encode(), found, Options()).source.decode()
    assert f"self.norm = {NEW.replace('RMSNorm', 'Norm')}" in after
    assert "import layernorm" not in after


def test_a_file_with_a_fallback_does_not_come_to_need_vllm() -> None:
    fallback = (
        f"try:\n    from {STANDARD} import RMSNorm\nexcept ImportError:\n    RMSNorm = None\n"
    )
    source = (fallback + MODEL).encode()
    with pytest.raises(RefusedEdit, match="binds 'RMSNorm' itself"):
        convert(source, find_sites(source, "model.py"), Options())


def test_an_import_for_type_checkers_is_none_at_run_time() -> None:
    source = changed(
        MODEL,
        (
            "import torch\n",
            f"from typing import TYPE_CHECKING\n\nimport torch\n\nif TYPE_CHECKING:\n"
            f"    from {STANDARD} import RMSNorm\n",
        ),
    )
    after = converted(source)
    assert f"\nfrom {STANDARD} import RMSNorm\n" in after
    assert f"    from {STANDARD} import RMSNorm\n" in after


def test_torch_with_a_fallback_is_not_taken_for_torch() -> None:
    source = changed(
        MODEL, ("import torch\n", "try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    )
    code, reason = refused(source)
    assert code == "NP221"
    assert "`torch` is imported or bound in more than one way" in reason


ANNOTATIONS = {
    "a name": ("self.norm: N = N(", "self.norm: RMSNorm = RMSNorm("),
    "a string": ('self.norm: "N | None" = N(', 'self.norm: "RMSNorm | None" = RMSNorm('),
}


@pytest.mark.parametrize(("old", "new"), ANNOTATIONS.values(), ids=ANNOTATIONS)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n\n"])
def test_annotations_follow(old: str, new: str, future: str) -> None:
    source = future + changed(MODEL, ("self.norm = N(", old))
    source += '\n\ndef f(a: N, b: "list[N]") -> "N":\n    return a\n'
    after = converted(source)
    assert "".join(new.split()) in "".join(after.split())
    assert 'def f(a: RMSNorm, b: "list[RMSNorm]") -> "RMSNorm":' in after
    assert "class N(" not in after
    assert after.startswith(future)


def test_annotations_of_a_class_with_two_successors_stay() -> None:
    source = changed(
        MODEL,
        ("eps=1e-6", "eps=1e-6, offset=0.0"),
        ("self.eps = eps", "self.eps = eps\n        self.offset = offset"),
        ("self.weight.float()", "(self.offset + self.weight.float())"),
        (BUILD, f"{BUILD}\n        self.b = N(config.size, offset=1.0)"),
        (CALL, "return self.b(self.norm(x))"),
    )
    after = converted(source + "\n\ndef f(a: N):\n    return a\n")
    assert "def f(a: N):" in after
    assert "class N(" in after


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (BUILD, BUILD + "  # type: N", 20),
        (CALL, CALL + "\n\n    def g(self, n):\n        # type: (N) -> N\n        return n", 26),
    ],
)
def test_type_comments(old: str, new: str, line: int) -> None:
    code, reason = refused(changed(MODEL, (old, new)))
    assert code == "NP224"
    assert f"line {line} " in reason


@pytest.mark.parametrize("comment", ["# noqa: E501", "# type: ignore[no-untyped-call]", "# N"])
def test_other_comments_stay_where_they_are(comment: str) -> None:
    after = converted(changed(MODEL, (BUILD, f"{BUILD}  {comment}")))
    assert f"{NEW}  {comment}" in after or f")  {comment}" in after


def test_export_keeps_the_class() -> None:
    after = converted('__all__ = ["N", "Layer"]\n' + MODEL)
    assert "class N(" in after
    assert f"self.norm = {NEW}" in after


REFUSED = {
    "star import": (
        "NP221",
        "`from os import *` in line 1 may bind N",
        "from os import *\n" + MODEL,
    ),
    "isinstance": (
        "NP211",
        "its type is checked in line 27",
        MODEL + "\n\ndef f(m):\n    return isinstance(m, N)\n",
    ),
    "passed on": ("NP211", "used as a value in line 26", MODEL + "\n\nrun(N)\n"),
    "decorated": ("NP211", "decorated with @wrap", changed(MODEL, ("class N", "@wrap\nclass N"))),
    "name as a string": ("NP211", "used as a string", MODEL + '\n\nget("N")\n'),
}


@pytest.mark.parametrize(("code", "words", "source"), REFUSED.values(), ids=REFUSED)
def test_refused(code: str, words: str, source: str) -> None:
    found = refused(source)
    assert found[0] == code
    assert words in found[1]


def test_a_nested_class_is_left_alone() -> None:
    inner = "".join(f"    {line}\n" if line else "\n" for line in NORM.rstrip().split("\n"))
    source = HEAD + LAYER.replace("Module):\n", "Module):\n" + inner + "\n").replace(
        "= N", "= self.N"
    )
    assert "convert" not in {site.verdict for site in sites(source.encode())}


SUBCLASS = "\n\nclass P(N):\n    {}\n"


@pytest.mark.parametrize("body", ["pass", '"""The same."""'])
def test_a_subclass_that_adds_nothing(body: str) -> None:
    after = converted(changed(MODEL, ("= N(", "= P(")) + SUBCLASS.format(body))
    assert f"self.norm = {NEW}" in after
    assert "class N(" not in after
    assert "class P(" not in after


@pytest.mark.parametrize(
    "body", ["kind = 1", "def __init__(self, d, eps):\n        super().__init__(d, eps=eps)"]
)
def test_a_subclass_that_adds_something(body: str) -> None:
    found = refused(changed(MODEL, ("= N(", "= P(")) + SUBCLASS.format(body))
    assert found == ("NP211", "P: it inherits from N and adds to it; build that if it is enough.")


def test_a_subclass_does_not_keep_the_base_from_being_converted() -> None:
    source = MODEL + SUBCLASS.format("def forward(self, x):\n        return x")
    after = converted(source)
    assert f"self.norm = {NEW}" in after
    assert "class N(" in after


@pytest.mark.parametrize(
    ("test", "code"),
    [
        ("type(m).__name__.startswith('N')", "NP211"),
        ("'Norm' in type(m).__name__", "NP211"),
        ("m.__class__.__name__.lower().endswith('rmsnorm')", "NP211"),
        ("type(m).__name__ in KINDS", "NP211"),
        ("KINDS[type(m).__name__]", "NP211"),
        ("type(m).__name__ == 'FusedMoE'", None),
        ("type(self).__name__ == m", None),
        ("print(type(m).__name__)", None),
    ],
)
def test_a_class_that_is_told_by_its_name(test: str, code: str | None) -> None:
    method = f"\n\n    def f(self, m):\n        return {test}\n"
    source = changed(MODEL, (CALL, CALL + method))
    if code is None:
        assert "RMSNorm(" in converted(source)
    else:
        assert refused(source)[0] == code


SHADOWED = {
    "a parameter elsewhere": "\n\ndef other(torch):\n    return torch\n",
    "a local of another function": "\n\ndef other():\n    nn, torch = 1, 2\n    return nn, torch\n",
    "an exception's name": "\n\ntry:\n    pass\nexcept ImportError as torch:\n    pass\n",
    "taken away": "\n\ndel torch\n",
    "a function's own global": "\n\ndef other():\n    global torch\n    torch = None\n",
}


@pytest.mark.parametrize("more", SHADOWED.values(), ids=SHADOWED)
def test_a_norm_is_found_whatever_else_is_called_torch(more: str) -> None:
    (site,) = find_sites((MODEL + more).encode(), "model.py")
    assert site.norm == "N"
    assert site.verdict == "convert" or site.code in ("NP214", "NP221"), site


def test_names_of_other_functions_do_not_keep_a_norm_from_being_converted() -> None:
    assert converted(MODEL + SHADOWED["a parameter elsewhere"])
    assert converted(MODEL + SHADOWED["a local of another function"])
