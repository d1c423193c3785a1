"""Converts sites of one file; a layer whose name the file has for itself is spelled otherwise."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from normport.codemods.analyze import Options, decode, plan
from normport.codemods.model import Edit, EditResult, FilePlan, RefusedEdit, Site
from normport.codemods.module_info import ModuleInfo, read_module
from normport.codemods.registry import LAYERNORM

PACKAGE, _, MODULE = LAYERNORM.rpartition(".")


def convert(source: bytes, sites: Sequence[Site], options: Options) -> EditResult:
    """The file with the ``convert`` sites among ``sites`` converted; RefusedEdit where that
    would lose something.

    A file may have its own meaning for the name of a standard layer, and keep it: the layer is
    then reached through its module, or under the name by which the file imports it already.
    """
    from normport.codemods.edit import apply_plan

    planned = plan(source, sites, options)
    try:
        return apply_plan(source, planned, keep=options.outside_uses)
    except RefusedEdit as refused:
        other = _spelled(read_module(decode(source)), planned)
        if other == planned:
            raise
        try:
            return apply_plan(source, other, keep=options.outside_uses)
        except RefusedEdit:
            raise refused from None


def _spelled(module: ModuleInfo, planned: FilePlan) -> FilePlan:
    """``planned`` with another spelling for each layer whose name the file has for itself."""
    for layer in planned.imports.get(LAYERNORM, ()):
        if not _is_taken(module, layer):
            continue
        spelling = _known_as(module, layer) or f"{MODULE}.{layer}"
        edits = tuple(_respelled(edit, layer, spelling) for edit in planned.edits)
        imports = dict(planned.imports)
        left = tuple(name for name in imports.pop(LAYERNORM) if name != layer)
        if left:
            imports[LAYERNORM] = left
        if "." in spelling:
            imports[PACKAGE] = tuple(sorted({*imports.get(PACKAGE, ()), MODULE}))
        planned = replace(planned, edits=edits, imports=imports)
    return planned


def _is_taken(module: ModuleInfo, layer: str) -> bool:
    """Whether the file binds the name otherwise. A file that has a fallback for the import does
    not count on vLLM, so none is added to it."""
    if module.imported_with_fallback(layer) is not None:
        return False
    return bool(module.bindings.get(layer)) or module.imports.get(layer) != f"{LAYERNORM}.{layer}"


def _known_as(module: ModuleInfo, layer: str) -> str | None:
    """The name under which the top of the file imports the layer."""
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == LAYERNORM and not node.level:
            for alias in node.names:
                bound = alias.asname or alias.name
                if alias.name == layer and module.means_one_thing(bound):
                    return bound
    return None


def _respelled(edit: Edit, layer: str, spelling: str) -> Edit:
    """The layer is what the new text calls or partially applies, or a name in an annotation."""
    pattern = rf"^((?:functools\.)?partial\(|)(?<![\w.]){layer}(?=[(,)]|$)"
    new = re.sub(pattern, rf"\g<1>{spelling}", edit.new)
    if new == edit.new and edit.new[:1] in "'\"":
        new = re.sub(rf"(?<![\w.]){layer}(?!\w)", spelling, edit.new)
    return replace(edit, new=new)
