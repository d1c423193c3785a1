"""Finds ``norm(x) + residual`` in a function and decides what becomes of each."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from normport.codemods.sandwich_class import Function, NormClass
from normport.codemods.sandwich_syntax import (
    addends,
    blocks,
    calls_in,
    copied_to,
    expressions,
    fresh,
    is_arithmetic,
    is_behind,
    is_norm,
    leaves_by_name,
    more_than_a_sum,
    name_of,
    needed_names,
    reads_one_of,
    returned,
)

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_CHOICES = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp)
_UNSURE = (*_CHOICES, ast.GeneratorExp, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


class Refused(Exception):
    """A sum stays as it is: the code of the rule, and one sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True)
class Match:
    """One place that is converted.

    first, second: the attributes of the two norms.
    x, residual: what the layer is called with. start, end: the first and the last statement.
    targets: the names of what it returns (norm, sum). copies: further ``name = sum`` names.
    inner: the call of the second norm, where it stands inside ``end`` and ``end`` stays.
    """

    first: str
    second: str
    x: ast.expr
    residual: ast.expr
    start: ast.stmt
    end: ast.stmt
    targets: tuple[str, str]
    copies: tuple[str, ...] = ()
    inner: ast.Call | None = None


@dataclass(frozen=True)
class Sum:
    """A sum with a norm's result in it: what was found at ``node``, and what becomes of it."""

    node: ast.expr | ast.AugAssign
    function: str
    norm: str
    found: Match | Refused


@dataclass(frozen=True)
class _Result:
    """A norm's result as an operand. statement: where it got its name (None: it has none)."""

    call: ast.Call
    statement: ast.stmt | None = None
    wrapped: bool = False
    branch: bool = False


@dataclass
class Matcher:
    """One function of a class (``owner``), or of the module."""

    function: Function
    owner: NormClass | None
    sums: list[Sum] = field(default_factory=list)
    stored: dict[int, set[str]] = field(default_factory=dict)

    def run(self) -> list[Sum]:
        self._block(self.function.body, [], False)
        return self.sums

    def _block(self, body: Sequence[ast.stmt], above: list[Sequence[ast.stmt]], loop: bool) -> None:
        for index, statement in enumerate(body):
            before = [*above, body[:index]]
            for expression, whole in expressions(statement):
                self._sums(expression, whole, body, index, before, loop)
            inside = loop or isinstance(statement, _LOOPS)
            for inner in blocks(statement):
                if not isinstance(statement, Function | ast.ClassDef):
                    self._block(inner, before, inside)

    def _sums(
        self,
        expression: ast.expr | ast.AugAssign,
        whole: bool,
        body: Sequence[ast.stmt],
        index: int,
        before: list[Sequence[ast.stmt]],
        loop: bool,
    ) -> None:
        for node in ast.walk(expression):
            both = addends(node)
            if both is None or not isinstance(node, ast.expr | ast.AugAssign):
                continue
            results = [self._result(side, before) for side in both]
            if any(isinstance(side, ast.Constant) for side in both) or not any(results):
                continue
            number = 0 if results[0] is not None else 1
            result, other = results[number], both[1 - number]
            assert result is not None
            found: Match | Refused
            try:
                if (trouble := more_than_a_sum(node)) is not None:
                    raise Refused(*trouble)
                if results[1 - number] is not None:
                    raise Refused("NP502", "Both addends are results of norms.")
                top = whole and node is expression
                found = self._match(both[number], top, result, other, body, index, loop)
            except Refused as refused:
                found = refused
            self.sums.append(Sum(node, self.function.name, ast.unparse(result.call.func), found))

    def _result(self, side: ast.expr, before: list[Sequence[ast.stmt]]) -> _Result | None:
        """The norm whose result an operand is; None where it is none."""
        if isinstance(side, ast.Call):
            if self._is_norm(side.func):
                return _Result(side)
            inner = side.func.value if isinstance(side.func, ast.Attribute) else None
            return _wrap(self._result(inner, before)) if inner is not None else None
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult | ast.Div):
            for part in (side.left, side.right):
                if (found := self._result(part, before)) is not None:
                    return _wrap(found)
            return None
        if isinstance(side, ast.UnaryOp):
            return _wrap(self._result(side.operand, before))
        if isinstance(side, ast.Subscript):
            return _wrap(self._result(side.value, before))
        if isinstance(side, ast.IfExp):
            found = self._result(side.body, before) or self._result(side.orelse, before)
            return None if found is None else _Result(found.call, found.statement, branch=True)
        return self._named(side.id, before) if isinstance(side, ast.Name) else None

    def _is_norm(self, function: ast.expr) -> bool:
        """Whether a call is one of a norm, by the name of either or of what built it."""
        if is_norm(function):
            return True
        return (
            self.owner is not None
            and isinstance(function, ast.Attribute)
            and function.attr in self.owner.named
            and isinstance(function.value, ast.Name)
        )

    def _named(self, name: str, before: list[Sequence[ast.stmt]]) -> _Result | None:
        for depth, block in enumerate(reversed(before)):
            for place in range(len(block) - 1, -1, -1):
                statement = block[place]
                if name not in self._stored(statement):
                    continue
                seen = [*before[: len(before) - depth - 1], block[:place]]
                return self._from_statement(name, statement, seen, here=depth == 0)
        return None

    def _stored(self, statement: ast.stmt) -> set[str]:
        if id(statement) not in self.stored:
            self.stored[id(statement)] = {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            }
        return self.stored[id(statement)]

    def _from_statement(
        self, name: str, statement: ast.stmt, before: list[Sequence[ast.stmt]], *, here: bool
    ) -> _Result | None:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found = self._result(statement.value, before)
            if found is None:
                return None
            place = statement if found.statement is None else found.statement
            changed = found.wrapped or found.statement is not None
            return _Result(found.call, place, changed, found.branch or not here)
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            found = self._result(statement.value, before)
            if found is None or found.statement is not None:
                return _wrap(found)
            return _Result(found.call, statement, found.wrapped, found.branch or not here)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Mult | ast.Div):
            return _wrap(self._named(name, before) or self._result(statement.value, before))
        for inner in blocks(statement):
            found = self._named(name, [*before, inner])
            if found is not None:
                return _Result(found.call, found.statement, found.wrapped, branch=True)
        return None

    def _match(
        self,
        addend: ast.expr,
        top: bool,
        result: _Result,
        other: ast.expr,
        body: Sequence[ast.stmt],
        index: int,
        loop: bool,
    ) -> Match:
        if result.branch and not isinstance(addend, ast.BinOp):
            name = ast.unparse(result.call.func)
            raise Refused("NP505", f"Whether {name} was applied depends on a branch.")
        if result.wrapped:
            text = ast.unparse(addend)
            raise Refused("NP502", f"What is added, {text}, is not the norm's own result.")
        statement = body[index]
        first = self._standard(result.call)
        if isinstance(statement, ast.Return) and top:
            raise _leaves(statement.lineno)
        if not (
            top
            and isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            raise Refused("NP502", "The sum is only a part of what is computed there.")
        if not isinstance(other, ast.Name):
            raise Refused("NP505", "The other addend is computed in the sum itself.")
        total = statement.targets[0].id
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(result.call.args[0])):
            raise Refused("NP505", "A name is given inside of what the norm is called with.")
        start = self._start(result, addend, total, body, index, loop)
        holders, at = [total], index + 1
        while at < len(body) and (copy := copied_to(body[at], holders)) is not None:
            holders.append(copy)
            at += 1
        if at == len(body):
            raise self._end_of_block(body, total, loop)
        end = body[at]
        second, call, kept = self._second(end, holders)
        target = name_of(end)
        if kept and (target not in holders or self._kept_reads(end, target, call)):
            target = fresh("normed", self.function)
        argument = call.args[0]
        needed = [
            holder
            for holder in dict.fromkeys(holders)
            if holder != target and self._read(holder, end, loop, argument, or_in=True)
        ]
        sum_name, *copies = needed or [fresh("_", self.function)]
        assert target is not None
        return Match(
            first,
            second,
            result.call.args[0],
            other,
            start,
            end,
            (target, sum_name),
            tuple(copies),
            call if kept else None,
        )

    def _start(
        self,
        result: _Result,
        addend: ast.expr,
        total: str,
        body: Sequence[ast.stmt],
        index: int,
        loop: bool,
    ) -> ast.stmt:
        """The first statement of the place: that of the first norm, right before the sum."""
        if result.statement is None:
            return body[index]
        if index == 0 or body[index - 1] is not result.statement:
            raise Refused(
                "NP505",
                f"Other code stands between the norm (line {result.statement.lineno}) and the sum.",
            )
        if not isinstance(result.statement, ast.Assign):
            line = result.statement.lineno
            raise Refused("NP505", f"Line {line} annotates the name of the norm's result.")
        name = result.statement.targets[0]
        assert isinstance(name, ast.Name)
        if len(result.statement.targets) > 1 or (
            name.id != total and self._read(name.id, result.statement, loop, addend, or_in=False)
        ):
            raise Refused("NP505", f"The norm's own result, {name.id}, is read elsewhere too.")
        return result.statement

    def _standard(self, call: ast.Call) -> str:
        """The attribute of ``self`` that holds the called norm, a standard layer in every case."""
        function, owner = call.func, self.owner
        text = ast.unparse(function)
        own = self.function.args.args[0].arg if self.function.args.args else None
        if (
            owner is None
            or not isinstance(function, ast.Attribute)
            or not isinstance(function.value, ast.Name)
            or function.value.id != own
        ):
            raise Refused("NP504", f"{text} is no norm that its own class builds.")
        if function.attr not in owner.held:
            reason = owner.others.get(function.attr, f"{text} is not built in this class")
            raise Refused("NP504", f"{reason}.")
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            raise Refused("NP504", f"{text} is called with more than its input.")
        return function.attr

    def _end_of_block(self, body: Sequence[ast.stmt], total: str, loop: bool) -> Refused:
        if body is not self.function.body and not loop:
            return Refused("NP505", f"A branch ends before {total} reaches a norm.")
        return Refused("NP503", f"No norm of {total} follows in this function.")

    def _second(self, end: ast.stmt, holders: Sequence[str]) -> tuple[str, ast.Call, bool]:
        """The second norm, its call, and whether ``end`` does more than name its result.

        Raises Refused where the statement after the sum does not begin with a norm of it.
        """
        values = [value for value, _ in expressions(end)]
        calls = [call for value in values for call in calls_in(value)]
        norms = [call for call in calls if self._is_norm(call.func) and reads_one_of(call, holders)]
        if not norms and isinstance(end, ast.Return) and returned(end) & set(holders):
            raise _leaves(end.lineno)
        if not norms and any(is_arithmetic(value, holders) for value in values):
            raise Refused("NP502", f"Line {end.lineno} changes the sum before a norm can take it.")
        if not norms:
            raise Refused("NP503", f"Line {end.lineno} follows the sum, and is no norm of it.")
        call = norms[0]
        second = self._standard(call)
        if isinstance(end, ast.Assign) and end.value is call and name_of(end) is not None:
            return second, call, False
        if len(norms) > 1 or calls[0] is not call or not isinstance(end, ast.Assign | ast.Return):
            raise Refused(
                "NP505", f"Line {end.lineno} computes something else before the second norm."
            )
        for node in ast.walk(end):
            if isinstance(node, _UNSURE) and any(inner is call for inner in ast.walk(node)):
                raise Refused("NP505", f"Line {end.lineno} applies the second norm conditionally.")
        return second, call, True

    def _kept_reads(self, end: ast.stmt, name: str | None, call: ast.Call) -> bool:
        """Whether ``end`` needs what ``name`` holds beside the norm of it."""
        return any(
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and node is not call.args[0]
            for node in ast.walk(end)
        )

    def _read(
        self, name: str, after: ast.stmt, loop: bool, exempt: ast.expr, *, or_in: bool
    ) -> bool:
        """Whether ``name`` may be needed later than ``after`` (anywhere, in a loop).

        exempt: a place in which it is read and which goes. or_in: ``after`` itself counts too.
        """
        nested = {
            id(inner)
            for node in ast.walk(self.function)
            if isinstance(node, Function | ast.Lambda) and node is not self.function
            for inner in ast.walk(node)
        }
        return leaves_by_name(self.function, name) or any(
            node is not exempt
            and (loop or id(node) in nested or is_behind(node, after, or_in=or_in))
            for node in needed_names(self.function, name)
        )


def _leaves(line: int) -> Refused:
    return Refused(
        "NP506",
        f"The sum leaves the function (line {line}): the next norm is another module's, and to "
        "chain them would change what the layer hands on to pipeline parallelism and to auxiliary "
        "hidden states.",
    )


def _wrap(found: _Result | None) -> _Result | None:
    return found and _Result(found.call, found.statement, True, found.branch)
