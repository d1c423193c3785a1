"""What one Python file defines and imports, read once with Python's own parser."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, cast

from normport.codemods.nodes import (
    BINDERS,
    SCOPES,
    Kinds,
    bound_names,
    imported_names,
    index,
    walk,
)

N = TypeVar("N", bound=ast.AST)

ALIASED = ("sqrt", "rsqrt", "pow", "mean")
"""Functions whose names tell what is looked at, so that other names for them do not."""


@dataclass
class ModuleInfo:
    """Names bound at the top level of a file, and an index of its nodes made when asked for."""

    tree: ast.Module
    text: str
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    families: dict[ast.AST, set[ast.AST]] = field(default_factory=dict)
    """Each class that was asked for, with its relatives in the file; see ``uses.family``."""

    held: dict[tuple[frozenset[str] | None, ast.expr, int], bool] = field(default_factory=dict)
    """What was asked of ``instances``, with the answers; a file with many norms asks much."""

    stored: dict[str, list[tuple[ast.Attribute, ast.expr]]] = field(default_factory=dict)
    """What is stored in attributes that were asked for; see ``stored.stored_in_attribute``."""

    stores: dict[str, dict[ast.AST | None, list[ast.Name]]] = field(default_factory=dict)
    """Where names that were asked for are stored in, by function; see ``stored.values_of``."""

    calls: dict[ast.AST, list[ast.Call]] = field(default_factory=dict)
    """The calls that may run a function that was asked for; see ``input_dtypes``."""

    not_odd: set[object] = field(default_factory=set)
    """What ``input_dtypes`` found to have the run's dtype."""

    _shadowed: dict[str, set[ast.AST]] = field(default_factory=dict)

    @cached_property
    def _index(self) -> tuple[dict[ast.AST, ast.AST], Kinds]:
        return index(self.tree)

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node's parent, for asking where an expression stands."""
        return self._index[0]

    def each(self, *kinds: type[N]) -> Iterator[N]:
        """The nodes that are of one of ``kinds``, kind by kind, in no order within a kind."""
        for kind in kinds:
            yield from cast(list[N], self._index[1].get(kind, []))

    @cached_property
    def names(self) -> dict[str, list[ast.Name]]:
        """Every Name node by its name, in no order."""
        found: defaultdict[str, list[ast.Name]] = defaultdict(list)
        for node in self.each(ast.Name):
            found[node.id].append(node)
        return dict(found)

    @cached_property
    def attributes(self) -> dict[str, list[ast.Attribute]]:
        """Every Attribute node by the attribute's name, in order of position."""
        found: defaultdict[str, list[ast.Attribute]] = defaultdict(list)
        for node in self.each(ast.Attribute):
            found[node.attr].append(node)
        for nodes in found.values():
            if len(nodes) > 1:
                nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        return dict(found)

    @cached_property
    def bindings(self) -> dict[str, int]:
        """How often each name is bound, in whatever scope and way, imports left out.

        A name that is bound once means the same thing wherever it is read.
        """
        found: dict[str, int] = {}
        for node in self._binders:
            # What a class's body binds is an attribute, reached through a dot only.
            if not self._in_class_body(node):
                for name in bound_names(node):
                    found[name] = found.get(name, 0) + 1
        return found

    @cached_property
    def _binders(self) -> list[ast.AST]:
        """The nodes that may bind a name; most names are only read, and left out."""
        names = [node for node in self.each(ast.Name) if node.ctx.__class__ is not ast.Load]
        return [*names, *self.each(*(kind for kind in BINDERS if kind is not ast.Name))]

    def _in_class_body(self, node: ast.AST) -> bool:
        """Whether the innermost function, class or module around ``node`` is a class."""
        return isinstance(self.enclosing(node, *SCOPES), ast.ClassDef)

    def means_one_thing(self, name: str) -> bool:
        """Whether ``name`` is bound once, or only ever imported from one place."""
        bound, imported = self.bindings.get(name, 0), self._imported.get(name, set())
        return bound + len(imported) == 1 and not self._star_imports

    @cached_property
    def _star_imports(self) -> bool:
        return "*" in self._imported

    @cached_property
    def _imported(self) -> dict[str, set[str]]:
        """Local name -> every full name that it is imported from, somewhere in the file."""
        found: dict[str, set[str]] = {}
        for node in (*self.each(ast.Import), *self.each(ast.ImportFrom)):
            for local, full in imported_names(node):
                found.setdefault(local, set()).add(full)
        return found

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> full dotted name (``nn`` -> ``torch.nn``), wherever it is imported;
        relative imports keep their leading dots. A name with two meanings is left out."""
        return {
            local: next(iter(full))
            for local, full in self._imported.items()
            if len(full) == 1 and local not in self.bindings
        }

    def imported_with_fallback(self, name: str) -> str | None:
        """What ``name`` is where its import succeeds, for ``try: import x``, ``except: x = None``;
        None for a name that is imported otherwise."""
        full = self._imported.get(name, set())
        tried = any(
            isinstance(node, ast.Import | ast.ImportFrom)
            and isinstance(self.parents[node], ast.Try)
            and name in (alias.asname or alias.name for alias in node.names)
            for node in (self.parents if full else ())
        )
        return next(iter(full)) if tried and len(full) == 1 else None

    def ever_imported(self, name: str) -> str | None:
        """What ``name`` is imported from somewhere in the file, if all its imports agree; it may
        well mean something else where it is read."""
        full = self._imported.get(name, set())
        return next(iter(full)) if len(full) == 1 else None

    @cached_property
    def strings(self) -> dict[str, list[ast.Constant]]:
        """Every string constant by its value."""
        found: dict[str, list[ast.Constant]] = {}
        for node in self.each(ast.Constant):
            if isinstance(node.value, str):
                found.setdefault(node.value, []).append(node)
        return found

    @cached_property
    def annotated(self) -> set[ast.AST]:
        """Every node inside an annotation."""
        roots = [node.annotation for node in self.each(ast.AnnAssign)]
        roots += [node.annotation for node in self.each(ast.arg) if node.annotation]
        for function in (*self.each(ast.FunctionDef), *self.each(ast.AsyncFunctionDef)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.returns:
                roots.append(function.returns)
        return {node for root in roots for node in walk(root)}

    @cached_property
    def postpones_annotations(self) -> bool:
        """Whether annotations are kept as text, so that nothing in them is evaluated."""
        return any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in self.tree.body
        )

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note a top-level assignment."""
        if isinstance(target, ast.Name):
            self.constants[target.id] = value

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The innermost node of one of ``kinds`` that contains ``node``."""
        above = self.parents.get
        current = above(node)
        while current is not None and not isinstance(current, kinds):
            current = above(current)
        return current

    @cached_property
    def lines(self) -> list[bytes]:
        """Lines with their ends, as UTF-8, split only where Python ends a line."""
        return self.text.encode().splitlines(keepends=True)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The source text of ``node``, exactly as it stands in the file."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last:
            return self.lines[first][node.col_offset : node.end_col_offset].decode()
        middle = self.lines[first + 1 : last]
        return b"".join(
            [
                self.lines[first][node.col_offset :],
                *middle,
                self.lines[last][: node.end_col_offset],
            ]
        ).decode()

    def column(self, node: ast.expr | ast.stmt) -> int:
        """The column of ``node``'s start in code points, from 1."""
        return len(self.lines[node.lineno - 1][: node.col_offset].decode()) + 1

    def imported(self, node: ast.Name) -> str | None:
        """The full dotted name that an imported name stands for where ``node`` reads it."""
        return self.imports.get(node.id) or self._beside_shadows(node)

    def _beside_shadows(self, node: ast.Name) -> str | None:
        """What an imported name stands for that functions elsewhere have for something else, as
        ``F`` in ``B, F = x.shape``."""
        full = self.ever_imported(node.id)
        if full is None or node.id not in self.bindings or node not in self.parents:
            return None
        if node.id not in self._shadowed:
            self._shadowed[node.id] = self._shadows(node.id)
        shadows = self._shadowed[node.id]
        outer: ast.AST | None = node
        while outer is not None and outer not in shadows:
            outer = self.parents.get(outer)
        return full if outer is None else None

    def _shadows(self, name: str) -> set[ast.AST]:
        """The functions that bind a name, or the module where the file itself does."""
        found: set[ast.AST] = set()
        for node in self._binders:
            if name in bound_names(node) and not self._in_class_body(node):
                shared = isinstance(node, ast.Global | ast.Nonlocal)
                where = None if shared else self.enclosing(node, *SCOPES)
                found.add(where or self.tree)
        return found

    @cached_property
    def _aliases(self) -> re.Pattern[str] | None:
        """Other names that the file imports a root or a mean by."""
        if not any(f"{name} as " in self.text for name in ALIASED):
            return None
        found = [
            local
            for local, full in self.imports.items()
            if full.startswith("torch.") and full.rsplit(".", 1)[1] in ALIASED
        ]
        return re.compile(rf"\b(?:{'|'.join(map(re.escape, found))})\b") if found else None

    def respelled(self, text: str) -> str:
        """``text`` of the file, for looks at it: a root or a mean by another name as itself."""
        if self._aliases is None:
            return text
        full = self.imports
        return self._aliases.sub(lambda match: full[match[0]].rsplit(".", 1)[1], text)

    def qualified(self, node: ast.expr) -> str | None:
        """The dotted name of ``node`` with imports resolved, e.g. ``nn.Module`` ->
        ``torch.nn.Module``; None when it is not a plain dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self.imported(node) or node.id
        return ".".join([root, *reversed(parts)])


def read_module(text: str) -> ModuleInfo:
    """Parse ``text``; raises SyntaxError as Python does."""
    return module_of(ast.parse(text), text)


def module_of(tree: ast.Module, text: str) -> ModuleInfo:
    """What there is to ask of a file that was parsed. text: what ``tree`` was read from."""
    info = ModuleInfo(tree=tree, text=text)
    for statement in info.tree.body:
        if isinstance(statement, ast.FunctionDef):
            info.functions[statement.name] = statement
        elif isinstance(statement, ast.ClassDef):
            info.classes[statement.name] = statement
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            info.bind(statement.targets[0], statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            info.bind(statement.target, statement.value)
    return info


def stored_names(node: ast.AST) -> set[str]:
    """Names that ``node`` assigns to, at any depth."""
    return {n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
