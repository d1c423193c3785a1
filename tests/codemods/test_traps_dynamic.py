"""Files that reach a norm by something else than its name behind a dot."""

from __future__ import annotations

import pytest
from norms import CALL, MODEL, changed, refused, sites

MODEL_CLASS = """\


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = Layer(config)
        self.other = Other(config)

    def probe(self, x, name):
        {body}


class Other(nn.Module):
    pass
"""
BASE = "class Base(nn.Module):\n    def run(self, x, name):\n        {0}\n\n\nclass Layer(Base)"


def probe(body: str) -> str:
    return MODEL + MODEL_CLASS.replace("{body}", body)


def based(body: str) -> str:
    return changed(MODEL, ("class Layer(nn.Module)", BASE.format(body)))


REACHED = {
    "of a part": probe("return getattr(self.layer, f'{name}rm')(x, x)"),
    "of a variable": probe("m = self.layer\n        return getattr(m, name).eps"),
    "of an item": probe("return [getattr(m, name) for m in [self.layer]]"),
    "set": probe("setattr(self.layer, name, x)"),
    "of a base": based("return getattr(self, name)(x, x)"),
    "by a function of the base": based("return (lambda: getattr(self, name))()"),
    "a getter": "from operator import attrgetter\n" + probe("return attrgetter('layer.norm')(x)"),
    "a walk": changed(
        MODEL,
        (CALL, f"{CALL}\n\n    def f(self, x):\n        return [m(x, x) for m in self.children()]"),
    ),
    "a walk in a loop": probe("for m in self.layer.children(): x = m(x, scale=2)"),
    "a walk over names": probe("for n, m in self.layer.named_children(): x = m(*x)"),
}


@pytest.mark.parametrize("source", REACHED.values(), ids=REACHED)
def test_refused(source: str) -> None:
    code, reason = refused(source)
    assert code == "NP209"
    assert "reaches it in line" in reason


NOT_REACHED = {
    "of another part": probe("return getattr(self.other, name)(x, x)"),
    "of something else": probe("return getattr(x, name)"),
    "of a class beside it": probe("return getattr(self, name)(x, x)"),
    "another name": probe("return getattr(self.layer, 'other')(x, x)"),
    "a walk that passes the input": probe("for m in self.layer.children(): x = m(x)"),
    "a walk that calls something else": probe("for m in self.layer.children(): print(m, x)"),
}


@pytest.mark.parametrize("source", NOT_REACHED.values(), ids=NOT_REACHED)
def test_not_refused(source: str) -> None:
    assert {site.verdict for site in sites(source.encode())} == {"convert"}
