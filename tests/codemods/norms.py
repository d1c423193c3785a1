"""A small model file to change, and the two checks that the tests of traps end in."""

from __future__ import annotations

from sentences import assert_actionable

from normport.codemods.analyze import Options, find_sites
from normport.codemods.convert import convert
from normport.codemods.model import Site

HEAD = "import torch\nfrom torch import nn\n\n\n"
NORM = """\
class N(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)


"""
LAYER = """\
class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = N(config.size, eps=config.eps)

    def forward(self, x):
        return self.norm(x)
"""
MODEL = HEAD + NORM + LAYER
BUILD = "self.norm = N(config.size, eps=config.eps)"
CALL = "return self.norm(x)"
RETURN = "return (h * self.weight.float()).to(x.dtype)"
NEW = "RMSNorm(config.size, eps=config.eps, dtype=torch.float32)"


def changed(source: str, *changes: tuple[str, str]) -> str:
    """``source`` with each ``(old, new)`` carried out at the first place."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new, 1)
    compile(source, "model.py", "exec")
    return source


def sites(source: bytes) -> list[Site]:
    """The sites that are not done already."""
    return [site for site in find_sites(source, "model.py") if site.verdict != "done"]


def converted(source: str | bytes) -> str:
    """The file with everything converted; every site can be, and a second run changes nothing."""
    data = source if isinstance(source, bytes) else source.encode()
    found = sites(data)
    assert found
    assert {site.verdict for site in found} == {"convert"}, [site.reason for site in found]
    result = convert(data, found, Options())
    compile(result.source, "model.py", "exec")
    again = convert(result.source, find_sites(result.source, "model.py"), Options())
    assert again.source == result.source
    return result.source.decode("utf-8-sig")


def refused(source: str) -> tuple[str, str]:
    """The code and the sentence of the one refusal; nothing changes."""
    data = source.encode()
    found = sites(data)
    assert convert(data, found, Options()).source == data
    assert {site.verdict for site in found} == {"refuse"}
    (pair,) = {(site.code, site.reason or "") for site in found}
    assert_actionable(pair[1])
    return pair
