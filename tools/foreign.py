"""The closer look at a file that names another module: what it takes from it, by its syntax."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from normport.codemods.nodes import Kinds, index

_DYNAMIC = re.compile(rb"\bimport_module\b|\b__import__\b")


@dataclass(frozen=True)
class Reading:
    """A use of an attribute that only the object now stored there need support.

    line, text: None for a file that does not parse.
    """

    path: Path
    line: int | None
    text: str | None


class OtherFile:
    """A file, parsed at most once for all the modules that it may use."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data

    def may_import(self, stem: str) -> bool:
        """Whether it may import a module whose name ends in ``stem``, by a look at the bytes."""
        word = re.escape(os.fsencode(stem))
        imports = (
            rb"(?<!\w)" + word + rb"[\s\\]*import\b|\bimport\b[^=:]*(?<!\w)" + word + rb"(?!\w)"
        )
        relative = rb"\bfrom[\s\\]*\.+[\s\\]*import\b"
        return bool(re.search(imports + b"|" + relative, self.data) or _DYNAMIC.search(self.data))

    def imported_from(self, stem: str, names: Collection[str], every: Collection[str]) -> set[str]:
        """Which of ``names`` it takes from the module whose name ends in ``stem``.

        every: the answer for a star import, and for a file that does not parse.
        """
        if not self.may_import(stem):
            return set()
        if self._index is None:
            return set(every)
        _, kinds = self._index
        others = self._imports_of_others(stem)
        found: set[str] = set()
        for node in cast(list[ast.ImportFrom], kinds[ast.ImportFrom]):
            if _last(node.module) in (stem, ""):
                taken = {alias.name for alias in node.names}
                found |= set(every) if "*" in taken else taken
        wanted = {*names, *every}
        for attribute in cast(list[ast.Attribute], kinds[ast.Attribute]):
            if attribute.attr in wanted and _root(attribute) not in others:
                found.add(attribute.attr)
        for constant in cast(list[ast.Constant], kinds[ast.Constant]):
            if isinstance(constant.value, str):
                found.add(constant.value)
        return found & wanted

    def reading(self, stem: str, attribute: str, direct: bool = True) -> Reading | None:
        """The first use of ``.attribute`` that is more than a call with one argument, a comparison
        with ``is`` or an assignment; None: there is none.

        Whose attribute it is cannot be told, except that it is none of another module.
        direct: the file names the class that has the attribute. Where it does not, an attribute
        that it sets on ``self`` is its own.
        """
        if self._index is None:
            return Reading(self.path, None, None)
        parents, kinds = self._index
        others = self._imports_of_others(stem)
        nodes = [n for n in cast(list[ast.Attribute], kinds[ast.Attribute]) if n.attr == attribute]
        if not direct and any(_on_self(n) and isinstance(n.ctx, ast.Store) for n in nodes):
            nodes = [node for node in nodes if not _on_self(node)]
        for node in nodes:
            parent = parents[node]
            if _root(node) in others or _is_plain(node, parent):
                continue
            whole = parent if isinstance(parent, ast.Attribute | ast.Call) else node
            return Reading(self.path, node.lineno, ast.unparse(whole))
        return None

    @cached_property
    def _index(self) -> tuple[dict[ast.AST, ast.AST], Kinds] | None:
        """Its nodes; None where it does not parse."""
        module = _parse(self.data)
        return None if module is None else index(module, breadth_first=True)

    def _imports_of_others(self, stem: str) -> set[str]:
        """Names bound by imports that do not go through a module of the name ``stem``."""
        assert self._index is not None
        _, kinds = self._index
        found: dict[str, bool] = {}
        for node in cast(
            list[ast.Import | ast.ImportFrom], [*kinds[ast.Import], *kinds[ast.ImportFrom]]
        ):
            source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            relative = isinstance(node, ast.ImportFrom) and not node.module
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                same = relative or stem in (*source.split("."), *alias.name.split("."))
                found[bound] = found.get(bound, False) or same
        return {name for name, same in found.items() if not same}


def _on_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_plain(node: ast.Attribute, parent: ast.AST) -> bool:
    if isinstance(node.ctx, ast.Store):
        return not isinstance(parent, ast.AugAssign)
    match parent:
        case ast.Call(func=func, args=[argument], keywords=[]):
            return func is node and not isinstance(argument, ast.Starred)
        case ast.Compare(ops=ops):
            return all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
    return False


def _parse(data: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another's escapes in strings
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _root(node: ast.Attribute) -> str | None:
    """The name that a chain of attributes starts with; None: it starts with something else."""
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else None


def _last(module: str | None) -> str:
    return (module or "").rpartition(".")[2]
