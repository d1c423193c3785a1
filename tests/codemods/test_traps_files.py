"""Files that are written unusually, comments, and weights that are not those of a layer."""

from __future__ import annotations

import pytest
from norms import CALL, HEAD, LAYER, MODEL, NEW, NORM, RETURN, changed, converted, refused

from normport.codemods.analyze import Options, find_sites
from normport.codemods.convert import convert

WRITTEN = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "form feeds": lambda text: text.replace("\n\n    def", "\n\f\n    def").encode(),
    "no final newline": lambda text: text.rstrip("\n").encode(),
    "another encoding": lambda text: f"# coding: latin-1\n# \xe9\n{text}".encode("latin-1"),
}


@pytest.mark.parametrize("way", WRITTEN, ids=str)
def test_a_file_stays_written_as_it_is(way: str) -> None:
    """Converting it and then writing it unusually gives the same bytes."""
    source = WRITTEN[way](MODEL)
    found = find_sites(source, "model.py")
    result = convert(source, found, Options())
    assert result.source == WRITTEN[way](converted(MODEL))
    assert result.removed == ("N",)
    again = find_sites(result.source, "model.py")
    assert convert(result.source, again, Options()).source == result.source


def test_a_very_long_file() -> None:
    filler = "".join(f"def f{n}(a, b):\n    return a + b + {n}\n\n\n" for n in range(100))
    after = converted(HEAD + filler + NORM + filler.replace("def f", "def g") + LAYER)
    assert after.count("\n") > 800
    assert f"self.norm = {NEW}" in after


COMMENTS = """\
# Apart from the class.

# Why the class.
class N(nn.Module):  # noqa: N801
    # inside
    def __init__(self, dim, eps=1e-6):
"""


def test_comments_of_the_class_go_and_are_named_and_others_stay() -> None:
    source = changed(MODEL, (NORM[: NORM.index("        super")], COMMENTS))
    source = changed(source, ("class Layer", "# After the class.\n\n\nclass Layer"))
    result = convert(source.encode(), find_sites(source.encode(), "m.py"), Options())
    assert result.lost_comments == ("# Why the class.", "# noqa: N801", "# inside")
    after = result.source.decode()
    assert "# Apart from the class.\n" in after
    assert "# After the class.\n" in after
    assert "inside" not in after


INITIAL = {
    "scale from ones": ("ones", "", "RMSNorm"),
    "scale from zeros": ("zeros", "", "RMSNorm"),
    "offset from zeros": ("zeros", "1 + ", "GemmaRMSNorm"),
    "offset from ones": ("ones", "1 + ", "GemmaRMSNorm"),
}


@pytest.mark.parametrize(("start", "offset", "layer"), INITIAL.values(), ids=INITIAL)
def test_what_is_computed_decides_and_not_how_the_weight_starts(
    start: str, offset: str, layer: str
) -> None:
    source = changed(
        MODEL,
        ("torch.ones", f"torch.{start}"),
        ("self.weight.float()", f"({offset}self.weight.float())"),
    )
    assert f"self.norm = {layer}(config.size" in converted(source)
    (site,) = (site for site in find_sites(source.encode(), "m.py") if site.norm == "N")
    assert site.computes is not None
    assert site.computes.initial == start


PARAMETER = "self.weight = nn.Parameter(torch.ones(dim))"
WEIGHTS = {
    "buffer": ("NP212", [(PARAMETER, "self.register_buffer('weight', torch.ones(dim))")]),
    "second weight": (
        "NP206",
        [
            (PARAMETER, f"{PARAMETER}\n        self.second = nn.Parameter(torch.ones(dim))"),
            (RETURN, "return (h * self.weight.float() * self.second.float()).to(x.dtype)"),
        ],
    ),
    "second weight that is not used": (
        "NP206",
        [(PARAMETER, f"{PARAMETER}\n        self.second = nn.Parameter(torch.ones(dim))")],
    ),
    "read by a kernel": ("NP214", [(CALL, "return kernel(x, self.norm.weight)")]),
    "read through a variable": ("NP209", [(CALL, "n = self.norm\n        return k(x, n.weight)")]),
    "stacked in the class": ("NP206", [("torch.ones(dim)", "torch.ones(2, dim)")]),
    "stacked by the caller": (
        "NP214",
        [(CALL, "w = torch.stack([self.norm.weight] * 2)\n        " + CALL)],
    ),
    "loaded by hand": ("NP214", [(CALL, "self.norm.weight.data.copy_(x)\n        " + CALL)]),
    "custom loader": (
        "NP212",
        [(PARAMETER, f"{PARAMETER}\n        set_weight_attrs(self.weight, {{}})")],
    ),
}


@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_weights_that_are_not_those_of_a_layer(case: str) -> None:
    code, changes = WEIGHTS[case]
    found = refused(changed(MODEL, *changes))
    # Two weights are a product that is not followed: what is named is what stands in the way.
    assert found[0] == code or (case == "second weight" and found[0] == "NP210")


def test_the_class_may_print_its_weight() -> None:
    method = "    def extra_repr(self):\n        return str(self.weight.shape)\n"
    source = changed(MODEL, (f"        {RETURN}\n", f"        {RETURN}\n\n{method}"))
    assert f"self.norm = {NEW}" in converted(source)
