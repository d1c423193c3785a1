"""Infers the size of the dimension that a weightless norm normalises.

The size is read from the data that flows into every call of the norm: a reshape, a split into
stated sizes, the output size of the layer that produced it, an embedding. It must come out as
one and the same expression at every call, and that expression must mean the same thing where
the norm is constructed.
"""

from __future__ import annotations

import ast

from normport.codemods.layer_sizes import Homes, output_size
from normport.codemods.module_info import ModuleInfo, stored_names
from normport.codemods.nodes import spelled, walk
from normport.codemods.scopes import ConstructorScope, parameters

_SAME_SIZE = {
    "contiguous", "clone", "detach", "to", "float", "half", "bfloat16", "type", "type_as",
    "add", "sub", "mul", "div", "abs", "neg", "relu", "sigmoid", "tanh", "exp",
}  # fmt: skip
_ELEMENTWISE = {"gelu", "silu", "relu", "sigmoid", "tanh", "relu2", "mish", "softplus"}


Env = dict[str, str | None]


class SizeInference:
    """Sizes inside one class.

    module: the file. node: the class that constructs the norm. init: its ``__init__``.
    homes: norm classes of other files, by the names under which this one imports them.
    """

    def __init__(
        self,
        module: ModuleInfo,
        node: ast.ClassDef,
        init: ast.FunctionDef,
        homes: Homes | None = None,
    ) -> None:
        self.homes = homes or {}
        self.module = module
        self.node = node
        self.init = init
        self.scope = ConstructorScope(module, node, init)
        self._found: list[str | None] = []
        self._attribute = ""
        self._local: set[str] = set()
        self._unsteady: set[str] = set()

    def infer(self, attribute: str, site: ast.expr) -> tuple[str | None, str]:
        """The size expression for ``self.attribute`` built at ``site``, or None and why not."""
        self._attribute = attribute
        self._found = []
        self._nested(self.init)
        for method in self.node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method != self.init:
                self._local = stored_names(method) | parameters(method)
                self._unsteady = _bound_oddly(method)
                self._block(method.body, {})
        if not self._found:
            return None, f"no call of self.{attribute} is seen in {self.node.name}"
        sizes = {size for size in self._found if size is not None}
        if None in self._found or len(sizes) != 1:
            return None, (
                f"the size of what flows into self.{attribute} is not known"
                if len(sizes) < 2
                else f"self.{attribute} is called with different sizes: {', '.join(sorted(sizes))}"
            )
        size = sizes.pop()
        resolved = self.scope.at_site(size, site)
        if resolved is None:
            return None, f"the size `{size}` is not available where self.{attribute} is built"
        return resolved, ""

    # Walking a method in order

    def _block(self, body: list[ast.stmt], env: Env) -> None:
        for statement in body:
            self._statement(statement, env)

    def _statement(self, node: ast.stmt, env: Env) -> None:
        match node:
            case ast.Assign():
                self._visit(node.value, env)
                for target in node.targets:
                    self._bind(target, node.value, env)
            case ast.AnnAssign():
                if node.value is not None:
                    self._visit(node.value, env)
                    self._bind(node.target, node.value, env)
            case ast.AugAssign():
                self._visit(node.value, env)
                if isinstance(node.target, ast.Name):
                    env[node.target.id] = self._size(
                        ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value), env
                    )
            case ast.If():
                self._visit(node.test, env)
                branches = []
                for body in (node.body, node.orelse):
                    inner = dict(env)
                    self._block(body, inner)
                    if not (body and isinstance(body[-1], ast.Return | ast.Raise)):
                        branches.append(inner)
                names = {name for branch in branches for name in branch}
                for name in names:
                    sizes = {branch.get(name) for branch in branches}
                    env[name] = sizes.pop() if len(sizes) == 1 else None
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef() | ast.Match():
                self._nested(node)
                for name in stored_names(node):
                    env[name] = None
            case ast.Expr(value=ast.Call(func=ast.Attribute() as function)):
                self._visit(node.value, env)
                changed = function.value
                if function.attr.endswith("_") and isinstance(changed, ast.Name):
                    env[changed.id] = None
            case _:
                for name in stored_names(node):
                    env[name] = None
                bodies = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
                for handler in getattr(node, "handlers", []):
                    bodies.append(handler.body)
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._visit(child, env)
                    elif isinstance(child, ast.withitem):
                        self._visit(child.context_expr, env)
                for body in bodies:
                    self._block(body, env)
                if bodies != [[], [], []]:
                    for name in stored_names(node):
                        env[name] = None

    def _nested(self, node: ast.AST) -> None:
        """A nested function sees unknown sizes: its calls of the norm count as unknown."""
        for inner in walk(node):
            if self._is_norm_call(inner):
                self._found.append(None)

    def _visit(self, expression: ast.expr, env: Env) -> None:
        """Note the size that flows into each call of the norm inside ``expression``."""
        for inner in walk(expression):
            if self._is_norm_call(inner):
                assert isinstance(inner, ast.Call)
                in_scope = self.module.enclosing(
                    inner, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp
                )
                known = in_scope is None and bool(inner.args)
                self._found.append(self._size(inner.args[0], env) if known else None)

    def _is_norm_call(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == self._attribute
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "self"
        )

    def _bind(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self._size(value, env)
        elif isinstance(target, ast.Tuple | ast.List):
            sizes = self._sizes(value, env, len(target.elts))
            for element, size in zip(target.elts, sizes, strict=True):
                if isinstance(element, ast.Name):
                    env[element.id] = size

    # Sizes of expressions

    def _sizes(self, value: ast.expr, env: Env, count: int) -> list[str | None]:
        """Sizes of the items that ``value`` unpacks into."""
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
            return [self._size(element, env) for element in value.elts]
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr == "split" and value.args:
                dims = [*value.args[1:2], *(k.value for k in value.keywords if k.arg == "dim")]
                parts = value.args[0]
                last = len(dims) == 1 and spelled(dims[0]) == "-1"
                if last and isinstance(parts, ast.List | ast.Tuple) and len(parts.elts) == count:
                    return [self._method_text(part) for part in parts.elts]
            layer = self._layer_call(value, env)
            if layer is not None and layer[1]:
                return [layer[0], *[None] * (count - 1)]
        return [None] * count

    def _size(self, node: ast.expr, env: Env) -> str | None:
        match node:
            case ast.Name():
                return None if node.id in self._unsteady else env.get(node.id)
            case ast.Call():
                return self._call_size(node, env)
            case ast.BinOp():
                left, right = self._size(node.left, env), self._size(node.right, env)
                if isinstance(node.right, ast.Constant):
                    return left
                if isinstance(node.left, ast.Constant):
                    return right
                return left if left == right else None
            case ast.IfExp():
                left, right = self._size(node.body, env), self._size(node.orelse, env)
                return left if left == right else None
            case _:
                return None

    def _call_size(self, node: ast.Call, env: Env) -> str | None:
        layer = self._layer_call(node, env)
        if layer is not None:
            return None if layer[1] else layer[0]
        if not isinstance(node.func, ast.Attribute):
            return None
        name = node.func.attr
        owner = self.module.qualified(node.func.value) or ""
        if owner.split(".")[0] == "torch" and node.args:
            return self._size(node.args[0], env) if name in _ELEMENTWISE else None
        if self._is_norm_attribute(node.func):
            return self._size(node.args[0], env) if len(node.args) == 1 else None
        if owner == "self" or owner.startswith("self."):
            return None
        if name in ("reshape", "view") and node.args:
            last = node.args[-1]
            if len(node.args) == 1 and isinstance(last, ast.Tuple | ast.List) and last.elts:
                last = last.elts[-1]
            elif len(node.args) == 1:
                return None
            return self._method_text(last)
        if name == "unflatten" and len(node.args) == 2 and spelled(node.args[0]) == "-1":
            sizes = node.args[1]
            if isinstance(sizes, ast.Tuple | ast.List) and sizes.elts:
                return self._method_text(sizes.elts[-1])
        if name in _SAME_SIZE and name not in ("add", "sub", "mul", "div"):
            return self._size(node.func.value, env)
        return None

    def _method_text(self, node: ast.expr) -> str | None:
        """``node`` of a method's scope as text that means the same in the constructor."""
        hidden = self._local | stored_names(self.init) | parameters(self.init)
        for part in walk(node):
            if isinstance(part, ast.Name) and part.id != "self" and part.id in hidden:
                return None
        return _text(node)

    def _is_norm_attribute(self, func: ast.Attribute) -> bool:
        return (
            isinstance(func.value, ast.Name)
            and func.value.id == "self"
            and func.attr == self._attribute
        )

    def _layer_call(self, node: ast.Call, env: Env) -> tuple[str | None, bool] | None:
        """``(output size, returns a pair)`` when ``node`` calls a layer that the class built."""
        func = node.func
        if not (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and func.value.id == "self"
            and func.attr != self._attribute
        ):
            return None
        built = [
            value
            for value in self.scope.assigned(func.attr)
            if not (isinstance(value, ast.Constant) and value.value is None)
        ]
        if len(built) != 1 or not isinstance(built[0], ast.Call):
            return None
        if self.module.enclosing(built[0], ast.FunctionDef, ast.Lambda) is not self.init:
            return None  # its arguments are another scope's names
        found = output_size(self.module, built[0], self.homes)
        if found is None:
            return None
        if found.same_as_input:
            single = len(node.args) == 1 and not node.keywords
            return (self._size(node.args[0], env) if single else None), False
        return (_text(found.size) if found.size is not None else None), found.pair


def _text(node: ast.expr) -> str | None:
    text = spelled(node)
    return None if text == "-1" or isinstance(node, ast.Starred) else text


def _bound_oddly(node: ast.AST) -> set[str]:
    """Names that an expression or a nested function may bind behind a statement's back."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, ast.NamedExpr) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, ast.Global | ast.Nonlocal):
            found.update(part.names)
    return found
