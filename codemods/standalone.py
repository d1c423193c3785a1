"""Cuts a norm class out of its file so that it runs with nothing but torch installed."""

from __future__ import annotations

import ast
import copy

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk

_ALLOWED = {
    "torch", "math", "typing", "collections", "functools", "dataclasses", "abc", "enum",
    "numbers", "operator", "itertools", "typing_extensions",
}  # fmt: skip


class NotStandalone(Exception):
    """The class needs something that is not torch or its own file; the message names it."""


def standalone(module: ModuleInfo, name: str) -> str:
    """Source of a module with the class ``name`` and what it needs from its own file.

    ``torch.compile`` decorators are left out: they say how code runs, not what it computes.
    Raises NotStandalone.
    """
    wanted: dict[str, ast.stmt] = {}
    imports: dict[str, str] = {}
    _collect(module, name, wanted, imports)
    lines = ["from __future__ import annotations"]
    for local, full in sorted(imports.items()):
        parent, _, leaf = full.rpartition(".")
        if not parent:
            lines.append(f"import {full}" if full == local else f"import {full} as {local}")
        else:
            lines.append(f"from {parent} import {leaf} as {local}")
    order = sorted(wanted.values(), key=lambda statement: statement.lineno)
    body = [ast.unparse(_without_compile(statement)) for statement in order]
    return "\n".join([*lines, *body, ""])


def _collect(
    module: ModuleInfo, name: str, wanted: dict[str, ast.stmt], imports: dict[str, str]
) -> None:
    if name in wanted:
        return
    if not module.means_one_thing(name):
        raise NotStandalone(f"it uses `{name}`, which is bound more than once")
    node: ast.stmt
    if name in module.classes:
        node = module.classes[name]
    elif name in module.functions:
        node = module.functions[name]
    else:
        parent = module.parents[module.constants[name]]
        assert isinstance(parent, ast.stmt)
        node = parent
    wanted[name] = node
    for used in sorted(_loaded(_without_compile(node))):
        if used in module.classes or used in module.functions or used in module.constants:
            _collect(module, used, wanted, imports)
        elif (full := module.imports.get(used) or module.ever_imported(used)) is not None:
            if full.split(".")[0] not in _ALLOWED:
                raise NotStandalone(f"it uses `{used}` from {full}")
            imports[used] = full


def _loaded(node: ast.AST) -> set[str]:
    """Names that running ``node`` reads; annotations are not evaluated."""
    found: set[str] = set()
    skip: set[ast.AST] = set()
    for part in walk(node):
        annotation: ast.expr | None = None
        if isinstance(part, ast.AnnAssign | ast.arg):
            annotation = part.annotation
        elif isinstance(part, ast.FunctionDef):
            annotation = part.returns
        if annotation is not None:
            skip.update(walk(annotation))
    for part in walk(node):
        if part not in skip and isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            found.add(part.id)
    return found


def _without_compile(node: ast.stmt) -> ast.stmt:
    clean = copy.deepcopy(node)
    for part in walk(clean):
        if isinstance(part, ast.FunctionDef):
            part.decorator_list = [
                d
                for d in part.decorator_list
                if spelled(d).split("(")[0] not in ("torch.compile", "torch.jit.script")
            ]
    return clean
