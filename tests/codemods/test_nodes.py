"""The fast walks see what those of Python see, and the looks at text see what it holds."""

from __future__ import annotations

import ast

import pytest

from normport.codemods.analyze import find_sites
from normport.codemods.hints import Hint, has_word
from normport.codemods.nodes import children, index

EVERYTHING = """\
@decorate(1)
class A(B, metaclass=C):
    x: int = 1

    async def f(self, a, /, b=2, *args: int, c, d=lambda e: e, **rest) -> "A":
        async with a as b, c:
            await b[1:2, ...]
        return {**a, "k": [i async for i in b if i if not i]}


def g(a):
    global x
    try:
        x = yield from a
    except (E, F) as error:
        raise G from error
    finally:
        del a.b, a[0]
    match a:
        case {"k": [1, *_], **more} | A(b=None) as whole if -more < a <= 3 and x or a:
            print(f"{a!r:>{width}} {b}" "c", sep=(y := 1))
        case _:
            pass
    while True:
        a += 1 if a else 2
        break
    else:
        assert a, b"c"
"""
SHARED = ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop


def test_children_and_parents() -> None:
    tree = ast.parse(EVERYTHING)
    expected = {
        child: node
        for node in ast.walk(tree)
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, SHARED)
    }
    for breadth_first in (True, False):
        parents, kinds = index(tree, breadth_first=breadth_first)
        assert parents == expected
        for kind, nodes in kinds.items():
            assert nodes == [node for node in parents if type(node) is kind]
        assert sum(map(len, kinds.values())) == len(parents)
    assert list(index(tree, breadth_first=True)[0]) == list(expected)
    for node in (tree, *expected):
        below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, SHARED)]
        assert list(children(node)) == below


IMPORT = "from vllm.model_executor.layers.layernorm import RMSNorm\n"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (IMPORT + "a = RMSNorm(1)\nb = [\n    1,\n    RMSNorm(2)]\n", [2, 5]),
        (IMPORT.replace("RMSNorm\n", "RMSNorm as N\n") + "N(1)\nRMSNorm(2)\n", [2]),
        (IMPORT.replace("RMSNorm\n", "(\n    RMSNorm as N,\n)\n") + "f(N(1))\n", [4]),
        (IMPORT + "@wrap(\n    RMSNorm(1)\n)\ndef f(x=RMSNorm(2)):\n    pass\n", [3, 5]),
        (IMPORT + 'a = f"""\n{1}\n{RMSNorm(1)} {2}\n"""\n', None),
        (IMPORT + "class A:\n    RMSNorm = 1\n    n = RMSNorm(1)\n", [4]),
        ("def f():\n    " + IMPORT + "def g():\n    return RMSNorm(1)\n", [4]),
        (IMPORT + "RMSNorm(1)\n\n\ndef f(RMSNorm):\n    pass\n", []),
        (IMPORT + "RMSNorm(1)\nRMSNorm = 1\n", []),
        (IMPORT + "RMSNorm(1)\nfrom a import RMSNorm\n", []),
        (IMPORT + "RMSNorm(1)\n\n\nclass RMSNorm:\n    pass\n", []),
        (IMPORT + "RMSNorm(1)\n\n\ndef f():\n    global RMSNorm\n", []),
        (IMPORT + "try:\n    RMSNorm(1)\nexcept E as RMSNorm:\n    pass\n", []),
        (IMPORT + "match 1:\n    case {**RMSNorm}:\n        RMSNorm(1)\n", []),
        (IMPORT + "x.RMSNorm(1)\nRMSNorm\nRMSNorm.y(1)\n'RMSNorm(1)'\n", []),
        (IMPORT + "# \u00e9\r\nRMSNorm(1)\r\r\n\rRMSNorm(2)\n", [3, 6]),
        (IMPORT + "\uff32\uff2d\uff33Norm(1)\n", [2]),  # full-width letters: the same name
        ("import vllm.model_executor.layers.layernorm.RMSNorm as N\nN(1)\n", [2]),
        ("import vllm.model_executor.layers.layernorm as n\nn.RMSNorm(1)\n", [2]),
    ],
)
def test_constructions_of_standard_layers(source: str, lines: list[int] | None) -> None:
    sites = find_sites(source.encode(), "model.py")
    assert {site.code for site in sites} <= {"NP100"}
    if lines is None:  # what an f-string holds has no reliable position before Python 3.12
        assert len(sites) == 1
    else:
        assert [site.line for site in sites] == lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x.mean (1)", True),
        ("geomean(1), mean", False),
        ("geomean(1), mean(1)", True),
        ("sqrt", True),
        ("-  0.5", True),
        ("0.5", False),
    ],
)
def test_hints(text: str, found: bool) -> None:
    hint = Hint({"sqrt": "", "0.5": r"-\s*0\.5", "mean": r"mean(?<=\bmean)\s*\("})
    assert (hint.found_in(text), hint.found_in(text.encode())) == (found, found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"norm", True),
        (b"a.norm(b)", True),
        (b"norms norm_ 1norm _norm norm1", False),
        (b"norms\nnorm", True),
        (b"norm\xc3\xa9", True),
        (b"", False),
    ],
)
def test_whole_words(text: bytes, found: bool) -> None:
    assert has_word(text, b"norm") is found
