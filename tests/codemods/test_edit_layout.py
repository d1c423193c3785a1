"""Edited statements are laid out as ruff would lay them out; the rest of them stays."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from plans import check_refused, check_transformed, is_formatted, plan

from normport.codemods.edit import apply_plan

WIDE = "Norm(text_config.hidden_size, eps=text_config.rms_norm_eps, has_weight=False)"


def in_method(statement: str, depth: int = 2) -> str:
    return "class Model:\n    def __init__(self, text_config, config, cond):\n" + indent(
        dedent(statement).strip("\n") + "\n", "    " * depth
    )


FORMATTED = {
    "fits": ("x = Old(1)\n", "Old(1)", "Norm(1, eps=2)"),
    "arguments on one line": (
        "self.norm = Old(1)\n",
        "Old(1)",
        WIDE.replace("text_config.r", "config.r"),
    ),
    "one argument per line": ("self.a_long_name_of_a_norm = Old(1)\n", "Old(1)", WIDE),
    "collapses": (
        "self.input_layernorm = Old(\n"
        "    config.hidden_size, eps=config.rms_norm_eps, offset=11111\n)\n",
        "Old(\n            config.hidden_size, eps=config.rms_norm_eps, offset=11111\n        )",
        "Norm(config.hidden_size)",
    ),
    "redundant parentheses open": (
        """
        self.perception_emb_norm_x = (
            Old(eps=text_config.rms_norm_eps, with_scale=False)
            if text_config.normalize_tok_embeddings
            else nn.Identity()
        )
        """,
        "Old(eps=text_config.rms_norm_eps, with_scale=False)",
        WIDE,
    ),
    "redundant parentheses close": (
        """
        self.perception_emb_norm = (
            OldOldOldOldOldOldOld(eps=text_config.rms_norm_eps)
            if text_config.flag
            else Id()
        )
        """,
        "OldOldOldOldOldOldOld(eps=text_config.rms_norm_eps)",
        "Norm(1)",
    ),
    "conditional opens": ("self.norm = Old(1) if cond else None\n", "Old(1)", WIDE),
    "return": ("return Old(1)\n", "Old(1)", "Some" + WIDE),
    "yield and await": ("yield Old(1)\n", "Old(1)", "Some" + WIDE),
    "argument of a call": (
        "self.layers = nn.Sequential(Old(1), nn.Linear(2, 3))\n",
        "Old(1)",
        WIDE,
    ),
    "element of a list": (
        "self.layers = nn.ModuleList([Old(1) for _ in range(config.num_layers)])\n",
        "Old(1)",
        WIDE,
    ),
    "value of a dict": ('norms = {"q": Old(1), "k": Old(1)}\n', "Old(1)", WIDE),
    "lambda": ("self.make = lambda: Old(1)\n", "Old(1)", WIDE),
    "keyword": ("self.block = Block(dim=1, norm=Old(1), name=2)\n", "Old(1)", WIDE),
    "callee of a call": ("self.norm = Old(1).to(config.dtype)\n", "Old(1)", WIDE),
    "name in an annotation": ("self.norm: Old | None = None\n", "Old", "N" * 70),
    "header of a def": (
        "def build(self, norm: Old, size: int = 1, epsilon: float = 1e-6) -> None:\n    pass\n",
        "Old",
        "AVeryLongNameForANormLayer",
    ),
    "header of an if": ("if isinstance(config, Old) and config.flag:\n    pass\n", "Old", "N" * 60),
    "after a noqa comment": (
        "self.norm = Old(1)  # noqa: E501 " + "x" * 60 + "\n",
        "Old(1)",
        "Norm(1)",
    ),
    "a comment pushes it over": (
        "self.norm = Old(1)  # " + "x" * 50 + "\n",
        "Old(1)",
        "Norm(config.hidden)",
    ),
    "walrus and tuple": ("a, b = Old(1), (c := Old(2))\n", "Old(1)", WIDE),
    "keeps the other quotes": ("self.norm = f('a', Old(1))\n", "Old(1)", WIDE),
}


@pytest.mark.parametrize("case", FORMATTED, ids=str)
def test_a_formatted_file_stays_formatted(case: str) -> None:
    statement, old, new = FORMATTED[case]
    before = in_method(statement)
    quotes = "quotes" in case
    assert quotes or is_formatted(before.encode())
    name = new.split("(")[0]
    result = apply_plan(before.encode(), plan(before, {old: new}, {"other": (name,)})).source
    body = result.replace(b"'a'", b'"a"') if quotes else result
    assert is_formatted(body), result.decode()
    flat = "".join(result.decode().split()).replace(",)", ")")
    assert "".join(new.split()) in flat
    assert "Old(1)" not in result.decode()
    assert ("'a'" in result.decode()) == quotes


def test_the_conditional_expression_in_parentheses() -> None:
    old = "Old(eps=text_config.rms_norm_eps, with_scale=False)"
    before = in_method(FORMATTED["redundant parentheses open"][0])
    after = in_method(
        """
        self.perception_emb_norm_x = (
            Norm(
                text_config.hidden_size,
                eps=text_config.rms_norm_eps,
                has_weight=False,
            )
            if text_config.normalize_tok_embeddings
            else nn.Identity()
        )
        """
    )
    wanted = plan(before, {old: WIDE}, {"other": ("Norm",)})
    check_transformed(before, f"from other import Norm\n\n\n{after}", wanted, line_length=84)


def test_a_magic_trailing_comma_keeps_the_call_exploded() -> None:
    before = "import a\n\nx = a.Old(\n    1,\n    eps=2,\n)\n"
    after = "import a\n\nx = a.Norm(\n    1,\n)\n"
    check_transformed(before, after, plan(before, {"a.Old(\n    1,\n    eps=2,\n)": "a.Norm(1)"}))


STYLES = {
    "one line": ("y   = Old(1)\n", "y   = list(1, eps=2)\n", "list(1, eps=2)"),
    "hugged": (
        "yyyy   = Old(1)  # type: ignore[unpaged]\n",
        "yyyy   = list(\n    config.hidden_size\n)  # type: ignore[unpaged]\n",
        "list(config.hidden_size)",
    ),
    "exploded": (
        "yyyyy   = Old(1)\n",
        "yyyyy   = list(\n    config.hidden_size,\n    eps=config.eps_eps,\n)\n",
        "list(config.hidden_size, eps=config.eps_eps)",
    ),
    "no arguments to break": ("y" * 28 + "   = Old\n", "y" * 28 + "   = frozenset\n", "frozenset"),
}


@pytest.mark.parametrize("case", STYLES, ids=str)
def test_a_file_of_another_style_keeps_it(case: str) -> None:
    statement, expected, new = STYLES[case]
    before = f"config = Old = None\n{statement}"
    old = "Old(1)" if "Old(1)" in statement else "Old"
    wanted = plan(before, {old: new})
    wanted = type(wanted)(wanted.edits[-1:], {})
    check_transformed(before, f"config = Old = None\n{expected}", wanted, line_length=32)


def test_tabs_and_two_spaces_indent_as_the_file_does() -> None:
    for unit in ("\t", "  "):
        before = f"def f(config):\n{unit}return Old(1)\n"
        after = f"def f(config):\n{unit}return list(\n{unit * 2}config.hidden_size\n{unit})\n"
        check_transformed(before, after, plan(before, {"Old(1)": "list(config.hidden_size)"}), 30)


def test_an_f_string_is_never_broken() -> None:
    before = 'x = f"{Old(1)} and text"\n'
    after = 'x = f"{list(11111111, 22222222)} and text"\n'
    check_transformed(before, after, plan(before, {"Old(1)": "list(11111111, 22222222)"}), 20)


def test_two_edits_on_one_line_and_columns_in_code_points() -> None:
    before = 'x = ["ä𝕏", Old(1), Old(2)]\n'
    after = 'x = ["ä𝕏", list(1), set(2)]\n'
    check_transformed(before, after, plan(before, {"Old(1)": "list(1)", "Old(2)": "set(2)"}))


def test_statements_after_a_semicolon_and_a_backslash_stay() -> None:
    before = "a = 1; b = Old(1);  c = 3\nd = \\\n    Old(1)\n"
    after = "a = 1; b = list(2);  c = 3\nd = \\\n    list(2)\n"
    check_transformed(before, after, plan(before, {"Old(1)": "list(2)"}))


def test_a_suite_on_the_header_line_and_an_elif_and_a_decorator() -> None:
    before = "if a: b = Old(1)\nelif Old(1): pass\n\n@Old(1)\ndef f(): pass\n"
    after = "if a: b = list(2)\nelif list(2): pass\n\n@list(2)\ndef f(): pass\n"
    check_transformed(before, after, plan(before, {"Old(1)": "list(2)"}))


def test_comments_of_surviving_arguments_stay_with_them() -> None:
    before = """\
    x = Old(
        # the size
        config.hidden_size,  # of a head
        weight_offset=1,
        eps=1e-6,  # as trained
    )  # noqa
    """
    after = """\
    x = list(
        # the size
        config.hidden_size,  # of a head
        eps=1e-6,  # as trained
        has_weight=False,
    )  # noqa
    """
    text = dedent(before)
    old = text[text.index("Old") : text.index("  # noqa")]
    new = "list(config.hidden_size, eps=1e-6, has_weight=False)"
    prefix = "config = None\n"
    check_transformed(prefix + text, prefix + dedent(after), plan(prefix + text, {old: new}))


@pytest.mark.parametrize("comma", ["", ","])
def test_a_comment_after_the_last_argument_stays_with_it(comma: str) -> None:
    old = f"Old(\n    size,\n    eps=e{comma}  # small\n)"
    before = f"size = e = 1\nx = {old}\n"
    after = "size = e = 1\nx = dict(\n    size,\n    eps=e,  # small\n    c=1,\n)\n"
    check_transformed(before, after, plan(before, {old: "dict(size, eps=e, c=1)"}))


@pytest.mark.parametrize(
    ("inside", "comment", "line"),
    [
        ("1,\n    gone=2,  # why\n", "# why", 3),
        ("\n    # above\n    gone=2,\n    a=1", "# above", 3),
        ("  # opening\n    1,\n", "# opening", 2),
        ("\n    1,\n    # closing\n", "# closing", 4),
        ("\n    1 +  # inner\n    2,\n", "# inner", 3),
        ("\n    (  # nested\n    1)\n", "# nested", 3),
        ("\n    1\n    # between\n    , 2\n", "# between", 4),
    ],
)
def test_a_comment_that_would_be_lost_is_named(inside: str, comment: str, line: int) -> None:
    before = f"\nx = Old({inside})\n"
    old = before[before.index("Old") : -1]
    check_refused(before, plan(before, {old: "list(1, a=1)"}), f"line {line}: .*{comment}")
    check_refused(before, plan(before, {old: "list"}), f"line {line}: .*{comment}")


def test_a_stale_plan_is_refused() -> None:
    before = "x = Old(1)\n"
    wanted = plan(before, {"Old(1)": "list(1)"})
    check_refused("x = Old(2)\n", wanted, "line 1, column 5: .*does not stand here")
    check_refused("\nx = Old(1)\n", wanted, "does not stand here")
    check_refused("y = x = Old(1)\n", wanted, "does not stand here")
    check_refused("x = Old(1)(2)\n", plan(before, {"Old(1)": "1 +"}), "not an expression")


def test_overlapping_edits_and_unknown_names_are_refused() -> None:
    before = "x = Old(Old)\n"
    check_refused(before, plan(before, {"Old(Old)": "list(1)", "Old": "set"}), "two edits")
    check_refused(before, plan(before, {"Old(Old)": "list(undefined)"}), "'undefined'")


def test_new_text_may_bind_names_itself() -> None:
    before = "x = Old(1)\n"
    after = "x = list(lambda a: [a + b for b in (1, 2)])\n"
    check_transformed(before, after, plan(before, {"Old(1)": after[4:-1]}))
