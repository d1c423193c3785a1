"""Expressions of a ``Flow``: what is not followed becomes an ``Opaque`` tensor."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from normport.codemods.expressions import BINARY, bind_values
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import dotted, spelled
from normport.codemods.reductions import SPECIAL, reduce, special_call
from normport.codemods.tensor_calls import RMS_NORMS, call_tensor, cast, promote, rms_norm
from normport.codemods.values import (
    Cast,
    Const,
    DType,
    DTypeName,
    Function,
    Input,
    Items,
    Op,
    SelfRef,
    Source,
    Tensor,
    Unknown,
    Value,
    walk,
)

_DTYPES: dict[str, DTypeName] = {"float32": "float32", "float": "float32", "Float32": "float32"}
_OTHER_DTYPES = {"float16", "bfloat16", "half", "float64", "double", "int8", "int32", "int64"}
# Functions of torch, Triton, JAX and the like whose names mean one thing everywhere.
_FUNCTIONS = {
    "rsqrt", "sqrt", "mean", "sum", "reduce_sum", "square", "pow", "mul", "multiply", "div",
    "divide", "add", "sub", "subtract", "float", "to", "type_as", "reshape", "abs", "maximum",
    "clamp", "clamp_min", "div_rn", "fdiv",
}  # fmt: skip
_SPELLINGS = {"multiply": "mul", "divide": "div", "subtract": "sub", "reduce_sum": "sum"}
_SPELLINGS |= {"div_rn": "div", "fdiv": "div"}
_MINIMA = {"maximum", "clamp", "clamp_min", "max"}
_SAME = {"astype": "to", "cast": "to"}


@dataclass(frozen=True)
class Opaque(Input):
    """A value that is not followed; ``name`` is its source text where it has a short one.

    part: 0 for text that means the same wherever it is read; else no two are equal.
    """

    part: int = 0


@dataclass(frozen=True)
class Step:
    """An expression and its value, in the order of evaluation.

    own: it stands in the function itself, not in one that is called.
    """

    node: ast.expr
    value: Value
    own: bool = True


MAX_DEPTH = 5
MAX_CALLS = 40


class FlowExpressions:
    """Evaluates expressions of one function; ``flow.py`` runs its statements.

    module: the file. attributes: what is known of ``self``. methods: functions of its class.
    follow: names of functions and methods whose calls are run as well.
    sizes: attributes of ``self`` that hold a root, as the constructor writes it.
    """

    def __init__(
        self,
        module: ModuleInfo,
        attributes: Mapping[str, Value],
        methods: Mapping[str, ast.FunctionDef],
        follow: frozenset[str],
        sizes: Mapping[str, ast.expr] | None = None,
    ) -> None:
        self.module = module
        self.attributes = attributes
        self.methods = methods
        self.follow = follow
        self.sizes = sizes or {}
        self.steps: list[Step] = []
        self.parameters: tuple[Input, ...] = ()
        self._depth = 0
        self._calls = 0
        self._parts = 0
        # With the value, so that its id stays its own.
        self._sizes: dict[int, tuple[Value, int]] = {}
        self._returns: list[list[Value]] = []

    def _body(self, body: list[ast.stmt], env: dict[str, Value]) -> Value:
        raise NotImplementedError

    def _assign(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        raise NotImplementedError

    def _either(self, values: list[Value]) -> Value:
        distinct = list({id(value): value for value in values}.values())
        if len(distinct) == 1:
            return distinct[0]
        tensors = [v for v in distinct if isinstance(v, Tensor | Items)]
        if len(tensors) == 1 and not isinstance(tensors[0], Opaque):
            return tensors[0]
        dtypes: set[DTypeName] = {v.dtype for v in tensors if isinstance(v, Tensor)}
        dtype = dtypes.pop() if len(dtypes) == 1 else "input"
        return Op(dtype, "either", tuple(tensors)) if tensors else distinct[0]

    def _eval(self, node: ast.expr, env: dict[str, Value]) -> Value:
        value = self._expression(node, env)
        if isinstance(value, Unknown):
            value = self._opaque("")
        if isinstance(value, Op | Cast):
            self.steps.append(Step(node, value, self._depth == 0))
        return value

    def _expression(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return Const(node.value, text=repr(node.value))
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._load(node, env)
            case ast.Call():
                return self._call(node, env)
            case ast.BinOp():
                left = self._eval(node.left, env)
                return self._binary(node.op, left, self._eval(node.right, env))
            case ast.UnaryOp():
                operand = self._eval(node.operand, env)
                if isinstance(operand, Tensor):
                    return Op(operand.dtype, "neg", (operand,))
                return _negative(operand) if isinstance(node.op, ast.USub) else operand
            case ast.IfExp():
                self._eval(node.test, env)
                return self._either([self._eval(node.body, env), self._eval(node.orelse, env)])
            case ast.BoolOp():
                return self._either([self._eval(value, env) for value in node.values])
            case ast.Tuple() | ast.List():
                return Items(tuple(self._eval(element, env) for element in node.elts))
            case ast.NamedExpr():
                value = self._eval(node.value, env)
                self._assign(node.target, value, env)
                return value
            case ast.Await() | ast.Starred():
                return self._eval(node.value, env)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                inner = dict(env)
                for generator in node.generators:
                    self._eval(generator.iter, inner)
                    self._assign(generator.target, self._opaque(""), inner)
                return Op("input", "call:a list", (self._eval(node.elt, inner),))
            case ast.Lambda():
                inner = dict(env)
                for argument in node.args.args:
                    inner[argument.arg] = self._opaque("")
                self._eval(node.body, inner)
            case ast.Dict():
                for part in node.values:
                    self._eval(part, env)
            case _:
                pass
        return self._opaque("")

    def _load(self, node: ast.expr, env: dict[str, Value]) -> Value:
        if isinstance(node, ast.Name):
            return self._name(node.id, env)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, env)
        if isinstance(node, ast.Subscript):
            owner = self._eval(node.value, env)
            text = spelled(node)
            if text in env:
                return env[text]
            index = node.slice
            if isinstance(owner, Items) and isinstance(index, ast.Constant):
                number = index.value
                if isinstance(number, int) and -len(owner.values) <= number < len(owner.values):
                    return owner.values[number]
            if isinstance(owner, Tensor):
                detail = spelled(index)
                kind = "reshape" if "None" in detail else "slice"
                return Op(owner.dtype, kind, (owner,), detail)
        return self._opaque("")

    def _name(self, name: str, env: dict[str, Value]) -> Value:
        if name in env:
            return env[name]
        if name in self.module.functions and name not in self.module.imports:
            return Function(self.module.functions[name], bound=False)
        constant = self.module.constants.get(name)
        if isinstance(constant, ast.Constant):
            return Const(constant.value, text=name)
        return self._opaque(name)

    def _attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        text = spelled(node)
        if text in env:
            return env[text]
        if (self.module.qualified(node) or "").startswith("torch."):
            if node.attr in _DTYPES:
                return DType(_DTYPES[node.attr])
            if node.attr in _OTHER_DTYPES:
                return DType("other")
        owner = self._eval(node.value, env)
        if isinstance(owner, SelfRef):
            if node.attr in self.sizes:
                return self._expression(self.sizes[node.attr], {})
            if node.attr in self.attributes:
                return self.attributes[node.attr]
            if node.attr in self.methods:
                return Function(self.methods[node.attr], bound=True)
        elif isinstance(owner, Tensor):
            if isinstance(owner, Opaque) and node.attr in ("float32", "Float32"):
                return DType("float32")  # tl.float32, T.float32, jnp.float32
            if node.attr == "dtype":
                return DType(owner.dtype)
            if node.attr in ("data", "real"):
                return owner
        return self._opaque(text)

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        arguments = [self._eval(argument, env) for argument in node.args]
        keywords = {k.arg: self._eval(k.value, env) for k in node.keywords if k.arg}
        function = node.func if not isinstance(node.func, ast.Call) else dotted(node.func)
        name = self.module.respelled(_last(function))
        if isinstance(function, ast.Attribute):
            owner = self._eval(function.value, env)
            module = isinstance(owner, Opaque) and self._is_module(function.value)
            if isinstance(owner, Tensor) and not module:
                return self._method(owner, name, arguments, keywords)
        called = self._eval(function, env)
        if isinstance(called, Function):
            return self._follow(called, arguments, keywords)
        first = arguments[0] if arguments else keywords.get("input")
        if name == "rms_norm" and self.module.qualified(function) in RMS_NORMS:
            value = rms_norm(arguments, keywords)
            # Torch's product, not one that is written here.
            inner = [v for v in walk(value) if isinstance(v, Op) and v.kind == "mul"]
            self.steps += [Step(node, part, own=False) for part in reversed(inner)]
            return value
        special = special_call(name, arguments, keywords) if name in SPECIAL else None
        if special is not None:
            return special
        if isinstance(first, Source) and name in ("sqrt", "rsqrt"):
            first = self._opaque(first.text)
        if isinstance(first, Tensor):
            rest = arguments[1:] if arguments else []
            words = {k: v for k, v in keywords.items() if k != "input"}
            short = _SPELLINGS.get(name, name)
            if name == "fma" and len(rest) == 2:
                product = Op(first.dtype, "mul", (first, rest[0]))
                return Op(first.dtype, "add", (product, rest[1]))
            if name in _FUNCTIONS or "rsqrt" in name:
                return self._method(first, "rsqrt" if "rsqrt" in name else short, rest, words)
            if name in ("where", "select"):
                values = [v for v in rest if isinstance(v, Tensor)]
                return self._either(list(values)) if values else first
        if isinstance(first, Const) and name in ("float", "Float32"):
            return first
        operands = (*arguments, *keywords.values())
        if isinstance(function, ast.Attribute) or any(isinstance(o, Tensor) for o in operands):
            return Op("input", f"call:{spelled(function)}", operands, self._part())
        return self._opaque("")

    def _method(
        self, owner: Tensor, name: str, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        short = name.rstrip("_") or name
        short = _SAME.get(short, short)
        if short in ("mean", "sum"):
            return reduce(owner, short, arguments, keywords)
        special = special_call(short, [owner, *arguments], keywords) if short in SPECIAL else None
        if special is not None:
            return special
        if short in _MINIMA and (arguments or "min" in keywords):
            return Op(owner.dtype, "floor", (owner, (*arguments, *keywords.values())[0]))
        if short in ("add", "sub", "mul", "div") and len(arguments) == 1:
            return Op(promote(owner, arguments[0]), short, (owner, arguments[0]))
        if short == "to" and arguments and isinstance(arguments[0], Opaque | Const):
            text = arguments[0].name if isinstance(arguments[0], Opaque) else ""
            return cast(owner, "float32" if "32" in text else "other")
        value = call_tensor(owner, short, arguments, keywords)
        if isinstance(value, Op) and value.kind.startswith("call:"):
            return replace(value, dtype=owner.dtype, detail=self._part())
        return value

    def _follow(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """The result of a function of the file, run when it is one of ``follow``."""
        node = function.node
        static = any(_last(d) == "staticmethod" for d in node.decorator_list)
        env: dict[str, Value] | None = None
        if node.name in self.follow and self._depth < MAX_DEPTH and self._calls < MAX_CALLS:
            if function.bound and not static:
                arguments = [SelfRef(), *arguments]
            env = bind_values(
                node.args, arguments, keywords, lambda default: self._expression(default, {})
            )
        if env is None:
            operands = (*arguments, *keywords.values())
            return Op("input", f"call:{node.name}", operands, self._part())
        self._depth += 1
        self._calls += 1
        try:
            return self._body(node.body, env)
        finally:
            self._depth -= 1

    def _binary(self, operator: ast.operator, left: Value, right: Value) -> Value:
        if isinstance(left, Const) and isinstance(right, Const):
            return _quotient(operator, left, right)
        if isinstance(operator, ast.Pow) and isinstance(left, Source):
            left = self._opaque(left.text)  # a size, of which it matters that a root is taken
        tensor = left if isinstance(left, Tensor) else right
        if not isinstance(tensor, Tensor):
            return self._opaque("")
        if isinstance(operator, ast.Pow):
            if isinstance(left, Tensor):
                return self._method(left, "pow", [right], {})
            return self._opaque("")
        kind = BINARY.get(type(operator))
        if kind is None:
            return Op(tensor.dtype, "call:an operator", (left, right), self._part())
        return Op(promote(left, right), kind, (left, right))

    def _is_module(self, node: ast.expr) -> bool:
        """Whether ``node`` is an imported name or a dotted part of one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and self.module.imported(node) is not None

    def _opaque(self, name: str) -> Opaque:
        if name:
            return Opaque("input", name, -1)
        self._parts += 1
        return Opaque("input", "", -1, self._parts)

    def _part(self) -> str:
        """Tells two calls of the same text apart: they need not give the same."""
        self._parts += 1
        return str(self._parts)


def _quotient(operator: ast.operator, left: Const, right: Const) -> Const:
    """``1 / 2`` as an exponent; no other number is asked for."""
    over, under = left.value, right.value
    if isinstance(operator, ast.Div) and isinstance(over, int | float) and under == 2:
        return Const(over / 2) if over in (1, -1) else Const(None)
    return Const(None)


def _negative(value: Value) -> Value:
    if isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value)
    return value


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, of the function where it is called."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
