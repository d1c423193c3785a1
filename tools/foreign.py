"""The closer look at a file that names another module: what it takes from it, by its syntax."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_DYNAMIC = re.compile(rb"\bimport_module\b|\b__import__\b")


@dataclass(frozen=True)
class Reading:
    """A use of an attribute that only the object now stored there need support.

    line, text: None for a file that does not parse.
    """

    path: Path
    line: int | None
    text: str | None


def may_import(data: bytes, stem: str) -> bool:
    """Whether the file may import a module whose name ends in ``stem``, by a look at the bytes."""
    word = re.escape(os.fsencode(stem))
    imports = rb"(?<!\w)" + word + rb"[\s\\]*import\b|\bimport\b[^=:]*(?<!\w)" + word + rb"(?!\w)"
    relative = rb"\bfrom[\s\\]*\.+[\s\\]*import\b"
    return bool(re.search(imports + b"|" + relative, data) or _DYNAMIC.search(data))


def imported_from(
    data: bytes, stem: str, names: Collection[str], every: Collection[str]
) -> set[str]:
    """Which of ``names`` the file takes from the module whose name ends in ``stem``.

    every: the answer for a star import, and for a file that does not parse.
    """
    if not may_import(data, stem):
        return set()
    module = _parse(data)
    if module is None:
        return set(every)
    others = _imports_of_others(module, stem)
    found: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.ImportFrom() if _last(node.module) in (stem, ""):
                taken = {alias.name for alias in node.names}
                found |= set(every) if "*" in taken else taken
            case ast.Attribute() if _root(node) not in others:
                found.add(node.attr)
            case ast.Constant(value=str(text)):
                found.add(text)
    return found & {*names, *every}


def readings(path: Path, data: bytes, stem: str, attribute: str) -> Reading | None:
    """The first use of ``.attribute`` that is more than a call with one argument, a comparison
    with ``is`` or an assignment; None: there is none.

    Whose attribute it is cannot be told, except that it is none of another module.
    """
    module = _parse(data)
    if module is None:
        return Reading(path, None, None)
    others = _imports_of_others(module, stem)
    for parent, node in _pairs(module):
        if isinstance(node, ast.Attribute) and node.attr == attribute:
            if _root(node) in others or _is_plain(node, parent):
                continue
            whole = parent if isinstance(parent, ast.Attribute | ast.Call) else node
            return Reading(path, node.lineno, ast.unparse(whole))
    return None


def _is_plain(node: ast.Attribute, parent: ast.AST) -> bool:
    if isinstance(node.ctx, ast.Store):
        return not isinstance(parent, ast.AugAssign)
    match parent:
        case ast.Call(func=func, args=[argument], keywords=[]):
            return func is node and not isinstance(argument, ast.Starred)
        case ast.Compare(ops=ops):
            return all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
    return False


def _pairs(module: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    for parent in ast.walk(module):
        for node in ast.iter_child_nodes(parent):
            yield parent, node


def _parse(data: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another's escapes in strings
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports_of_others(module: ast.Module, stem: str) -> set[str]:
    """Names bound by imports that do not go through a module of the name ``stem``."""
    found: dict[str, bool] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            relative = isinstance(node, ast.ImportFrom) and not node.module
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                same = relative or stem in (*source.split("."), *alias.name.split("."))
                found[bound] = found.get(bound, False) or same
    return {name for name, same in found.items() if not same}


def _root(node: ast.Attribute) -> str | None:
    """The name that a chain of attributes starts with; None: it starts with something else."""
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else None


def _last(module: str | None) -> str:
    return (module or "").rpartition(".")[2]
