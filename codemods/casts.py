"""Modules that are converted to another dtype where they are built."""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo

_CASTS = ("float", "double", "half", "bfloat16", "to", "type")


def built_cast(module: ModuleInfo) -> int | None:
    """The line of the first ``self.a = Layer(...).float()`` or the like in the file, or None.

    What such a layer returns may have another dtype than the parameters of its neighbors.
    """
    lines = [
        attribute.lineno
        for name in _CASTS
        for attribute in module.attributes.get(name, [])
        if _is_construction(attribute.value) and isinstance(module.parents[attribute], ast.Call)
    ]
    return min(lines, default=None)


def _is_construction(node: ast.expr) -> bool:
    """A call of a class, going by its name; parameters and buffers are no modules."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    bare = name.lstrip("_")
    return bare[:1].isupper() and bare not in ("Parameter", "Tensor", "FloatTensor", "LongTensor")
