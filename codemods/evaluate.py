"""Symbolic evaluation of a norm class: its constructor with bound arguments, then its forward.

Only what norm classes use is followed. Everything else becomes ``Unknown`` with a reason, and
an ``Unknown`` that reaches the result makes the class "not understood": the evaluator never
guesses.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from normport.codemods.expressions import BINARY, Expressions, is_super, truth
from normport.codemods.module_info import ModuleInfo, stored_names
from normport.codemods.nodes import spelled, walk
from normport.codemods.statements import (
    asks_for_argument,
    described,
    either,
    named,
    stored_attributes,
)
from normport.codemods.values import (
    Cast,
    Const,
    Factory,
    Input,
    Instance,
    Items,
    LastSize,
    Op,
    SelfRef,
    Shape,
    Tensor,
    Unknown,
    Value,
    Weight,
)

MAX_DEPTH = 12


class _Return(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


class _Raise(_Return):
    """A path that ends in an exception: nothing that is built or returned comes from it."""


class Evaluator(Expressions):
    """Evaluates one class of one file.

    module: the file. node: the class. arguments: constructor parameter -> value.
    """

    def __init__(self, module: ModuleInfo, node: ast.ClassDef) -> None:
        methods = {s.name: s for s in node.body if isinstance(s, ast.FunctionDef)}
        super().__init__(module, methods)
        self.node = node
        self.reached: set[str] = set()
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
                    value = self._eval(statement.value, {})
                    if isinstance(target, ast.Name):
                        self.instance.attributes[target.id] = value
                    else:
                        self._note_store(target)
        init = self.methods.get("__init__")
        if init is not None:
            env: dict[str, Value] = {init.args.args[0].arg: SelfRef(), **arguments}
            self._run_function(init, env)
        return self.instance

    def forward(
        self,
        positional: Sequence[Value] | None = None,
        keywords: Mapping[str, Value] | None = None,
    ) -> Value:
        """Run ``forward`` on the arguments of a call; the other parameters take defaults.

        Without arguments every parameter that has no default is a tensor.
        """
        node = self.methods.get("forward")
        if node is None:
            return Unknown("it has no forward method")
        parameters = node.args.args[1:]
        blind = positional is None and keywords is None
        if positional is None:
            positional = [Input("input", parameters[0].arg, 0)] if blind and parameters else ()
        given = dict(zip([p.arg for p in parameters], positional, strict=False))
        spread = {a.arg for a in (node.args.vararg, node.args.kwarg) if a is not None}
        if len(positional) > len(parameters) and node.args.vararg is None:
            return Unknown("its forward takes fewer arguments than the call passes")
        names = {p.arg for p in (*parameters, *node.args.kwonlyargs)}
        for name, value in (keywords or {}).items():
            if name in given or (name not in names and node.args.kwarg is None):
                return Unknown(f"its forward does not take `{name}` as the call passes it")
            given[name] = value
        env: dict[str, Value] = {node.args.args[0].arg: SelfRef(), **given}
        env |= {name: Unknown(f"`{name}`, what else a call passes") for name in spread}
        defaults = dict(
            zip([p.arg for p in reversed(parameters)], reversed(node.args.defaults), strict=False)
        )
        for keyword, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                defaults[keyword.arg] = default
        for position, parameter in enumerate((*parameters, *node.args.kwonlyargs)):
            if parameter.arg in env:
                continue
            if parameter.arg in defaults:
                env[parameter.arg] = self._eval(defaults[parameter.arg], {})
            elif blind:
                env[parameter.arg] = Input("input", parameter.arg, position)
            else:
                return Unknown(f"its forward needs `{parameter.arg}`, which the call does not pass")
        self._running = True
        return self._run_function(node, env)

    def _run_function(self, node: ast.FunctionDef, env: dict[str, Value]) -> Value:
        if self._depth >= MAX_DEPTH:
            return Unknown(f"{node.name} calls itself or nests too deeply")
        self._depth += 1
        self.reached.add(node.name)
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
                kind = BINARY.get(type(node.op))
                load = ast.parse(spelled(node.target), mode="eval").body
                left, right = self._eval(load, env), self._eval(node.value, env)
                if isinstance(left, Tensor):
                    self._check_memory(left, node)
                elif not isinstance(left, Const | LastSize | Shape):
                    what = f"`{spelled(node)}` in line {node.lineno}"
                    self.instance.notes.append(f"{what}, which may change what others hold")
                if kind is None:
                    self._assign(node.target, Unknown("an augmented assignment"), env)
                else:
                    self._assign(node.target, self._binary(kind, left, right), env)
            case ast.If():
                self._branch(node, env)
            case ast.Expr():
                self._effect(node.value, env)
            case ast.Assert():
                known = truth(self._eval(node.test, env))
                if known is not True and not asks_for_argument(node.test, env):
                    self.instance.notes.append(f"an assert in line {node.lineno}")
            case ast.Pass():
                pass
            case ast.Raise():
                raise _Raise(Unknown("it raises"))
            case _:
                self._unfollowed(node, env)

    def _unfollowed(self, node: ast.stmt, env: dict[str, Value]) -> None:
        """A loop, a with block and the like: what it stores is not known, as in ``_both``."""
        why = f"{described(node)} in line {node.lineno}"
        self.instance.notes.append(why)
        stored = {name: env.get(name) for name in stored_names(node)}
        for name, value in stored.items():
            env[name] = either(why, [value])
        if any(isinstance(n, ast.Return) for n in walk(node)):
            raise _Return(either(why, list(stored.values())))

    def _branch(self, node: ast.If, env: dict[str, Value]) -> None:
        test = truth(self._eval(node.test, env))
        if test is True:
            self._run(node.body, env)
        elif test is False or self._is_guard(node, env):
            self._run(node.orelse, env)
        else:
            self._both(node, env)

    def _is_guard(self, node: ast.If, env: Mapping[str, Value]) -> bool:
        """``if size is None: raise``, which says what ``assert size is not None`` does."""
        raises = all(isinstance(statement, ast.Raise) for statement in node.body)
        return raises and asks_for_argument(node.test, env, absent=True)

    def _both(self, node: ast.If, env: dict[str, Value]) -> None:
        """A branch that is not decided: what it stores is not known, but what went into it is
        kept, so that a norm behind it is still seen (and refused)."""
        why = f"a branch on `{spelled(node.test)}` in line {node.lineno}"
        self.instance.notes.append(why)
        attributes = dict(self.instance.attributes)
        outcomes: list[dict[str, Value]] = []
        returned: list[Value] = []
        for body in (node.body, node.orelse):
            inner = dict(env)
            try:
                self._run(body, inner)
                outcomes.append(inner)
            except _Raise:
                continue
            except _Return as result:
                returned.append(result.value)
        if not outcomes and not returned:
            raise _Raise(Unknown("it raises"))
        for name in stored_names(node):
            env[name] = either(why, [outcome.get(name) for outcome in outcomes])
        for attribute in stored_attributes(node):
            value = self.instance.attributes.get(attribute)
            values = [attributes.get(attribute), value]
            self.instance.attributes[attribute] = either(why, values)
        if returned:
            raise _Return(either(why, returned))

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
                    where = f"line {target.lineno}, in forward"
                    self.instance.notes.append(f"an assignment to `self.{target.attr}` in {where}")
                self.instance.attributes[target.attr] = named(value, target.attr)
            case _:
                self._note_store(target)

    def _note_store(self, target: ast.expr) -> None:
        where = f"line {target.lineno}"
        self.instance.notes.append(f"an assignment to `{spelled(target)}` in {where}")

    def _check_memory(self, value: Tensor, node: ast.AugAssign) -> None:
        """What ``value``, which is changed in place, may share its memory with."""
        converted = False
        while not isinstance(value, Input):
            if isinstance(value, Cast):
                converted, value = True, value.operand
            elif isinstance(value, Op) and value.kind in ("reshape", "slice"):
                assert isinstance(value.operands[0], Tensor)
                value = value.operands[0]
            else:
                return
        if converted:
            self.instance.overwrites = True
        else:
            what = f"`{spelled(node)}` in line {node.lineno}"
            self.instance.notes.append(f"{what}, which writes into its input")

    def _effect(self, node: ast.expr, env: dict[str, Value]) -> None:
        """An expression statement: only what registers parameters has an effect we follow."""
        if not isinstance(node, ast.Call):
            self._eval(node, env)
            return
        if isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            is_self = isinstance(owner, ast.Name) and env.get(owner.id) == SelfRef()
            if is_super(owner) and name == "__init__":
                self._pass_over(*node.args, *(k.value for k in node.keywords))
                return
            registers = is_self and name in ("register_parameter", "register_buffer")
            if registers and node.args and not self._running:
                key = self._eval(node.args[0], env)
                value = (
                    self._eval(node.args[1], env)
                    if len(node.args) > 1
                    else Unknown(f"{name} with keywords")
                )
                if isinstance(key, Const) and isinstance(key.value, str):
                    held = named(value, key.value)
                    if name == "register_buffer" and isinstance(held, Factory | Weight):
                        held = Weight(held.dtype, key.value, held.shape, held.initial, buffer=True)
                    self.instance.attributes[key.value] = held
                    return
            if is_self and name in self.methods:
                self._eval(node, env)
                return
        called = self.module.qualified(node.func) or ""
        if called.startswith("torch.nn.init.") and not self._running:
            self._initialise(called.rsplit(".", 1)[1], node, env)
            return
        self._note_call(node)

    def _initialise(self, name: str, node: ast.Call, env: dict[str, Value]) -> None:
        self._pass_over(*node.args, *(k.value for k in node.keywords))
        target = node.args[0] if node.args else None
        weight = self._eval(target, env) if target is not None else None
        if isinstance(weight, Weight) and isinstance(target, ast.Attribute):
            kind = name.rstrip("_")
            self.instance.attributes[target.attr] = Weight(
                weight.dtype, weight.name, weight.shape, kind, weight.buffer
            )
