"""Subclasses of a norm class of the same file that leave the norm as it is, or as it is read."""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo


def inherited(module: ModuleInfo, node: ast.ClassDef) -> tuple[ast.ClassDef, bool] | None:
    """The class of the file whose forward ``node`` has, and whether ``node`` adds something.

    None for a class with a forward of its own, or with other bases.
    """
    adds = bool(node.decorator_list or node.keywords)
    seen: set[str] = set()
    while True:
        if node.name in seen or any(
            isinstance(part, ast.FunctionDef) and part.name == "forward" for part in node.body
        ):
            return (node, adds) if seen and node.name not in seen else None
        seen.add(node.name)
        adds = adds or not all(_is_nothing(part) for part in node.body)
        base = node.bases[0] if len(node.bases) == 1 else None
        if not isinstance(base, ast.Name) or base.id not in module.classes:
            return None
        node = module.classes[base.id]


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
