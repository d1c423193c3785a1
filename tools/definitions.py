"""Which classes and functions a module defines, by qualified name."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def definitions(source: bytes) -> set[str]:
    """Qualified names of the classes and functions that a module defines; none if it does not
    parse."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    return set(_defined(module, ""))


def _defined(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from _defined(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _defined(child, prefix)
