"""What a norm's constructor says of its weight beside shape and dtype."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from normport.codemods.nodes import spelled, walk
from normport.codemods.values import Const, Value


def placed_weight(init: ast.FunctionDef | None, values: Mapping[str, Value]) -> str | None:
    """The device on which the constructor makes a tensor, where that is not the current one.

    values: of the constructor's parameters.
    """
    for node in _keywords(init, "device"):
        value = values.get(node.id) if isinstance(node, ast.Name) else None
        absent = isinstance(node, ast.Constant) and node.value is None
        if not absent and value != Const(None):
            return spelled(node)
    return None


def asks_no_gradient(init: ast.FunctionDef | None) -> bool:
    """Whether a parameter is made with ``requires_grad=False``, or made so later."""
    parts = list(walk(init)) if init is not None else []
    switched = any(isinstance(p, ast.Attribute) and p.attr == "requires_grad_" for p in parts)
    return switched or any(
        isinstance(node, ast.Constant) and node.value is False
        for node in _keywords(init, "requires_grad")
    )


def _keywords(init: ast.FunctionDef | None, name: str) -> Iterator[ast.expr]:
    for part in walk(init) if init is not None else ():
        if isinstance(part, ast.keyword) and part.arg == name:
            yield part.value
