"""Symbolic evaluation of expressions; ``evaluate.py`` runs statements with it."""

from __future__ import annotations

import ast
import re

from normport.codemods.acts import has_out, is_quiet_function, is_quiet_method, unread
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import dotted, expression, spelled
from normport.codemods.tensor_calls import call_module, call_tensor, promote, unsqueezed
from normport.codemods.values import (
    Const,
    DType,
    Function,
    Instance,
    Items,
    LastSize,
    Module,
    Op,
    SelfRef,
    Shape,
    Source,
    Tensor,
    Unknown,
    Value,
    Weight,
)

_BUILTINS = ("float", "int", "bool", "hasattr")
BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


class Expressions:
    """Evaluates expressions of one class.

    module: the file. methods: the class's own functions by name. instance: its state.
    """

    def __init__(self, module: ModuleInfo, methods: dict[str, ast.FunctionDef]) -> None:
        self.module = module
        self.methods = methods
        self.instance = Instance()

    def _run_function(self, node: ast.FunctionDef, env: dict[str, Value]) -> Value:
        raise NotImplementedError

    def _pass_over(self, *nodes: ast.AST | None) -> None:
        """Note what expressions do that are not evaluated."""
        found = unread(self.module, *nodes)
        if found is not None:
            self.instance.notes.append(found)

    def _eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return Const(node.value)
            case ast.Name():
                return self._name(node, env)
            case ast.Attribute():
                return self._attribute(node, env)
            case ast.Call():
                return self._call(node, env)
            case ast.BinOp():
                left, right = self._eval(node.left, env), self._eval(node.right, env)
                if isinstance(node.op, ast.Pow):
                    return self._power(left, right)
                kind = BINARY.get(type(node.op))
                if kind is None:
                    return Unknown(f"`{spelled(node)}`")
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
                    self._pass_over(node.body, node.orelse)
                    return Unknown(f"`{spelled(node.test)}` is not known")
                return self._eval(node.body if test else node.orelse, env)
            case ast.Starred():
                self._pass_over(node.value)
                return Unknown(f"`{spelled(node)}`")
            case ast.Tuple() | ast.List():
                return Items(tuple(self._eval(e, env) for e in node.elts))
            case ast.Subscript():
                value = self._eval(node.value, env)
                if isinstance(value, Tensor):
                    self._pass_over(node.slice)
                    text = re.sub(r"\b(?:np|numpy|torch)\.newaxis\b", "None", spelled(node.slice))
                    if text == "(..., None)":
                        return unsqueezed(value, text)
                    kind = "reshape" if "None" in text else "slice"
                    return Op(value.dtype, kind, (value,), text)
                index = self._eval(node.slice, env)
                if isinstance(value, Shape) and _is_last(value.tensor, index):
                    return LastSize(f"`{spelled(node)}`", value.tensor)
                if isinstance(value, Items) and isinstance(index, Const):
                    return _item(value, index.value)
                return Unknown(f"`{spelled(node)}`")
            case _:
                self._pass_over(node)
                return Unknown(f"`{spelled(node)}`")

    def _name(self, node: ast.Name, env: dict[str, Value]) -> Value:
        name = node.id
        if name in env:
            return env[name]
        local = name in self.module.functions or name in self.module.constants
        if local and not self.module.means_one_thing(name):
            return Unknown(f"`{name}`, which is bound more than once")
        if name in self.module.functions:
            return Function(self.module.functions[name], bound=False)
        full = self.module.imported(node)
        if full is not None:
            return Module(full)
        if name in self.module.constants:
            constant = self.module.constants[name]
            if isinstance(constant, ast.Constant):
                return Const(constant.value)
            return Unknown(f"the module constant `{name}`")
        if name in _BUILTINS:
            return Module(name)
        doubtful = self.module.ever_imported(name)
        if doubtful is not None:
            self.instance.doubtful.append(name)
            return Module(doubtful)
        return Unknown(f"`{name}`")

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
            if node.attr == "shape":
                return Shape("`.shape` of a tensor", owner)
            return Unknown(f"`.{node.attr}` of a tensor")
        if isinstance(owner, Source):
            primary = owner.text if _is_primary(owner.text) else f"({owner.text})"
            return Source(f"{primary}.{node.attr}", owner.param)
        return Unknown(f"`{spelled(node)}`")

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
        self._pass_over(*(k.value for k in node.keywords if not k.arg))
        if isinstance(node.func, ast.Attribute) and not is_super(node.func.value):
            owner = self._eval(node.func.value, env)
            if isinstance(owner, Tensor):
                value = call_tensor(owner, node.func.attr, arguments, keywords)
                unread_call = isinstance(value, Op) and value.kind.startswith("call:")
                if (unread_call and not is_quiet_method(node.func.attr)) or has_out(node):
                    self._note_call(node)
                return value
        called = dotted(node.func) if isinstance(node.func, ast.Call) else node.func
        function = self._eval(called, env)
        if isinstance(function, Function) and not spread:
            return self._call_function(function, arguments, keywords)
        name = function.name if isinstance(function, Module) else spelled(node.func)
        if not is_quiet_function(name) or has_out(node):
            self._note_call(node)
        if isinstance(function, Module) and not spread:
            return call_module(function.name, arguments, keywords)
        return Unknown(f"the call `{spelled(node)}`")

    def _note_call(self, node: ast.Call) -> None:
        self.instance.notes.append(f"a call of `{spelled(node.func)}` in line {node.lineno}")

    def _call_function(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        node = function.node
        decorators = {spelled(d).split("(")[0] for d in node.decorator_list}
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
                if not isinstance(operand, Tensor | Const | Source | LastSize):
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
            self._pass_over(node)
            return Unknown("a chained comparison")
        left = self._eval(node.left, env)
        right = self._eval(node.comparators[0], env)
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and right == Const(None):
            answer = left == Const(None)
            if isinstance(left, Source | Unknown | Module):
                return Unknown(f"`{spelled(node)}`")
            return Const(answer if isinstance(node.ops[0], ast.Is) else not answer)
        if isinstance(left, Const) and isinstance(right, Const):
            if isinstance(node.ops[0], ast.Eq):
                return Const(left.value == right.value)
            if isinstance(node.ops[0], ast.NotEq):
                return Const(left.value != right.value)
        same = isinstance(left, DType) and left == right and left.name != "other"
        if same and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return Const(isinstance(node.ops[0], ast.Eq))
        return Unknown(f"`{spelled(node)}`")

    def _bool(self, node: ast.BoolOp, env: dict[str, Value]) -> Value:
        stop = isinstance(node.op, ast.Or)
        last: Value = Unknown("a condition")
        for place, operand in enumerate(node.values):
            last = self._eval(operand, env)
            answer = truth(last)
            if answer is None:
                self._pass_over(*node.values[place + 1 :])
                return Unknown(f"`{spelled(node)}`")
            if answer is stop:
                return last
        return last


def _is_last(tensor: Tensor, index: Value) -> bool:
    """Whether ``index`` is the last of a tensor's dimensions, of which a weight has one."""
    single = isinstance(tensor, Weight) and len(tensor.shape) == 1
    return index == Const(-1) or (single and index == Const(0))


def _is_primary(text: str) -> bool:
    node = expression(text)
    return isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)


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
    for parameter, node_or_none in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if parameter.arg not in env and node_or_none is not None:
            env[parameter.arg] = default(node_or_none)
    wanted = [*names, *(p.arg for p in parameters.kwonlyargs)]
    return env if all(name in env for name in wanted) else None


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


def _item(items: Items, index: object) -> Value:
    if isinstance(index, int) and -len(items.values) <= index < len(items.values):
        return items.values[index]
    return Unknown("an item that does not exist")


def is_super(node: ast.expr) -> bool:
    """Whether ``node`` is a call of ``super``."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )
