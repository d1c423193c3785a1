"""What loses its last use goes, with its comments named; what is still named stays."""

from __future__ import annotations

from textwrap import dedent

import pytest
from plans import LAYERNORM, check_noop, check_refused, check_transformed, is_formatted, lint, plan

from normport.codemods.edit import apply_plan
from normport.codemods.model import FilePlan

GONE = FilePlan((), {}, ("Old",))

SHAPES = {
    "between definitions": (
        """\
        class A:
            pass


        class Old:
            pass


        def f():
            pass
        """,
        """\
        class A:
            pass


        def f():
            pass
        """,
    ),
    "first, under a header": (
        """\
        # SPDX-License-Identifier: Apache-2.0


        class Old:
            pass


        x = 1
        """,
        """\
        # SPDX-License-Identifier: Apache-2.0

        x = 1
        """,
    ),
    "first of all": ("class Old:\n    pass\n\n\nclass A:\n    pass\n", "class A:\n    pass\n"),
    "last": ("x = 1\n\n\nclass Old:\n    pass\n", "x = 1\n"),
    "last, without a newline": ("x = 1\n\n\nclass Old:\n    pass", "x = 1\n"),
    "alone": ("class Old:\n    pass\n", ""),
    "between statements": (
        "x = 1\n\n\nclass Old:\n    pass\n\n\ny = 1\n",
        "x = 1\n\ny = 1\n",
    ),
    "between imports and a statement": (
        "import a\n\n\nclass Old:\n    pass\n\n\ny = a\n",
        "import a\n\ny = a\n",
    ),
    "between imports and a class": (
        "import a\n\n\nclass Old:\n    pass\n\n\nclass A(a.A):\n    pass\n",
        "import a\n\n\nclass A(a.A):\n    pass\n",
    ),
    "between a statement and a class": (
        "x = 1\n\n\nclass Old:\n    pass\n\n\nclass A:\n    pass\n",
        "x = 1\n\n\nclass A:\n    pass\n",
    ),
    "a comment apart above and one below": (
        """\
        x = 1

        # ---- norms ----


        class Old:
            pass


        # ---- layers ----
        y = 1
        """,
        """\
        x = 1

        # ---- norms ----


        # ---- layers ----
        y = 1
        """,
    ),
    "one blank line is the file's style": (
        "class A:\n    pass\n\nclass Old:\n    pass\n\nclass B:\n    pass\n",
        "class A:\n    pass\n\nclass B:\n    pass\n",
    ),
    "on one line": ("class Old: pass\nx = 1\n", "x = 1\n"),
    "a form feed apart": (
        "x = 1\n\n\f\n\nclass Old:\n    pass\n\n\n\n\nclass A:\n    pass\n",
        "x = 1\n\f\n\n\n\n\nclass A:\n    pass\n",
    ),
}


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_blank_lines_where_a_class_stood(case: str) -> None:
    before, after = SHAPES[case]
    result = check_transformed(before, after, GONE)
    assert result.removed == ("Old",)
    assert result.lost_comments == ()
    if is_formatted(dedent(before).encode()):
        assert is_formatted(dedent(after).encode())
        assert lint(dedent(after).encode(), "I") == []


def test_comments_that_go_are_named_in_order() -> None:
    before = """\
    x = 1
    # not about the class


    # Why this norm.
    # In two lines.
    @decorate  # twice
    class Old:
        # first
        def f(self):
            return "# no comment"  # second
            # third

        # fourth
    # after the class
    y = 1
    """
    after = """\
    x = 1
    # not about the class


    # after the class
    y = 1
    """
    result = check_transformed(before, after, GONE)
    assert result.lost_comments == (
        *("# Why this norm.", "# In two lines.", "# twice"),
        *("# first", "# second", "# third", "# fourth"),
    )


def test_a_file_header_is_nobodys_comment() -> None:
    result = check_transformed("# Licence\nclass Old: pass\nx = 1\n", "# Licence\nx = 1\n", GONE)
    assert result.lost_comments == ()


REFERENCES = {
    "a call": "x = Old()\n",
    "a base": "class A(Old):\n    pass\n",
    "a decorator": "@Old\ndef f(): pass\n",
    "a default": "def f(a=Old): pass\n",
    "an annotation": "def f(a: Old): pass\n",
    "a forward reference": 'def f(a: "Old | None"): pass\n',
    "a nested forward reference": "def f(a: list['dict[str, \"Old\"]']): pass\n",
    "a cast": 'from typing import cast\nx = cast("Old", None)\n',
    "__all__": '__all__ = ["Old"]\n',
    "a later __all__": '__all__ = []\n__all__ += ["Old"]\n',
    "a lookup by name": 'x = globals()["Old"]\n',
    "a qualified string": 'x = "vllm.models.x.Old"\n',
    "an attribute of it": "x = Old.attribute.other\n",
    "isinstance in a function": "def f(x):\n    return isinstance(x, (int, Old))\n",
    "a del": "del Old\n",
    "an f-string": 'x = f"{Old}"\n',
    "a second binding": "Old = decorate(1)\n",
    "a sentence": 'x = "Old norms are gone"\n',
    "a part of an f-string": 'x = f"models:Old {y}"\n',
    "a string in two parts": 'x = "models.O" "ld"\n',
    "eval in the file": "y = eval(x)\n",
    "a match": "match x:\n    case Old(): pass\n",
}


@pytest.mark.parametrize("case", REFERENCES, ids=str)
def test_a_class_that_is_still_named_stays(case: str) -> None:
    check_noop(f"decorate = x = None\nclass Old: pass\n{REFERENCES[case]}", GONE)


NO_REFERENCES = {
    "a docstring": '"""Old is gone."""\n',
    "a longer word in a string": 'x = "Olden norms"\n',
    "a local of that name": "def f(Old):\n    return Old\n",
    "an attribute of that name": "x = y.Old\n",
    "a keyword of that name": "x = dict(Old=1)\n",
    "a longer name": "Older = 1\nx = Older\n",
}


@pytest.mark.parametrize("case", NO_REFERENCES, ids=str)
def test_what_does_not_name_the_class_does_not_hold_it(case: str) -> None:
    rest = f"y = None\n{NO_REFERENCES[case]}"
    check_transformed(f"class Old: pass\n{rest}", rest, GONE)


def test_what_is_no_top_level_definition_stays() -> None:
    check_noop("if 1:\n    class Old: pass\n", GONE)
    check_noop("Old = 1\n", GONE)
    check_noop("x = 1\n", GONE)


def test_dead_ones_may_name_each_other_and_helpers_follow() -> None:
    before = """\
    import math
    import os
    from typing import cast


    def _helper(x):
        return _inner(math.sqrt(x))


    def _inner(x):
        return _inner(x) if x else os


    def public(x):
        return x


    def _registered(x):
        return x


    def _unused(x):
        return x


    def _shared(x):
        return x


    class Base:
        pass


    class Old(Base):
        other: "Other"

        def f(self):
            return _helper(public(_shared(cast("Other", 1))))


    class Other(Old):
        pass


    y = _shared(_registered)
    """
    kept = """\
    import os


    def public(x):
        return x


    def _registered(x):
        return x


    def _unused(x):
        return x


    def _shared(x):
        return x


    class Base:
        pass


    y = _shared(_registered)
    """
    wanted = FilePlan((), {}, ("Old", "Other"))
    kept = kept.replace("    import os\n\n\n", "")
    result = check_transformed(before, kept, wanted)
    assert result.removed == ("math", "os", "cast", "_helper", "_inner", "Old", "Other")
    assert is_formatted(result.source)


def test_names_that_other_files_use_are_kept() -> None:
    before = "import math\n\n\ndef _helper():\n    return math\n\n\nclass Old:\n    x = _helper()\n"
    after = before[: before.index("\n\n\nclass")] + "\n"
    kept = apply_plan(before.encode(), GONE, keep=frozenset({"_helper"}))
    assert kept.source.decode() == after
    assert kept.removed == ("Old",)
    assert apply_plan(before.encode(), GONE, keep=frozenset({"Old"})).source == before.encode()


IMPORTS = {
    "a whole statement": ("import os\nimport {math}\n", "import os\n"),
    "under another name": ("import os\nimport torch.math as {math}\n", "import os\n"),
    "a part of a module": ("import os\nimport {math}.part\n", "import os\n"),
    "one of two": ("import os, {math}\n", "import os\n"),
    "the first of two": ("import {math}, os\n", "import os\n"),
    "a from-import": ("import os\nfrom torch import {math}\n", "import os\n"),
    "the last of three": ("from torch import a, os, {math}\n", "from torch import a, os\n"),
    "the middle of three": ("from torch import a, {math}, os\n", "from torch import a, os\n"),
    "one a line": (
        "from torch import (\n    {math},\n    os,\n)\n",
        "from torch import (\n    os,\n)\n",
    ),
    "one a line, comments of the others": (
        "from torch import (\n    a,  # of a\n    {math},\n    # of os\n    os,  # too\n)  # end\n",
        "from torch import (\n    a,  # of a\n    # of os\n    os,  # too\n)  # end\n",
    ),
    "the last of some lines": (
        "from torch import (a, b,\n               os, {math})\n",
        "from torch import (a, b,\n               os)\n",
    ),
    "its section goes": (
        "import os\n\nimport {math}\n\nimport vllm\n",
        "import os\n\nimport vllm\n",
    ),
    "used before and unused before": (
        "import unused\nimport {math}\nimport os\n",
        "import unused\nimport os\n",
    ),
    "a comment beside it": ("import os\nimport {math}  # needed\n", None),
    "a comment above it": ("import os\n# needed\nimport {math}\n", None),
    "a comment in it": ("from torch import (\n    os,\n    {math},  # needed\n)\n", None),
    "a comment on the line above in it": (
        "from torch import (\n    os,\n    # needed\n    {math},\n)\n",
        None,
    ),
    "noqa F401": ("import os\nfrom torch import {math}, a  # noqa: F401\n", None),
    "a bare noqa": ("import os\nfrom torch import {math}, a  # noqa\n", None),
    "a declared re-export": ("import os\nfrom torch import {math} as {math}\n", None),
    "of a module that may have an effect": ("import os\nfrom plugin import {math}\n", None),
    "of a relative module": ("import os\nfrom .plugin import {math}\n", None),
    "a string names it": ('import os\nimport {math}\n\nt = list["{math}.T"]\n', None),
    "an f-string names it": ('import os\nimport {math}\n\nt = f"{math}.{{os}}"\n', None),
    "a type comment names it": ("import os\nimport {math}\n\nt = []  # type: {math}.T\n", None),
    "in a try": ("import os\ntry:\n    import {math}\nexcept ImportError:\n    pass\n", None),
    "for type checkers": ("import os\nif TYPE_CHECKING:\n    import {math}\n", None),
    "with a fallback": ("import os\nimport {math}\nif 1:\n    {math} = None\n", None),
    "exported": ('import os\nimport {math}\n\n__all__ = ["{math}"]\n', None),
    "shares its line": ("import os\nimport {math}; x = 1\n", None),
    "a future statement": ("from __future__ import annotations\nimport os\n", None),
    "two on its lines": (
        "from torch import (a, {math},\n    {pi}, os)\n",
        "from torch import (a, os)\n",
    ),
    "the last two": ("from torch import os, {math}, {pi}\n", "from torch import os\n"),
    "all but the first": (
        "from torch import (\n    os,\n    {math}, {pi},\n)\n",
        "from torch import (\n    os,\n)\n",
    ),
}


@pytest.mark.parametrize("case", IMPORTS, ids=str)
def test_imports_that_only_the_dead_class_used(case: str) -> None:
    before, after = (text and text.format(math="math", pi="pi") for text in IMPORTS[case])
    rest = "\nx = os.name\n"
    wanted = FilePlan((), {}, ("Old",))
    source = (
        f"{before}{rest}\n\nclass Old:\n    x = math.pi\n    y = [pi for _ in ()]\n    z = os\n"
    )
    result = check_transformed(source, (after or before) + rest, wanted)
    assert ("math" in result.removed) == (after is not None)


def test_an_import_that_the_new_text_needs_stays() -> None:
    before = "import math\n\n\nclass Old:\n    x = math.pi\n\n\ny = Old(math)\n"
    after = "import math\n\ny = float(math.pi)\n"
    check_transformed(before, after, plan(before, {"Old(math)": "float(math.pi)"}, {}, ("Old",)))


def test_an_import_that_only_the_replaced_text_used_goes() -> None:
    before = "import math\n\ny = Old(math.pi)\n"
    result = check_transformed(before, "y = float(1)\n", plan(before, {"Old(math.pi)": "float(1)"}))
    assert result.removed == ("math",)


def test_a_statement_may_lose_and_gain_names() -> None:
    source = "from {0} import {1}\n\n\nclass Old({2}):\n    pass\n\n\ny = Old(1)\n"
    for names, bases, expected in (
        ("Gone", "Gone", "RMSNorm"),
        ("AGone, ZGone", "AGone, ZGone", "RMSNorm"),
        ("Kept, ZGone", "ZGone", "Kept, RMSNorm"),
        ("AGone, Kept", "AGone", "Kept, RMSNorm"),
    ):
        before = source.format(LAYERNORM, names, bases)
        before += "z = Kept\n" if "Kept" in names else ""
        after = f"from {LAYERNORM} import {expected}\n\ny = RMSNorm(1)\n"
        after += "z = Kept\n" if "Kept" in names else ""
        wanted = plan(before, {"Old(1)": "RMSNorm(1)"}, {LAYERNORM: ("RMSNorm",)}, ("Old",))
        check_transformed(before, after, wanted)


def test_the_local_class_may_have_the_name_of_the_import() -> None:
    before = "class RMSNorm:\n    pass\n\n\ny = RMSNorm(1)\n"
    after = f"from {LAYERNORM} import RMSNorm\n\ny = RMSNorm(2, eps=1)\n"
    imports = {LAYERNORM: ("RMSNorm",)}
    wanted = plan(before, {"RMSNorm(1)": "RMSNorm(2, eps=1)"}, imports, ("RMSNorm",))
    check_transformed(before, after, wanted)
    still = before + "z = RMSNorm\n"
    check_refused(still, wanted, "line 1: the module binds 'RMSNorm' itself")


def test_an_edit_inside_what_goes_is_moot() -> None:
    before = "class Old:\n    x = other(1)\n\n\ny = 1\n"
    check_transformed(before, "y = 1\n", plan(before, {"other(1)": "list(1)"}, {}, ("Old",)))


def test_a_helper_of_a_helper_that_stays() -> None:
    before = """\
    def _root(x):
        return x

    def _nobody_calls_it(x):
        return _root(x)

    class Old:
        root = _root
    """
    after = """\
    def _root(x):
        return x

    def _nobody_calls_it(x):
        return _root(x)
    """
    check_transformed(before, after, GONE)
