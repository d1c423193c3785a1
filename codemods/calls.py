"""The calls of a norm: which of them mean the same to a standard layer, and which are rewritten.

The standard layers take the input, and a residual that they add to it before they normalise;
only then they return a tuple. A local class may have another name for the input, take arguments
that it ignores, or hand its second argument through. Where the code says so, the call can say the
same to the standard layer; anything else is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from normport.codemods.checks import Refused
from normport.codemods.model import CallForm, Edit
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.outcomes import Outcome
from normport.codemods.recognise import NotStandard
from normport.codemods.values import Const, Input, Value

ReadCall = Callable[[Sequence[Value], Mapping[str, Value]], Outcome | NotStandard | None]
"""Evaluates the class's forward on the positional and keyword arguments of a call."""


@dataclass(frozen=True)
class CallChange:
    """One call, as it is for the standard layer.

    outcome: what the class does for it. edits: none where the call stays.
    form: the call of the old and of the new norm; None for the plain call.
    """

    outcome: Outcome
    edits: tuple[Edit, ...] = ()
    form: CallForm | None = None


@dataclass(frozen=True)
class _Argument:
    """One argument of a call: the parameter it is for (by position in forward), and its words in
    the proof."""

    node: ast.expr
    position: int
    value: Value
    word: str


class CallReader:
    """Reads the calls of one norm.

    module: the file of the calls. forward: the norm's method. read: evaluates it.
    """

    def __init__(self, module: ModuleInfo, forward: ast.FunctionDef, read: ReadCall) -> None:
        self.module = module
        self.forward = forward
        self.read = read

    def change(self, call: ast.Call) -> CallChange:
        """What the call becomes; raises Refused."""
        text = f"`{spelled(call)}` in line {call.lineno}"
        arguments = self._arguments(call)
        inputs = [a for a in arguments if a.position == 0]
        if len(inputs) != 1:
            raise Refused("NP208", f"{text} does not pass the input first; pass it so")
        positional = [a.value for a in arguments[: len(call.args)]]
        keywords = {
            k.arg: a.value
            for k, a in zip(call.keywords, arguments[len(call.args) :], strict=True)
            if k.arg
        }
        found = self.read(positional, keywords)
        if not isinstance(found, Outcome):
            more = len(call.args) + len(call.keywords) > 1
            what = "passes more than the input" if more else "is not read"
            why = found.why if isinstance(found, NotStandard) else "the class does not take it so"
            raise Refused("NP208", f"{text} {what}: {why.partition('; ')[0]}")
        rest = [a for a in arguments if a.position != 0]
        second = next(
            (a for a in rest if found.second and a.position == found.second.position), None
        )
        for argument in rest:
            if not _is_inert(argument.node):
                why = f"`{spelled(argument.node)}` would not be evaluated as it is now"
                raise Refused("NP208", f"{text} cannot be rewritten: {why}; store that first")
        form = _old_form(call, arguments)
        plain = f"{self._text(call.func)}({self._text(inputs[0].node)})"
        if found.kind == "residual":
            return self._residual(call, found, inputs[0].node, second, form)
        if found.kind == "pair":
            return self._pair(call, found, plain, second, form)
        self._check_single(call)
        if _is_plain(call):
            return CallChange(found)
        return CallChange(found, (self._edit(call, plain),), _form(form, "norm(x)"))

    def _arguments(self, call: ast.Call) -> list[_Argument]:
        names = [p.arg for p in self.forward.args.args[1:]]
        order = [*names, *(p.arg for p in self.forward.args.kwonlyargs)]
        found: list[_Argument] = []
        given: list[tuple[ast.expr, int]] = list(zip(call.args, range(len(call.args)), strict=True))
        for keyword in call.keywords:
            place = order.index(keyword.arg) if keyword.arg in order else len(order) + len(given)
            given.append((keyword.value, place))
        spread = any(isinstance(a, ast.Starred) for a in call.args)
        if spread or any(k.arg is None for k in call.keywords):
            text = f"`{spelled(call)}` in line {call.lineno}"
            raise Refused("NP208", f"{text} spreads arguments with * or **; write them out")
        for node, place in given:
            name = order[place] if place < len(order) else ""
            if place and isinstance(node, ast.Constant):
                found.append(_Argument(node, place, Const(node.value), repr(node.value)))
            else:
                value = Input("input", name, place)
                found.append(_Argument(node, place, value, "residual" if place else "x"))
        return found

    def _check_single(self, call: ast.Call) -> None:
        text, where = spelled(call.func), f"in line {call.lineno}"
        outer = self.module.parents[call]
        if isinstance(outer, ast.Assign) and any(
            isinstance(t, ast.Tuple | ast.List) for t in outer.targets
        ):
            raise Refused("NP208", f"the result of `{text}` is unpacked {where}; store it first")
        if isinstance(outer, ast.Subscript) and outer.value is call:
            raise Refused("NP208", f"the result of `{text}` is indexed {where}; store it first")

    def _pair(
        self, call: ast.Call, found: Outcome, plain: str, second: _Argument | None, form: str
    ) -> CallChange:
        """The class hands its second argument through: the caller keeps it instead."""
        text = self._text(second.node) if second is not None else "None"
        new_form = f"(norm(x), {second.word if second is not None else None})"
        if found.second is not None and second is None:
            text = f"`{spelled(call)}` in line {call.lineno}"
            raise Refused("NP208", f"{text} gets back a default of the class's forward; pass it")
        outer = self.module.parents[call]
        if isinstance(outer, ast.Subscript) and outer.value is call:
            index = outer.slice
            if isinstance(index, ast.Constant) and index.value == 0:
                return CallChange(found, (self._edit(outer, plain),), _form(form, new_form))
        elif isinstance(outer, ast.Assign) and len(outer.targets) == 1 and outer.value is call:
            target = outer.targets[0]
            if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                if self._is_kept(target.elts[1], text):
                    edits = (
                        self._edit(target, self._text(target.elts[0])),
                        self._edit(call, plain),
                    )
                    return CallChange(found, edits, _form(form, new_form))
                edit = self._edit(call, f"{plain}, {text}")
                return CallChange(found, (edit,), _form(form, new_form))
        return CallChange(found, (self._edit(call, f"({plain}, {text})"),), _form(form, new_form))

    def _is_kept(self, target: ast.expr, second: str) -> bool:
        """Whether the second item is stored where it came from, or where nobody looks."""
        if not isinstance(target, ast.Name):
            return False
        function = self.module.enclosing(target, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
        assert function is not None
        read = any(
            isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)
            for n in walk(function)
        )
        return target.id == second or (target.id == "_" and not read)

    def _residual(
        self,
        call: ast.Call,
        found: Outcome,
        first: ast.expr,
        second: _Argument | None,
        form: str,
    ) -> CallChange:
        """The class adds as the standard layer does, which may write into what it is given."""
        assert second is not None, "only a tensor that the call passes is added"
        text = f"`{spelled(call)}` in line {call.lineno}"
        outer = self.module.parents[call]
        targets: set[str] = set()
        if isinstance(outer, ast.Assign) and len(outer.targets) == 1 and outer.value is call:
            targets = {
                n.id for n in getattr(outer.targets[0], "elts", []) if isinstance(n, ast.Name)
            }
        given = {n.id for n in (first, second.node) if isinstance(n, ast.Name)}
        if len(given) != 2 or not given <= targets:
            why = (
                f"{text} may be carried out in place by the standard layer, and its arguments are "
                "not replaced by its results"
            )
            raise Refused("NP227", why)
        kept = self._kept_elsewhere(call, given)
        if kept is not None:
            why = f"{text} may be carried out in place by the standard layer, and {kept}"
            raise Refused("NP227", why)
        new = f"{self._text(call.func)}({self._text(first)}, {self._text(second.node)})"
        same = len(call.args) == 2 and not call.keywords
        edits = () if same else (self._edit(call, new),)
        return CallChange(found, edits, _form(form, "norm(x, residual)"))

    def _kept_elsewhere(self, call: ast.Call, names: set[str]) -> str | None:
        """Where the function keeps one of the tensors under another name, in so many words."""
        function = self.module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef)
        assert function is not None
        for node in walk(function):
            if not isinstance(node, ast.Name) or node.id not in names:
                continue
            parent = self.module.parents[node]
            stored = isinstance(parent, ast.Call) and _method(parent) in ("append", "add", "extend")
            if stored or isinstance(parent, ast.List | ast.Dict | ast.NamedExpr):
                return f"`{node.id}` is kept in line {node.lineno}"
            if (
                isinstance(parent, ast.Assign)
                and parent.value is node
                and node.lineno < call.lineno
            ):
                targets = {t.id for t in parent.targets if isinstance(t, ast.Name)}
                if len(targets) != len(parent.targets) or not targets <= names:
                    return f"`{node.id}` has another name since line {node.lineno}"
                if not self._replaced(function, node, call):
                    return f"`{node.id}` is both of its arguments since line {node.lineno}"
        return None

    def _replaced(self, function: ast.AST, node: ast.Name, call: ast.Call) -> bool:
        """Whether the name gets another value between its line and the call's."""
        return any(
            isinstance(n, ast.Name)
            and n.id == node.id
            and isinstance(n.ctx, ast.Store)
            and node.lineno < n.lineno < call.lineno
            for n in walk(function)
        )

    def _text(self, node: ast.expr) -> str:
        text = self.module.segment(node)
        return spelled(node) if "\n" in text or "\r" in text else text

    def _edit(self, node: ast.expr, new: str) -> Edit:
        return Edit(node.lineno, self.module.column(node), self.module.segment(node), new)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_plain(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords


def _old_form(call: ast.Call, arguments: Sequence[_Argument]) -> str:
    words = [a.word for a in arguments[: len(call.args)]]
    rest = arguments[len(call.args) :]
    words += [f"{k.arg}={a.word}" for k, a in zip(call.keywords, rest, strict=True)]
    return f"norm({', '.join(words)})"


def _form(old: str, new: str) -> CallForm:
    return CallForm(old, old, new)


def _is_inert(node: ast.expr) -> bool:
    """Whether it makes no difference when, or how often, the expression is evaluated."""
    return all(
        isinstance(part, ast.Name | ast.Attribute | ast.Constant | ast.expr_context)
        for part in walk(node)
    )


def merged(changes: Sequence[CallChange]) -> tuple[tuple[Edit, ...], tuple[CallForm, ...]]:
    """All edits, and each call form once; no forms where all calls are plain. Raises Refused
    where the calls do not agree."""
    first = changes[0].outcome.read
    for change in changes:
        if change.outcome.read != first:
            why = "its calls make it compute different things; call it alike everywhere"
            raise Refused("NP208", why, first.computes)
    edits = tuple(edit for change in changes for edit in change.edits)
    forms = {change.form or CallForm("norm(x)"): None for change in changes}
    return edits, () if list(forms) == [CallForm("norm(x)")] else tuple(forms)
