"""Which expressions are seen to be modules that are built from classes of the file."""

from __future__ import annotations

import ast

from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.stored import FUNCTIONS, parameter, stored_in_attribute, values_of

# Methods of a module that give the module itself.
_CHAINED = frozenset(
    {
        *("half", "bfloat16", "float", "double", "to", "type", "cuda", "cpu", "xpu", "to_empty"),
        *("eval", "train", "requires_grad_", "apply", "items", "values"),
    }
)
_WALKS = frozenset({"modules", "named_modules", "children", "named_children", "get_submodule"})
_PASSED_ON = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "next", "iter", "cast"})
_NO_MODULES = frozenset(
    {"NamedTuple", "TypedDict", "Protocol", "ABC", "Enum", "IntEnum", "StrEnum", "TensorSchema"}
)
_STEPS = 6
"""How many variables, attributes and functions are followed."""


def is_module(module: ModuleInfo, node: ast.expr) -> bool:
    """Whether ``node`` is seen to be a module that may hold what this file defines: built from
    a class of the file, however it is passed on."""
    return _Instances(module, None).holds(node, _STEPS)


def built_from(module: ModuleInfo, node: ast.expr, names: frozenset[str]) -> bool:
    """Whether ``node`` is seen to be, or to come from among, instances of classes of ``names``."""
    return _Instances(module, names).holds(node, _STEPS)


class _Instances:
    """names: of the classes that count; None: of all that may be modules."""

    def __init__(self, module: ModuleInfo, names: frozenset[str] | None) -> None:
        self.module = module
        self.names = names

    def holds(self, node: ast.expr | None, steps: int) -> bool:
        if not steps or node is None:
            return False
        key = self.names, node, steps
        if key not in self.module.held:
            self.module.held[key] = self._holds(node, steps)
        return self.module.held[key]

    def _holds(self, node: ast.expr, steps: int) -> bool:
        match node:
            case ast.Name():
                return self._name(node, steps - 1)
            case ast.Attribute():
                values = [value for _, value in stored_in_attribute(self.module, node.attr)]
                return self._any(values, steps - 1)
            case ast.Call():
                return self._call(node, steps - 1)
            case ast.Subscript() | ast.Starred() | ast.NamedExpr() | ast.Await():
                return self.holds(node.value, steps)
            case ast.IfExp():
                return self._any([node.body, node.orelse], steps)
            case ast.BoolOp() | ast.Dict():
                return self._any(node.values, steps)
            case ast.List() | ast.Tuple():
                return self._any(node.elts, steps)
            case ast.ListComp() | ast.GeneratorExp():
                return self.holds(node.elt, steps)
            case ast.DictComp():
                return self.holds(node.value, steps)
        return False

    def _any(self, nodes: list[ast.expr], steps: int) -> bool:
        return any(self.holds(node, steps) for node in nodes)

    def _name(self, node: ast.Name, steps: int) -> bool:
        if node.id == "self":
            owner = self.module.enclosing(node, ast.ClassDef)
            return isinstance(owner, ast.ClassDef) and self._counts(owner)
        if self._any(list(values_of(self.module, node)), steps):
            return True
        scope = self.module.enclosing(node, *FUNCTIONS)
        declared = parameter(scope, node.id) if scope is not None else None
        if declared is None or scope is None:
            return False
        return self._is_type(declared.annotation) or self._is_applied(scope)

    def _call(self, call: ast.Call, steps: int) -> bool:
        function = call.func
        if isinstance(function, ast.Attribute):
            if function.attr in _WALKS:
                return True
            if function.attr in _CHAINED:
                return self.holds(function.value, steps)
            name = function.attr
        elif isinstance(function, ast.Name):
            name = function.id
            if name == "super":
                return self.names is None
            classes = [n for n in self.module.each(ast.ClassDef) if n.name == name]
            if classes:
                return any(self._counts(node) for node in classes)
            made = self.module.functions.get(name)
            if made is not None:
                returns = [n.value for n in walk(made) if isinstance(n, ast.Return) and n.value]
                return self._any(returns, steps)
        else:
            return False  # what a call gives is called: that runs a module
        # A container, or a function that hands on what it is given.
        handed = name[:1].isupper() or name in _PASSED_ON
        return handed and self._any([*call.args, *(k.value for k in call.keywords)], steps)

    def _counts(self, node: ast.ClassDef) -> bool:
        """Whether the class is one that counts: one with a base that is no plain type."""
        if self.names is not None:
            return node.name in self.names
        bases = {_last_word(base) for base in node.bases}
        return bool(bases - _NO_MODULES) and not any(
            "dataclass" in spelled(decorator) for decorator in node.decorator_list
        )

    def _is_type(self, annotation: ast.expr | None) -> bool:
        for part in walk(annotation) if annotation is not None else ():
            if isinstance(part, ast.Name | ast.Attribute):
                if self.module.qualified(part) == "torch.nn.Module" and self.names is None:
                    return True
                name = _last_word(part)
                if any(n.name == name and self._counts(n) for n in self.module.each(ast.ClassDef)):
                    return True
        return False

    def _is_applied(self, function: ast.AST) -> bool:
        """Whether a function is given to ``apply``, which calls it with every module."""
        for attribute in self.module.attributes.get("apply", []):
            call = self.module.parents[attribute]
            given = call.args if isinstance(call, ast.Call) and call.func is attribute else []
            if function in given:
                return True
            if any(_last_word(one) == getattr(function, "name", None) for one in given):
                return True
        return False


def _last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
