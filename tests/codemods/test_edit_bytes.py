"""Bytes that no edit is about stay: line ends, encodings, tabs, form feeds, trailing space."""

from __future__ import annotations

import codecs
import random

import pytest
from plans import LAYERNORM, NOTHING, check_refused, check_transformed, edits, plan

from normport.codemods.edit import apply_plan
from normport.codemods.model import Edit, EditResult, FilePlan

NORM = {LAYERNORM: ("RMSNorm",)}
NEW = "RMSNorm(config.hidden_size, eps=config.rms_norm_eps, has_weight=False)"
BEFORE = """\
import os

import torch


class Old(torch.Norm):
    pass


def f(config):
    self_norm_of_the_layer = Old(
        config.hidden_size, eps=config.rms_norm_eps, has_scale=False
    )
    return self_norm_of_the_layer, os
"""
AFTER = f"""\
import os

from {LAYERNORM} import RMSNorm


def f(config):
    self_norm_of_the_layer = RMSNorm(
        config.hidden_size, eps=config.rms_norm_eps, has_weight=False
    )
    return self_norm_of_the_layer, os
"""


def wanted(text: str) -> FilePlan:
    start = text.index("Old(", text.index("self_norm"))
    old = text[start : text.index(")", start) + 1]
    return plan(text, {old: NEW}, NORM, ("Old",))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8])
def test_line_ends_and_byte_order_mark(newline: str, bom: bytes) -> None:
    before = bom + BEFORE.replace("\n", newline).encode()
    after = bom + AFTER.replace("\n", newline).encode()
    check_transformed(before, after, wanted(BEFORE))
    exact = wanted(BEFORE.replace("\n", newline))
    assert apply_plan(before, exact).source == after


def test_mixed_line_ends() -> None:
    before = BEFORE.replace("os\n", "os\r\n").replace("Norm):\n", "Norm):\r")
    after = AFTER.replace("os\n", "os\r\n")
    check_transformed(before.encode(), after.encode(), wanted(BEFORE))
    inside = b"a = [Old(1),\r\n  2,\n  3]\n"
    result = b"a = [list(1),\r\n  2,\n  3]\n"
    check_transformed(inside, result, plan(inside.decode(), {"Old(1)": "list(1)"}))


def test_tabs_form_feeds_and_trailing_white_space() -> None:
    head = "\f\nx = 1   \n\f\ny = '\t'\t\n   \n"
    tail = "\n\n\fdef g():\n\tif 1:\n\t\treturn 'a\f\u2028b\x0bc\x85d'   \n\t \n# end\t \n\n\n  "
    check_transformed(
        f"import os\n{head}z = Old(1)  \n{tail}".encode(),
        f"import os\n{head}z = list(1)  \n{tail}".encode(),
        FilePlan(edits(f"import os\n{head}z = Old(1)  \n{tail}", {"Old(1)": "list(1)"}), {}),
    )


def test_no_newline_at_the_end() -> None:
    check_transformed(b"x = Old(1)", b"x = list(1)", plan("x = Old(1)", {"Old(1)": "list(1)"}))
    check_transformed(
        b"x = 1; y = Old", b"x = 1; y = list", plan("x = 1; y = Old", {"Old": "list"})
    )


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8", "koi8-r"])
def test_pep_263_encodings(encoding: str) -> None:
    letter = "я" if encoding == "koi8-r" else "é"
    before = f"# -*- coding: {encoding} -*-\nx = '{letter}', Old('{letter}')  # {letter}\n"
    after = before.replace("Old(", "list(")
    new = f"list('{letter}')"
    for change in ({f"Old('{letter}')": new}, {"Old": "list"}):
        check_transformed(before.encode(encoding), after.encode(encoding), plan(before, change))


def test_what_the_encoding_cannot_hold_is_refused() -> None:
    before = "# coding: latin-1\nx = Old(1)\n"
    check_refused(before, plan(before, {"Old(1)": "list('я')"}), "'я'.*iso-8859-1")
    check_refused(b"x = 1\n# \xff\n\n\n", FilePlan((), NORM), "line 2 is not valid utf-8")
    check_refused(b"\n\n\nx = '\xff'\n", FilePlan((), NORM), "line 4 is not valid utf-8")
    check_refused(b"# coding: nonsense\n", FilePlan((), NORM), "nonsense")
    check_refused(b"# coding: utf-7\nx = '+AOk-'\n# \xff", FilePlan((), NORM), "not valid utf-7")
    check_refused(b"# coding: utf-7\nx = '+AGE-'\n", FilePlan((), NORM), "same bytes back")


def test_what_does_not_parse_is_refused_with_its_place() -> None:
    check_refused("x = 1\ny = (\n", FilePlan((), NORM), "line ")
    check_refused("x = 1\nreturn = 3\n", FilePlan((), NORM), "line 2, column ")
    check_refused("x = b'é'\n", FilePlan((), NORM), "line 1: Python cannot parse")


def test_what_would_not_compile_is_refused() -> None:
    before = "def f():\n    del Old\n"
    check_refused(before, plan(before, {"Old": "None"}), "would not compile .line 2")


def test_an_empty_plan_reads_nothing() -> None:
    for source in (b"", b"\xff(", b"x = 1"):
        assert apply_plan(source, NOTHING) == EditResult(source)


def test_warnings_of_the_file_are_not_ours() -> None:
    before = 'x = "\\d" is Old(1)\n'
    check_warned = plan(before, {"Old(1)": "list(1)"})
    assert apply_plan(before.encode(), check_warned).source == b'x = "\\d" is list(1)\n'


SURROUNDINGS = (
    "x_{n} = 'an Old(1)'   # Old(1)\n",
    "def f_{n}(a, *, b = {{}}):\n  return  a\n",
    "class C_{n}( object ):\n\n    '''Doc.'''\n    # last\n",
    'if x:\n\ty = [1,\n\t  2 ]\t\nelse :\n\ty = """Old(1)\n  text """\n',
    "@d\n# c\nasync def g_{n}():\n    await  z\n",
    "# a comment\n",
    "\n",
    "\n\n\n",
    " \t \n",
    "\f\n",
    "try: a=1\nexcept  E : pass\n",
    "x = ( # open\n  1 +\\\n  2 )\n",
    "with a as b , c as d: pass\n",
    "lambda_{n} = lambda a = 1 : a ; z = 2;\n",
    "import os.path  as  p_{n} ; p_{n}\n",
)
SITES = (
    ("n_{n} = Old(1)\n", "Old(1)", "list(1)"),
    (
        "def h_{n}():\n        return  Old( 1,\n            2)\n",
        "Old( 1,\n            2)",
        "list((1, 2))",
    ),
    ("n_{n} = [Old(1) , 2]  # Old(1)\n", "Old(1)", "list(1)"),
    ("if Old: n_{n} = 1\n", "Old", "list"),
)


@pytest.mark.parametrize("seed", range(40))
def test_every_line_outside_the_edited_statements_stays(seed: int) -> None:
    """Random files: the surroundings come back line for line, in order, with their ends."""
    rng = random.Random(seed)
    newline = rng.choice(["\n", "\r\n"])
    source, expected, found = "", "", []
    for number in range(rng.randrange(4, 14)):
        if rng.random() < 0.4:
            text, old, new = rng.choice(SITES)
            text = text.format(n=number)
            start = text.index(old)
            line = source.count("\n") + text.count("\n", 0, start) + 1
            column = start - text.rfind("\n", 0, start)
            found.append(Edit(line, column, old, new))
            expected += text.replace(old, new, 1)
            source += text
        else:
            text = rng.choice(SURROUNDINGS).format(n=number)
            source += text
            expected += text
    if rng.random() < 0.3:
        source, expected = source + "last = 0", expected + "last = 0"
    before = source.replace("\n", newline).encode()
    after = expected.replace("\n", newline).encode()
    check_transformed(before, after, FilePlan(tuple(found), {}))
    dead = "\n\nclass Unused:  # gone\n    pass\n\n\n"
    with_class = apply_plan((source + dead).encode(), FilePlan(tuple(found), NORM, ("Unused",)))
    kept = [line for line in expected.splitlines() if line.strip()]
    result = [line for line in with_class.source.decode().splitlines() if line.strip()]
    added = f"from {LAYERNORM} import RMSNorm"
    assert [line for line in result if line != added] == kept
    assert result.count(added) == 1
    assert with_class.lost_comments == ("# gone",)


def test_a_form_feed_in_an_indent_is_refused_as_such() -> None:
    before = "class A:\n    def f(self):\n        pass\n\f        self.x = Old(1)\n"
    check_refused(before, plan(before, {"Old(1)": "list(1)"}), "line 4: .* form feed")
