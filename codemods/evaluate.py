"""Symbolic evaluation of a norm class: its constructor with bound arguments, then its forward.

Only what norm classes use is followed. Everything else becomes ``Unknown`` with a reason, and
an ``Unknown`` that reaches the result makes the class "not understood": the evaluator never
guesses.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from normport.codemods.module_info import ModuleInfo
from normport.codemods.tensor_calls import call_module, call_tensor, promote
from normport.codemods.values import (
    Cast,
    Const,
    DType,
    Factory,
    Function,
    Input,
    Instance,
    Items,
    Module,
    Op,
    SelfRef,
    Source,
    Tensor,
    Unknown,
    Value,
    Weight,
)

MAX_DEPTH = 12
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


class _Return(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


class Evaluator:
    """Evaluates one class of one file.

    module: the file. node: the class. arguments: constructor parameter -> value.
    """

    def __init__(self, module: ModuleInfo, node: ast.ClassDef) -> None:
        self.module = module
        self.node = node
        self.methods = {s.name: s for s in node.body if isinstance(s, ast.FunctionDef)}
        self.instance = Instance()
        self._depth = 0
        self._running = False

    def construct(self, arguments: Mapping[str, Value]) -> Instance:
        """Run ``__init__`` with ``arguments`` bound to its parameters."""
        for statement in self.node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                for target in targets:
                    if isinstance(target, ast.Name):
                        value = self._eval(statement.value, {})
                        self.instance.attributes[target.id] = value
        init = self.methods.get("__init__")
        if init is not None:
            env: dict[str, Value] = {init.args.args[0].arg: SelfRef(), **arguments}
            self._run_function(init, env)
        return self.instance

    def forward(self, positional: int = 1) -> Value:
        """Run ``forward`` with ``positional`` tensors; the other parameters take defaults."""
        node = self.methods.get("forward")
        if node is None:
            return Unknown("it has no forward method")
        parameters = node.args.args[1:]
        if node.args.vararg or positional > len(parameters):
            return Unknown("its forward does not take the arguments it is called with")
        env: dict[str, Value] = {node.args.args[0].arg: SelfRef()}
        defaults = dict(
            zip([p.arg for p in reversed(parameters)], reversed(node.args.defaults), strict=False)
        )
        for position, parameter in enumerate(parameters):
            if position < positional:
                env[parameter.arg] = Input("input", parameter.arg, position)
            elif parameter.arg in defaults:
                env[parameter.arg] = self._eval(defaults[parameter.arg], {})
            else:
                return Unknown("its forward needs more arguments than the calls pass")
        for keyword, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is None:
                return Unknown("its forward needs a keyword that the calls do not pass")
            env[keyword.arg] = self._eval(default, {})
        self._running = True
        return self._run_function(node, env)

    # Statements

    def _run_function(self, node: ast.FunctionDef, env: dict[str, Value]) -> Value:
        if self._depth >= MAX_DEPTH:
            return Unknown(f"{node.name} calls itself or nests too deeply")
        self._depth += 1
        try:
            self._run(node.body, env)
        except _Return as returned:
            return returned.value
        finally:
            self._depth -= 1
        return Const(None)

    def _run(self, body: list[ast.stmt], env: dict[str, Value]) -> None:
        for statement in body:
            self._statement(statement, env)

    def _statement(self, node: ast.stmt, env: dict[str, Value]) -> None:
        match node:
            case ast.Return():
                raise _Return(self._eval(node.value, env) if node.value else Const(None))
            case ast.Assign():
                value = self._eval(node.value, env)
                for target in node.targets:
                    self._assign(target, value, env)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self._eval(node.value, env), env)
            case ast.AugAssign():
                kind = _BINARY.get(type(node.op))
                load = ast.parse(ast.unparse(node.target), mode="eval").body
                left, right = self._eval(load, env), self._eval(node.value, env)
                if kind is None:
                    self._assign(node.target, Unknown("an augmented assignment"), env)
                else:
                    self._assign(node.target, self._binary(kind, left, right), env)
            case ast.If():
                self._branch(node, env)
            case ast.Expr():
                self._effect(node.value, env)
            case ast.Pass() | ast.Assert() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Raise():
                raise _Return(Unknown("it raises"))
            case _:
                kind_name = type(node).__name__.lower()
                self.instance.notes.append(f"a {kind_name} statement in line {node.lineno}")
                for name in _stored(node):
                    env[name] = Unknown(f"a {kind_name} statement in line {node.lineno}")
                if any(isinstance(n, ast.Return) for n in ast.walk(node)):
                    raise _Return(Unknown(f"a {kind_name} statement in line {node.lineno}"))

    def _branch(self, node: ast.If, env: dict[str, Value]) -> None:
        test = truth(self._eval(node.test, env))
        if test is True:
            self._run(node.body, env)
        elif test is False:
            self._run(node.orelse, env)
        else:
            self._both(node, env)

    def _both(self, node: ast.If, env: dict[str, Value]) -> None:
        """A branch that is not decided: what it stores is not known, but what went into it is
        kept, so that a norm behind it is still seen (and refused)."""
        why = f"a branch on `{ast.unparse(node.test)}` in line {node.lineno}"
        self.instance.notes.append(why)
        attributes = dict(self.instance.attributes)
        outcomes: list[dict[str, Value]] = []
        returned: list[Value] = []
        for body in (node.body, node.orelse):
            inner = dict(env)
            try:
                self._run(body, inner)
                outcomes.append(inner)
            except _Return as result:
                returned.append(result.value)
        for name in _stored(node):
            env[name] = _either(why, [outcome.get(name) for outcome in outcomes])
        for attribute in _stored_attributes(node):
            value = self.instance.attributes.get(attribute)
            values = [attributes.get(attribute), value]
            self.instance.attributes[attribute] = _either(why, values)
        if returned:
            raise _Return(_either(why, returned))

    def _assign(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        match target:
            case ast.Name():
                env[target.id] = value
            case ast.Tuple() | ast.List():
                values: tuple[Value, ...] = (Unknown("an unpacked value"),) * len(target.elts)
                if isinstance(value, Items) and len(value.values) == len(target.elts):
                    values = value.values
                for element, item in zip(target.elts, values, strict=True):
                    self._assign(element, item, env)
            case ast.Attribute(value=ast.Name(id=owner)) if env.get(owner) == SelfRef():
                if self._running:
                    self.instance.notes.append(f"an assignment to `self.{target.attr}` in forward")
                self.instance.attributes[target.attr] = _named(value, target.attr)
            case _:
                self.instance.notes.append(f"an assignment to `{ast.unparse(target)}`")

    def _effect(self, node: ast.expr, env: dict[str, Value]) -> None:
        """An expression statement: only what registers parameters has an effect we follow."""
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            is_self = isinstance(owner, ast.Name) and env.get(owner.id) == SelfRef()
            if _is_super(owner) and name == "__init__":
                return
            if is_self and name in ("register_parameter", "register_buffer") and node.args:
                key = self._eval(node.args[0], env)
                value = (
                    self._eval(node.args[1], env)
                    if len(node.args) > 1
                    else Unknown(f"{name} with keywords")
                )
                if isinstance(key, Const) and isinstance(key.value, str):
                    named = _named(value, key.value)
                    if name == "register_buffer" and isinstance(named, Factory | Weight):
                        named = Weight(
                            named.dtype, key.value, named.shape, named.initial, buffer=True
                        )
                    self.instance.attributes[key.value] = named
                    return
            if is_self and name in self.methods:
                self._eval(node, env)
                return
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            called = self.module.qualified(node.func) or name
            if called.startswith("torch.nn.init."):
                self._initialise(called.rsplit(".", 1)[1], node, env)
                return
            if called.split(".")[0] in ("logger", "warnings", "print"):
                return
            self.instance.notes.append(f"a call of `{name}`")

    def _initialise(self, name: str, node: ast.Call, env: dict[str, Value]) -> None:
        target = node.args[0] if node.args else None
        weight = self._eval(target, env) if target is not None else None
        if isinstance(weight, Weight) and isinstance(target, ast.Attribute):
            kind = name.rstrip("_")
            self.instance.attributes[target.attr] = Weight(
                weight.dtype, weight.name, weight.shape, kind, weight.buffer
            )

    # Expressions

    def _eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return Const(node.value)
            case ast.Name():
                return self._name(node.id, env)
            case ast.Attribute():
                return self._attribute(node, env)
            case ast.Call():
                return self._call(node, env)
            case ast.BinOp():
                left, right = self._eval(node.left, env), self._eval(node.right, env)
                if isinstance(node.op, ast.Pow):
                    return self._power(left, right)
                kind = _BINARY.get(type(node.op))
                if kind is None:
                    return Unknown(f"`{ast.unparse(node)}`")
                return self._binary(kind, left, right)
            case ast.UnaryOp(op=ast.Not()):
                answer = truth(self._eval(node.operand, env))
                return Unknown("a condition") if answer is None else Const(not answer)
            case ast.UnaryOp(op=ast.USub()):
                operand = self._eval(node.operand, env)
                if isinstance(operand, Const) and isinstance(operand.value, int | float):
                    return Const(-operand.value)
                if isinstance(operand, Tensor):
                    return Op(operand.dtype, "neg", (operand,))
                return Unknown("a negation")
            case ast.Compare():
                return self._compare(node, env)
            case ast.BoolOp():
                return self._bool(node, env)
            case ast.IfExp():
                test = truth(self._eval(node.test, env))
                if test is None:
                    return Unknown(f"`{ast.unparse(node.test)}` is not known")
                return self._eval(node.body if test else node.orelse, env)
            case ast.Starred():
                return Unknown(f"`{ast.unparse(node)}`")
            case ast.Tuple() | ast.List():
                return Items(tuple(self._eval(e, env) for e in node.elts))
            case ast.Subscript():
                value = self._eval(node.value, env)
                if isinstance(value, Tensor):
                    return Op(value.dtype, "slice", (value,), ast.unparse(node.slice))
                index = self._eval(node.slice, env)
                if isinstance(value, Items) and isinstance(index, Const):
                    if isinstance(index.value, int) and -len(value.values) <= index.value < len(
                        value.values
                    ):
                        return value.values[index.value]
                return Unknown(f"`{ast.unparse(node)}`")
            case _:
                return Unknown(f"`{ast.unparse(node)}`")

    def _name(self, name: str, env: dict[str, Value]) -> Value:
        if name in env:
            return env[name]
        if name in self.module.functions:
            return Function(self.module.functions[name], bound=False)
        if name in self.module.imports:
            return Module(self.module.imports[name])
        if name in self.module.constants:
            constant = self.module.constants[name]
            if isinstance(constant, ast.Constant):
                return Const(constant.value)
            return Unknown(f"the module constant `{name}`")
        return Module(name) if name in ("float", "int", "bool", "hasattr") else Unknown(f"`{name}`")

    def _attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        owner = self._eval(node.value, env)
        if isinstance(owner, SelfRef):
            if node.attr in self.instance.attributes:
                return self.instance.attributes[node.attr]
            if node.attr in self.methods:
                return Function(self.methods[node.attr], bound=True)
            return Unknown(f"`self.{node.attr}`")
        if isinstance(owner, Module):
            return self._module_attribute(f"{owner.name}.{node.attr}")
        if isinstance(owner, Tensor):
            if node.attr == "dtype":
                return DType(owner.dtype)
            if node.attr == "data":
                return owner
            if node.attr in ("real", "imag", "T", "mT", "H", "mH"):
                return Op("other", f"call:{node.attr}", (owner,))
            return Unknown(f"`.{node.attr}` of a tensor")
        if isinstance(owner, Source):
            return Source(f"{owner.text}.{node.attr}", owner.param)
        return Unknown(f"`{ast.unparse(node)}`")

    def _module_attribute(self, name: str) -> Value:
        if name in ("torch.float32", "torch.float"):
            return DType("float32")
        if name in ("torch.float16", "torch.bfloat16", "torch.half", "torch.float64"):
            return DType("other")
        return Module(name)

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        spread = any(isinstance(a, ast.Starred) for a in node.args) or any(
            k.arg is None for k in node.keywords
        )
        arguments = [self._eval(a, env) for a in node.args]
        keywords = {k.arg: self._eval(k.value, env) for k in node.keywords if k.arg}
        if isinstance(node.func, ast.Attribute) and not _is_super(node.func.value):
            owner = self._eval(node.func.value, env)
            if isinstance(owner, Tensor):
                return call_tensor(owner, node.func.attr, arguments, keywords)
        if spread:
            return Unknown(f"`{ast.unparse(node)}` spreads its arguments")
        function = self._eval(node.func, env)
        if isinstance(function, Function):
            return self._call_function(function, arguments, keywords)
        if isinstance(function, Module):
            return call_module(function.name, arguments, keywords)
        return Unknown(f"the call `{ast.unparse(node)}`")

    def _call_function(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        node = function.node
        decorators = {ast.unparse(d).split("(")[0] for d in node.decorator_list}
        if decorators - {"torch.compile", "staticmethod", "torch.no_grad", "torch.jit.script"}:
            return Unknown(f"the decorated function {node.name}")
        if function.bound and "staticmethod" not in decorators:
            arguments = [SelfRef(), *arguments]
        env = bind_values(node.args, arguments, keywords, lambda default: self._eval(default, {}))
        if env is None:
            return Unknown(f"the call of {node.name} does not fit its parameters")
        return self._run_function(node, env)

    def _binary(self, kind: str, left: Value, right: Value) -> Value:
        if isinstance(left, Const) and isinstance(right, Const):
            return _fold(kind, left.value, right.value)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            for operand in (left, right):
                if not isinstance(operand, Tensor | Const | Source):
                    why = operand.why if isinstance(operand, Unknown) else "an operand"
                    return Op("other", f"call:{why}", (left, right))
            return Op(promote(left, right), kind, (left, right))
        return Unknown("arithmetic on values that are not known")

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Tensor):
            return call_tensor(base, "pow", [exponent], {})
        if isinstance(base, Const) and isinstance(exponent, Const):
            return _fold("pow", base.value, exponent.value)
        return Unknown("a power of a value that is not known")

    def _compare(self, node: ast.Compare, env: dict[str, Value]) -> Value:
        if len(node.ops) != 1:
            return Unknown("a chained comparison")
        left = self._eval(node.left, env)
        right = self._eval(node.comparators[0], env)
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and right == Const(None):
            answer = left == Const(None)
            if isinstance(left, Source | Unknown | Module):
                return Unknown(f"`{ast.unparse(node)}`")
            return Const(answer if isinstance(node.ops[0], ast.Is) else not answer)
        if isinstance(left, Const) and isinstance(right, Const):
            if isinstance(node.ops[0], ast.Eq):
                return Const(left.value == right.value)
            if isinstance(node.ops[0], ast.NotEq):
                return Const(left.value != right.value)
        if isinstance(left, DType) and isinstance(right, DType) and left == right:
            if isinstance(node.ops[0], ast.Eq | ast.NotEq) and left.name != "other":
                return Const(isinstance(node.ops[0], ast.Eq))
        return Unknown(f"`{ast.unparse(node)}`")

    def _bool(self, node: ast.BoolOp, env: dict[str, Value]) -> Value:
        stop = isinstance(node.op, ast.Or)
        last: Value = Unknown("a condition")
        for operand in node.values:
            last = self._eval(operand, env)
            answer = truth(last)
            if answer is None:
                return Unknown(f"`{ast.unparse(node)}`")
            if answer is stop:
                return last
        return last


def _either(why: str, values: list[Value | None]) -> Value:
    """One of ``values``, it is not known which: never a value that a norm is read from."""
    tensors = tuple(value for value in values if isinstance(value, Tensor | Items))
    return Op("other", f"call:{why}", tensors) if tensors else Unknown(why)


def truth(value: Value) -> bool | None:
    """Whether a condition holds, or None when it is not known."""
    if isinstance(value, Const):
        return bool(value.value)
    return None


def bind_values(
    parameters: ast.arguments,
    arguments: list[Value],
    keywords: dict[str, Value],
    default: object,
) -> dict[str, Value] | None:
    """Bind a call to parameters as Python does; None when it does not fit.

    default: callable that evaluates a parameter's default expression.
    """
    assert callable(default)
    names = [p.arg for p in (*parameters.posonlyargs, *parameters.args)]
    if len(arguments) > len(names) or parameters.vararg or parameters.kwarg:
        return None
    env: dict[str, Value] = dict(zip(names, arguments, strict=False))
    allowed = {p.arg for p in (*parameters.args, *parameters.kwonlyargs)}
    for name, value in keywords.items():
        if name in env or name not in allowed:
            return None
        env[name] = value
    for name, node in zip(reversed(names), reversed(parameters.defaults), strict=False):
        env.setdefault(name, default(node))
    for parameter, node_or_none in zip(
        parameters.kwonlyargs, parameters.kw_defaults, strict=True
    ):
        if parameter.arg not in env and node_or_none is not None:
            env[parameter.arg] = default(node_or_none)
    wanted = [*names, *(p.arg for p in parameters.kwonlyargs)]
    return env if all(name in env for name in wanted) else None


def _named(value: Value, name: str) -> Value:
    """Give a parameter the attribute name it is stored under."""
    if isinstance(value, Weight) and not value.name:
        return Weight(value.dtype, name, value.shape, value.initial, value.buffer)
    return value


def _fold(kind: str, left: object, right: object) -> Value:
    if isinstance(left, int | float) and isinstance(right, int | float):
        match kind:
            case "add":
                return Const(left + right)
            case "sub":
                return Const(left - right)
            case "mul":
                return Const(left * right)
            case "div" if right:
                return Const(left / right)
            case "pow" if left > 0 and abs(right) < 64:
                return Const(left**right)
    return Unknown("arithmetic on constants")


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _stored(node: ast.AST) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _stored_attributes(node: ast.AST) -> set[str]:
    """Attributes of self that a statement may set, also through register_parameter."""
    found = {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    for call in ast.walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("register_parameter", "register_buffer")
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ):
            found.add(str(call.args[0].value))
    return found


__all__ = ["Cast", "Evaluator", "bind_values", "truth"]
