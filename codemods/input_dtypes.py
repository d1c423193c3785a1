"""Whether the input of a norm may have another dtype than the run's.

A local norm that multiplies in its input's dtype is RMSNorm only where that is the weight's.
Nothing is known of the dtypes of a model's tensors, so what is looked for is code that makes one
of another dtype, in all that flows into the norm within the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from normport.codemods.instances import built_from
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk
from normport.codemods.stored import FUNCTIONS, parameter, stored_in_attribute, values_before
from normport.codemods.uses import Binding, attribute_calls, family, site_calls

_PLAIN_CASTS = frozenset({"float", "double", "half", "bfloat16", "int", "long", "bool"})
_DTYPES = frozenset(
    {*_PLAIN_CASTS, "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
)
# Outside of a constructor torch's default dtype is float32, whatever the run's is.
_FACTORIES = frozenset({"zeros", "ones", "empty", "full", "rand", "randn", "eye", "linspace"})
_NO_DATA = frozenset({"shape", "ndim", "device", "dtype", "training", "config"})
_NO_TENSORS = frozenset({"size", "dim", "numel", "stride", "is_contiguous", "element_size"})


def converted_input(module: ModuleInfo, bound: Binding) -> int | None:
    """The line of a call of the norm whose input may have been converted, or None."""
    calls = attribute_calls(module, bound)
    if bound.kind == "sequence":
        calls += site_calls(module, bound)
    flow = _Flow(module)
    for call in calls:
        given = [*call.args[:1], *(keyword.value for keyword in call.keywords)]
        if any(flow.odd(argument) for argument in given):
            return call.lineno
        if bound.kind == "sequence" and flow.odd(call.func):
            return call.lineno
    module.not_odd |= flow.seen
    return None


class _Flow:
    """Follows expressions back to what they are made of, each once.

    seen: what was asked for. None of it is odd as long as no answer was that something is.
    """

    def __init__(self, module: ModuleInfo) -> None:
        self.module = module
        self.seen: set[object] = set(module.not_odd)

    def odd(self, node: ast.expr) -> bool:
        """Whether the expression's dtype may be another than the run's."""
        if node in self.seen:
            return False
        self.seen.add(node)
        match node:
            case ast.Constant() | ast.Lambda() | ast.Compare() | ast.JoinedStr():
                return False
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self.odd(node.value)
            case ast.Call():
                return self._call(node)
            case ast.IfExp():
                return self.odd(node.body) or self.odd(node.orelse)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.odd(node.elt)
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return any(self.odd(part) for part in parts)

    def _name(self, node: ast.Name) -> bool:
        if any(self.odd(value) for value in values_before(self.module, node)):
            return True
        scope: ast.AST | None = node
        while scope is not None:
            scope = self.module.enclosing(scope, *FUNCTIONS)
            if scope is not None and parameter(scope, node.id) is not None:
                return self._parameter(scope, node.id)
        return False

    def _attribute(self, node: ast.Attribute) -> bool:
        if self.module.qualified(node.value) == "torch":
            return node.attr in _DTYPES
        if node.attr in _NO_DATA:
            return False
        if node.attr in ("data", "mT", "T", "H", "mH", "grad"):
            return self.odd(node.value)
        return any(self.odd(value) for value in self._held(node))

    def _held(self, node: ast.Attribute) -> Iterator[ast.expr]:
        """What the file stores in an attribute; of ``self``, in its class and its relatives."""
        own: set[ast.AST] | None = None
        owner = self.module.enclosing(node, ast.ClassDef)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            own = family(self.module, owner) if isinstance(owner, ast.ClassDef) else None
        for store, value in stored_in_attribute(self.module, node.attr):
            if own is None or self.module.enclosing(store, ast.ClassDef) in own:
                yield value
        for text in self.module.strings.get(node.attr, []):
            call = self.module.parents[text]
            if isinstance(call, ast.Call) and _word(call.func).startswith("register_"):
                yield from call.args[1:]

    # Calls

    def _call(self, call: ast.Call) -> bool:
        function = call.func
        name = _word(function)
        if isinstance(function, ast.Attribute):
            if name in _NO_TENSORS:
                return False
            if name in _PLAIN_CASTS and not call.args:
                return True
            if name in ("to", "type", "type_as"):
                return self._cast(call, function)
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg.endswith("dtype"):
                if self._other_dtype(keyword.value):
                    return True
            elif self.odd(keyword.value):
                return True
        if any(self.odd(argument) for argument in call.args):
            return True
        if (self.module.qualified(function) or "").startswith("torch.") and name in _FACTORIES:
            init = self.module.enclosing(call, *FUNCTIONS)
            stated = any(keyword.arg == "dtype" for keyword in call.keywords)
            return not stated and getattr(init, "name", "") != "__init__"
        if any(self._gives(made) for made in self._functions(function)):
            return True
        return not isinstance(function, ast.Name) and self.odd(function)

    def _cast(self, call: ast.Call, function: ast.Attribute) -> bool:
        """Whether ``x.to(...)`` gives another dtype: that of a tensor is as odd as the tensor."""
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("dtype", "other"))]
        if function.attr == "type_as":
            return any(self.odd(tensor) for tensor in given)
        dtypes = [one for one in given if not _is_device(one)] + call.args[1:2]
        if not dtypes:
            return self.odd(function.value)
        # A dtype that is kept somewhere need not be the one that this norm's weight has.
        kept = [
            text for text in map(ast.unparse, dtypes) if text == "self.dtype" or "config" in text
        ]
        return bool(kept) or any(self._other_dtype(one) for one in dtypes)

    def _other_dtype(self, node: ast.expr, steps: int = 4) -> bool:
        """Whether a dtype may be another than the run's: it is unless it is that of a tensor."""
        if isinstance(node, ast.Constant) and node.value is None:
            return False
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            return self.odd(node.value)
        if isinstance(node, ast.Name) and steps:
            values = list(values_before(self.module, node))
            if values:
                return any(self._other_dtype(value, steps - 1) for value in values)
        return True

    def _functions(self, function: ast.expr) -> Iterator[ast.AST]:
        """The functions and methods of the file that a call may run."""
        module = self.module
        if isinstance(function, ast.Name) and function.id in module.functions:
            yield module.functions[function.id]
            return
        name = _word(function)
        for node in module.each(ast.ClassDef):
            for method in node.body:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if (isinstance(function, ast.Attribute) and method.name == name) or (
                    method.name in ("forward", "__call__")
                    and built_from(module, function, frozenset({node.name}))
                ):
                    yield method

    def _gives(self, function: ast.AST) -> bool:
        returns = [n.value for n in walk(function) if isinstance(n, ast.Return | ast.Yield)]
        return any(self.odd(value) for value in returns if value is not None)

    def _parameter(self, function: ast.AST, name: str) -> bool:
        """Whether any call in the file passes something odd for the parameter."""
        if (function, name) in self.seen or isinstance(function, ast.Lambda):
            return False
        self.seen.add((function, name))
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        method = isinstance(self.module.parents[function], ast.ClassDef)
        return any(
            self.odd(value)
            for call in self._calls(function)
            for value in _passed(function, name, call, method)
        )

    def _calls(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Call]:
        """The calls in the file that may run the function."""
        module, name = self.module, function.name
        if function in module.calls:
            return module.calls[function]
        owner = module.parents[function]
        calls = list(module.each(ast.Call))
        if not isinstance(owner, ast.ClassDef):
            found = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == name]
        elif name in ("forward", "__call__"):
            classes = (node for node in family(module, owner) if isinstance(node, ast.ClassDef))
            names = frozenset(node.name for node in classes)
            found = [
                c for c in calls if _is_attribute(c.func, name) or built_from(module, c.func, names)
            ]
        else:
            found = [c for c in calls if _is_attribute(c.func, name)]
        module.calls[function] = found
        return found


def _passed(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, call: ast.Call, method: bool
) -> list[ast.expr]:
    """What a call may pass for a parameter."""
    named = [k.value for k in call.keywords if k.arg == name]
    spread = [k.value for k in call.keywords if k.arg is None]
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if method and names and names[0] in ("self", "cls"):
        names = names[1:]
    if name not in names or any(isinstance(argument, ast.Starred) for argument in call.args):
        return named or [*call.args, *spread]
    place = names.index(name)
    return named or [*call.args[place : place + 1], *spread]


def _is_attribute(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _is_device(node: ast.expr) -> bool:
    return "device" in _word(node).lower() or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _word(node: ast.expr) -> str:
    """The last name of ``a.b.c``, or of what is called or indexed there."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
