"""What an expression of a method means where the constructor builds something."""

from __future__ import annotations

import ast
from functools import cached_property

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import expression, walk
from normport.codemods.uses import family


class ConstructorScope:
    """The constructor ``init`` of the class ``node``, and the attributes that the class sets."""

    def __init__(self, module: ModuleInfo, node: ast.ClassDef, init: ast.FunctionDef) -> None:
        self.module = module
        self.node = node
        self.init = init

    def assigned(self, attribute: str) -> list[ast.expr]:
        """Everything that the class ever assigns to ``self.attribute``; nothing when the file
        may also set it in another way."""
        if self._set_oddly(attribute):
            return []
        found: list[ast.expr] = []
        for node in walk(self.node):
            targets: list[ast.expr] = []
            value: ast.expr | None = None
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets, value = [node.target], node.value
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and target.attr == attribute
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                    and value is not None
                ):
                    found.append(value)
        return found

    def _set_oddly(self, attribute: str) -> bool:
        """Whether the attribute is set otherwise than by a plain ``self.attribute = value`` of
        this class: unpacked, deleted, set from outside, by a relative or through setattr."""
        for node in self.module.attributes.get(attribute, []):
            if isinstance(node.ctx, ast.Load):
                continue
            owner = self.module.enclosing(node, ast.ClassDef)
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if on_self and owner not in (None, *self._family):
                continue
            plain = isinstance(self.module.parents[node], ast.Assign | ast.AnnAssign)
            if not on_self or owner is not self.node or not plain:
                return True
        return any(isinstance(node, ast.Name) and node.id == "setattr" for node in walk(self.node))

    @cached_property
    def _family(self) -> set[ast.AST]:
        return family(self.module, self.node)

    def at_site(self, size: str, site: ast.expr) -> str | None:
        """``size`` as the constructor can say it at ``site``; None when it cannot."""
        node = expression(size)
        for part in walk(node):
            if isinstance(part, ast.Attribute | ast.Name | ast.Constant | ast.expr_context):
                continue
            if isinstance(part, ast.BinOp | ast.operator):
                continue
            return None
        for part in walk(node):
            if isinstance(part, ast.Name) and part.id != "self" and not self._steady(part.id, site):
                return None
            if isinstance(part, ast.Attribute) and self._changes(part):
                return None
        replaced = self._self_attributes(node, site)
        return ast.unparse(replaced) if replaced is not None else None

    def _changes(self, node: ast.Attribute) -> bool:
        """Whether the file may store another value in an attribute of something else than self
        while the size is in use, as in ``config.size *= 2``."""
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id == "self" and isinstance(node.value, ast.Name):
            return False  # what the class stores there is looked at by itself
        stores = [
            one
            for one in self.module.attributes.get(node.attr, [])
            if not isinstance(one.ctx, ast.Load)
            and not (isinstance(one.value, ast.Name) and one.value.id == "self")
        ]
        return bool(stores) or any(
            isinstance(one, ast.Call)
            and ast.unparse(one.func) == "setattr"
            and ast.unparse(one.args[0]) == ast.unparse(node.value)
            for one in walk(self.init)
        )

    def _self_attributes(self, node: ast.expr, site: ast.expr) -> ast.expr | None:
        """``node`` with each ``self.X`` kept when set before ``site``, else spelled out."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id != "self":
                return node
            values = self.assigned(node.attr)
            if len(values) != 1:
                return None
            if _inside(self.init, values[0]) and values[0].lineno < site.lineno:
                return node if self._unconditional(values[0], site) else None
            text = self.at_site(ast.unparse(values[0]), site)
            return expression(text) if text is not None else None
        for field, child in ast.iter_fields(node):
            if isinstance(child, ast.expr):
                new = self._self_attributes(child, site)
                if new is None:
                    return None
                setattr(node, field, new)
        return node

    def _unconditional(self, value: ast.expr, site: ast.expr) -> bool:
        """Whether every path of the constructor that reaches ``site`` has run ``value``."""
        statement = self.module.enclosing(value, ast.stmt)
        block = self.module.parents.get(statement) if statement is not None else None
        current: ast.AST | None = site
        while current is not None and current is not self.init:
            current = self.module.parents.get(current)
            if current is block:
                return True
        return False

    def _steady(self, name: str, site: ast.expr) -> bool:
        """Whether ``name`` is bound at ``site`` and means there what it means elsewhere."""
        stores = [
            n
            for n in walk(self.init)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        ]
        if name in parameters(self.init):
            return not stores
        if len(stores) == 1:
            return stores[0].lineno < site.lineno and self._unconditional(stores[0], site)
        if stores:
            return False
        return name in self.module.constants or name in self.module.imports


def _inside(outer: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in walk(outer))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names of a function's parameters, ``self`` left out."""
    arguments = node.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {
        "self"
    }
