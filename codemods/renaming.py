"""Puts another class's name into annotations, also where they are written as strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from normport.codemods.model import Edit
from normport.codemods.module_info import ModuleInfo


def renamed(module: ModuleInfo, nodes: Iterable[ast.AST], name: str, new: str) -> list[Edit]:
    """An edit for each of the ``nodes`` that names ``name``, or is a string that does."""
    edits: list[Edit] = []
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == name:
            edits.append(Edit(node.lineno, module.column(node), name, new))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = module.segment(node)
            changed = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", new, text)
            # Pieces that stand side by side are one constant and cannot be replaced as one.
            if changed != text and ast.literal_eval(text) == node.value and "\n" not in text:
                edits.append(Edit(node.lineno, module.column(node), text, changed))
    return edits
