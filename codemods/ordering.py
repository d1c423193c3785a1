"""Where isort's and ruff's default settings put an import, and in which order its names stand."""

from __future__ import annotations

import re
import sys

import libcst as cst
from libcst.helpers import get_full_name_for_node

FIRST_PARTY = frozenset({"vllm"})
FUTURE, STANDARD, THIRD_PARTY, FIRST, LOCAL = range(5)

SortKey = tuple[object, ...]


def section(node: cst.Import | cst.ImportFrom) -> int:
    """The section that an import statement belongs to, in the order in which they stand."""
    if isinstance(node, cst.ImportFrom):
        return LOCAL if node.relative else section_of(module_name(node))
    return section_of(node.names[0].evaluated_name)


def section_of(module: str) -> int:
    root = module.split(".")[0]
    if root == "__future__":
        return FUTURE
    if root in sys.stdlib_module_names:
        return STANDARD
    return FIRST if root in FIRST_PARTY else THIRD_PARTY


def module_name(node: cst.ImportFrom) -> str:
    """The module after ``from``, without the leading dots."""
    return (get_full_name_for_node(node.module) or "") if node.module is not None else ""


def statement_key(node: cst.Import | cst.ImportFrom) -> SortKey:
    """The order of statements of one kind inside a section."""
    first = None if isinstance(node.names, cst.ImportStar) else node.names[0]
    alias = first.evaluated_alias if first is not None else None
    if isinstance(node, cst.Import):
        return module_key(node.names[0].evaluated_name, None, alias)
    return module_key(module_name(node), first.evaluated_name if first else None, alias)


def module_key(module: str, first_name: str | None, alias: str | None = None) -> SortKey:
    """Modules by natural order without case, then with it, then by the first name imported."""
    return (
        _natural(module.lower()),
        _natural(module),
        name_key(first_name) if first_name is not None else (),
        name_key(alias) if alias is not None else (),
    )


def name_key(name: str) -> SortKey:
    """Names by type (CONSTANT, Class, function), then natural order without case, then with."""
    constant, class_like = len(name) > 1 and name.isupper(), name[:1].isupper()
    return (not constant, not class_like, _natural(name.lower()), _natural(name))


def _natural(text: str) -> SortKey:
    """A key that compares runs of digits by their value: ``fp8`` before ``fp16``."""
    return tuple(
        (ord("0"), int(part)) if part.isdecimal() else (ord(part), 0)
        for part in re.findall(r"\d+|\D", text)
    )
