"""What a file's top-level imports bind already, and whether a new one would clash with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import libcst as cst

from normport.codemods import ordering
from normport.codemods.model import RefusedEdit
from normport.codemods.parsed import Parsed, TopLevel, bound_name


def missing_imports(
    parsed: Parsed, wanted: Mapping[str, Sequence[str]], removed: frozenset[str], first: int
) -> dict[str, list[str]]:
    """What is wanted and not imported at the top level yet, in the plan's form.

    first: where in the text the names are first needed; an import below that comes too late.

    Raises RefusedEdit where a name is bound to something else in the module; ``removed``
    definitions do not count.
    """
    missing: dict[str, list[str]] = {}
    early = [top for top in parsed.top if top.span.start < first]
    for module, names in wanted.items():
        for name in names or (module.split(".")[0],):
            _check_free(parsed, module, name, bool(names), removed)
        if not names:
            if not any(_imports_module(top, module) for top in early):
                missing[module] = []
            continue
        absent = [
            name for name in names if not any(_imports_name(top, module, name) for top in early)
        ]
        if absent:
            missing[module] = sorted(set(absent), key=ordering.name_key)
    if missing:
        _refuse_star(parsed)
    return missing


def _imports_module(top: TopLevel, module: str) -> bool:
    """``import module`` or, as it binds the same, ``import module.part``."""
    return isinstance(top.imports, cst.Import) and any(
        alias.asname is None and f"{alias.evaluated_name}.".startswith(f"{module}.")
        for alias in top.imports.names
    )


def _imports_name(top: TopLevel, module: str, name: str) -> bool:
    node = top.imports
    return is_from(node, module) and any(
        alias.evaluated_name == name == bound_name(alias) for alias in aliases_of(node)
    )


def is_from(node: cst.CSTNode | None, module: str) -> bool:
    return (
        isinstance(node, cst.ImportFrom)
        and not node.relative
        and ordering.module_name(node) == module
    )


def aliases_of(node: cst.CSTNode | None) -> Sequence[cst.ImportAlias]:
    if isinstance(node, cst.ImportFrom | cst.Import) and not isinstance(node.names, cst.ImportStar):
        return node.names
    return ()


def _check_free(
    parsed: Parsed, module: str, name: str, from_import: bool, removed: frozenset[str]
) -> None:
    for node in parsed.namespace.bindings(name):
        if isinstance(node, ast.ImportFrom) and from_import:
            absolute = not node.level and node.module == module
            if absolute and any(alias.name == name == _bound(alias) for alias in node.names):
                continue
        elif isinstance(node, ast.Import) and not from_import:
            if all(alias.asname is None for alias in node.names if _bound(alias) == name):
                continue
        elif isinstance(node, ast.ClassDef | ast.FunctionDef) and name in removed:
            continue
        raise RefusedEdit(
            f"line {getattr(node, 'lineno', 0)}: the module binds {name!r} itself, so importing it "
            f"from {module} would change what that name means; rename it or convert by hand."
        )


def _bound(alias: ast.alias) -> str:
    return (alias.asname or alias.name).split(".")[0]


def _refuse_star(parsed: Parsed) -> None:
    for top in parsed.top:
        if isinstance(top.imports, cst.ImportFrom) and isinstance(
            top.imports.names, cst.ImportStar
        ):
            raise RefusedEdit(
                f"line {top.first + 1}: `import *` may bind any name, so no import can be added "
                "safely; replace it by the names it is there for."
            )


def statement_to_join(parsed: Parsed, module: str, staying: Sequence[TopLevel]) -> TopLevel | None:
    """The statement that imports plain names from the module already.

    isort keeps ``import x as y`` in statements of their own, so a name does not join these.
    """
    for top in staying:
        if is_from(top.imports, module) and any(
            alias.asname is None for alias in aliases_of(top.imports)
        ):
            return top
    return None
