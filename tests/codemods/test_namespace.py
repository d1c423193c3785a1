"""Which scope a name is of: what an edit must know before it takes away or adds a name."""

from __future__ import annotations

import ast
import sys
from textwrap import dedent

import pytest

from normport.codemods.namespace import Namespace, Scope

SOURCE = dedent(
    """\
    import torch.nn as nn
    import torch.distributed

    LIMIT = 1

    @decorate(LIMIT)
    class Norm(nn.Module):
        SIZE = LIMIT

        def forward(self, x: "Norm", size=SIZE) -> "list[Other]":
            LIMIT = [y for y in x if LIMIT]
            return SIZE, (lambda nn: nn)(x), f"{Norm}"

    def grow():
        global LIMIT, made
        LIMIT += 1
        made = [late := part for part in Norm]
        return late
    """
)


def lines_of(source: str, name: str) -> list[int]:
    """Where the file's own ``name``, or one that nothing binds, is used."""
    found = Namespace(ast.parse(source)).uses()
    return sorted(node.lineno for used, node in found if used == name)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("Norm", [10, 12, 17]),  # the annotation in quotes is a use too
        ("Other", [10]),
        ("LIMIT", [6, 8, 16]),  # not the local one in forward
        ("SIZE", [12]),  # a default reads the class's; a method does not
        ("nn", [7]),  # not the lambda's
        ("late", []),  # ``:=`` binds it for the function
        ("torch", []),
        ("decorate", [6]),
    ],
)
def test_uses_are_those_of_the_files_own_names(name: str, lines: list[int]) -> None:
    assert lines_of(SOURCE, name) == lines


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nn", [ast.Import]),
        ("torch", [ast.Import]),
        ("Norm", [ast.ClassDef]),
        ("LIMIT", [ast.Name, ast.Name]),  # ``global`` binds it for the file
        ("made", [ast.Name]),
        ("SIZE", []),
        ("late", []),
    ],
)
def test_bindings_are_those_of_the_file(name: str, kinds: list[type[ast.AST]]) -> None:
    assert [type(node) for node in Namespace(ast.parse(SOURCE)).bindings(name)] == kinds


def scope_of(namespace: Namespace, text: str, source: str) -> Scope:
    """The scope at the first place where ``text`` stands."""
    before = source[: source.index(text)]
    line = before.count("\n")
    return namespace.at(line + 1, len(before.rpartition("\n")[2].encode()))


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("decorate(", False),  # outside of what it decorates
        ("SIZE) ->", True),  # in the class's body
        ("y for", True),
        ("x if", False),  # the first iterable is read outside of the comprehension
        ("nn)(x)", False),  # a parameter of the lambda, not in its body yet
    ],
)
def test_a_position_has_the_innermost_scope_around_it(text: str, local: bool) -> None:
    source = SOURCE.replace("part in Norm", "y in Norm")
    namespace = Namespace(ast.parse(source))
    scope = scope_of(namespace, text, source)
    name = {"SIZE) ->": "SIZE", "decorate(": "LIMIT"}.get(text, "y")
    assert namespace.is_local(scope, name) is local


def test_builtins_and_the_files_own_names_are_defined() -> None:
    namespace = Namespace(ast.parse("import a\ndef f():\n    b = 1\n"))
    module = namespace.module
    assert [namespace.is_defined(module, n) for n in ("a", "len", "__name__", "b")] == [
        *(True, True, True),
        False,
    ]


def test_what_is_deleted_is_both_used_and_bound() -> None:
    source = "import a, b\ndef f():\n    del a\ndel b\n"
    assert lines_of(source, "a") == []
    assert lines_of(source, "b") == [4]
    namespace = Namespace(ast.parse(source))
    assert [len(namespace.bindings(name)) for name in "ab"] == [1, 2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_a_type_parameter_is_local_to_its_definition() -> None:
    source = "class T: ...\ndef f[T: int](x: T) -> T: ...\nclass C[T](Base[T]): ...\n"
    source += "type X[T] = list[T]\nx: X\n"
    assert lines_of(source, "T") == []
    assert lines_of(source, "X") == [5]
    assert lines_of(source, "Base") == [3]
