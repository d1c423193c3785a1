"""Symbolic run of any function, for finding a norm in it rather than for proving what it is.

``evaluate.py`` reads norm classes and gives up where it does not follow; here everything that is
not followed becomes an ``Opaque`` tensor, loops run once, and both sides of a branch are kept
(``either``). What is found this way is shown and refused, never rewritten.
"""

from __future__ import annotations

import ast

from normport.codemods.flow_expressions import FlowExpressions, Opaque, Step
from normport.codemods.nodes import spelled
from normport.codemods.values import (
    Cast,
    Const,
    Function,
    Input,
    Items,
    Op,
    SelfRef,
    Tensor,
    Value,
)

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

MAX_SIZE = 500
"""Of a variable's value, written out in full; a larger one is not followed any further. A variable
that is multiplied by itself a few dozen times is longer than any memory."""


class Flow(FlowExpressions):
    """Runs one function of one file; the arguments are those of ``FlowExpressions``."""

    def run(self, node: Scope | ast.Module, bound: bool) -> Value:
        """What ``node`` returns, its parameters being tensors; bound: the first is ``self``."""
        env: dict[str, Value] = {}
        if isinstance(node, ast.Module):
            return self._body(node.body, env)
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if bound and names:
            env[names.pop(0)] = SelfRef()
        self.parameters = tuple(Input("input", name, n) for n, name in enumerate(names))
        env |= {parameter.name: parameter for parameter in self.parameters}
        if isinstance(node, ast.Lambda):
            return self._eval(node.body, env)
        return self._body(node.body, env)

    # Statements

    def _body(self, body: list[ast.stmt], env: dict[str, Value]) -> Value:
        self._returns.append([])
        self._run(body, env)
        returned = self._returns.pop()
        return self._either(returned) if returned else Const(None)

    def _run(self, body: list[ast.stmt], env: dict[str, Value]) -> bool:
        """Run in order; False when the end is not reached."""
        return all(self._statement(statement, env) for statement in body)

    def _statement(self, node: ast.stmt, env: dict[str, Value]) -> bool:
        match node:
            case ast.Return():
                value = self._eval(node.value, env) if node.value else Const(None)
                self._returns[-1].append(value)
                return False
            case ast.Raise() | ast.Continue() | ast.Break():
                return not isinstance(node, ast.Raise)
            case ast.Assign():
                value = self._eval(node.value, env)
                for target in node.targets:
                    self._assign(target, value, env)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self._eval(node.value, env), env)
            case ast.AugAssign():
                left = self._load(node.target, env)
                value = self._binary(node.op, left, self._eval(node.value, env))
                # A step of its own: `x *= r` has no expression that holds the product.
                self.steps.append(Step(node.target, value, self._depth == 0))
                self._assign(node.target, value, env)
            case ast.If():
                self._eval(node.test, env)
                return self._branches([node.body, node.orelse], env)
            case ast.Expr():
                value = self._eval(node.value, env)
                self._in_place(node.value, value, env)
            case ast.FunctionDef():
                env[node.name] = Function(node, bound=False)
            case ast.For() | ast.AsyncFor():
                self._eval(node.iter, env)
                self._assign(node.target, self._opaque(""), env)
                self._run(node.body, env)
                self._run(node.orelse, env)
            case ast.While():
                self._run(node.body, env)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._eval(item.context_expr, env)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value, env)
                return self._run(node.body, env)
            case ast.Try() | ast.TryStar():
                bodies = [node.body + node.orelse, *(h.body for h in node.handlers)]
                return self._branches(bodies, env) and self._run(node.finalbody, env)
            case ast.Match():
                return self._branches([case.body for case in node.cases], env)
            case _:
                pass
        return True

    def _branches(self, bodies: list[list[ast.stmt]], env: dict[str, Value]) -> bool:
        """Run each; what they store differently afterwards is either value."""
        outcomes = []
        for body in bodies:
            inner = dict(env)
            if self._run(body, inner):
                outcomes.append(inner)
        if not outcomes:
            return False
        if len(outcomes) == 1:
            env.update(outcomes[0])
            return True
        for name in {name for outcome in outcomes for name in outcome}:
            values = [outcome[name] for outcome in outcomes if name in outcome]
            env[name] = self._either(values)
        return True

    def _assign(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        match target:
            case ast.Name():
                env[target.id] = value if self._size(value) <= MAX_SIZE else self._opaque("")
            case ast.Tuple() | ast.List():
                known = isinstance(value, Items) and len(value.values) == len(target.elts)
                for number, element in enumerate(target.elts):
                    if isinstance(value, Items) and known:
                        item = value.values[number]
                    elif isinstance(value, Tensor):
                        item = Op(value.dtype, "slice", (value,), f"item {number}")
                    else:
                        item = self._opaque("")
                    self._assign(element, item, env)
            case ast.Subscript() | ast.Attribute():
                env[spelled(target)] = value
            case ast.Starred():
                self._assign(target.value, self._opaque(""), env)
            case _:
                pass

    def _size(self, value: Value) -> int:
        """How long ``value`` is when it is written out in full."""
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        parts: tuple[Value, ...] = ()
        if isinstance(value, Cast):
            parts = (value.operand,)
        elif isinstance(value, Op):
            parts = value.operands
        elif isinstance(value, Items):
            parts = value.values
        size = 1 + sum(map(self._size, parts))
        self._sizes[id(value)] = value, size
        return size

    def _in_place(self, node: ast.expr, value: Value, env: dict[str, Value]) -> None:
        """``x.mul_(y)`` as a statement."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.endswith("_")
            and isinstance(node.func.value, ast.Name)
            and isinstance(value, Tensor)
        ):
            env[node.func.value.id] = value


__all__ = ["Flow", "Opaque", "Step"]
