"""How sites call their norm, as far as it matters to what the norm computes.

Read off each call: how many dimensions its input has and what dtype it was converted to, where the
lines of the function say so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from normport.codemods.model import CallForm
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk

_PLAIN = "norm(x)"
_CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "float32": "float32", "float64": "float64", "float16": "float16",
}  # fmt: skip
_ANY_DTYPE = ("float32", "float16", "bfloat16")
# Methods and functions of torch whose result has the rank of their first argument.
_KEEP_RANK = {
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone", "detach",
    "transpose", "cuda", "cpu", "add", "mul", "silu", "gelu", "relu", "cat", "dropout",
}  # fmt: skip
_STEPS = 6
"""How many assignments are followed back."""


def input_forms(
    module: ModuleInfo, calls: Iterable[ast.Call], first: str, forms: Sequence[CallForm] = ()
) -> tuple[CallForm, ...]:
    """How ``calls`` call their norm, with what is known of the input.

    first: the name of the norm's input, by which a call may pass it. forms: what the calls are
    like apart from the input; none if all are plain.
    """
    ranks: set[int | None] = set()
    dtypes: set[str] = set()
    for call in calls:
        argument = _input(call, first)
        if argument is None:
            continue
        reader = _Reader(module, call)
        rank = reader.rank(argument)
        ranks.add(rank if rank is not None and 1 <= rank <= 5 else None)
        dtypes |= reader.dtypes(argument)
    plain = (CallForm(_PLAIN),)
    found = [
        replace(form, name=_name(form, rank, dtype), rank=rank, dtype=dtype)
        for form in forms or plain
        for rank in sorted(ranks or {None}, key=lambda rank: rank or 0)
        for dtype in (None, *sorted(dtypes))
    ]
    return () if found == [*plain] else tuple(found)


def _name(form: CallForm, rank: int | None, dtype: str | None) -> str:
    words = [f"{rank}-D input"] if rank is not None else []
    words += [f"{dtype} input"] if dtype is not None else []
    return ", ".join([form.name, *words] if form.old != _PLAIN or not words else words)


def _input(call: ast.Call, first: str) -> ast.expr | None:
    """What the call passes as the norm's input."""
    if call.args:
        return None if isinstance(call.args[0], ast.Starred) else call.args[0]
    return next((keyword.value for keyword in call.keywords if keyword.arg == first), None)


class _Reader:
    """Reads rank and dtype of an expression off the function that a call stands in."""

    def __init__(self, module: ModuleInfo, call: ast.Call) -> None:
        self.function = module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef)
        self.line = call.lineno

    def _assigned(self, name: str) -> list[tuple[ast.expr, bool]]:
        """What is assigned to ``name`` above the call; and whether it is a part of a tuple."""
        found: list[tuple[ast.expr, bool]] = []
        for part in walk(self.function) if self.function is not None else ():
            if not isinstance(part, ast.Assign) or part.lineno >= self.line:
                continue
            for target in part.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    found.append((part.value, False))
                elif isinstance(target, ast.Tuple) and any(
                    isinstance(item, ast.Name) and item.id == name for item in target.elts
                ):
                    found.append((part.value, True))
        return sorted(found, key=lambda pair: pair[0].lineno)

    def rank(self, node: ast.expr, steps: int = _STEPS) -> int | None:
        """The number of dimensions; None where the lines do not say it."""
        if isinstance(node, ast.Name):
            known = self._assigned(node.id) if steps else []
            if not known:
                return None
            # The last assignment is the one that reaches the call, unless branches part them.
            value, from_tuple = known[-1]
            self_line, self.line = self.line, value.lineno
            try:
                if from_tuple and not _is_call(value, {"split", "chunk", "tensor_split"}):
                    return None
                return self.rank(value, steps - 1)
            finally:
                self.line = self_line
        if isinstance(node, ast.BinOp):
            sides = self.rank(node.left, steps), self.rank(node.right, steps)
            return max((side for side in sides if side is not None), default=None)
        if isinstance(node, ast.Call):
            return self._rank_of_call(node, steps)
        return None

    def _rank_of_call(self, call: ast.Call, steps: int) -> int | None:
        if not isinstance(call.func, ast.Attribute):
            return None
        of_torch = _is_torch(call.func.value)
        operand = call.func.value if not of_torch else (call.args[0] if call.args else None)
        arguments = call.args[1:] if of_torch else call.args
        if operand is None:
            return None
        if isinstance(operand, ast.List | ast.Tuple):
            operand = operand.elts[0] if operand.elts else call
        name = call.func.attr
        if name in ("view", "reshape"):
            return self._count(arguments, steps)
        if name == "permute":
            return self._count(arguments, steps)
        if name == "unflatten" and len(arguments) == 2:
            sizes = arguments[1]
            below = self.rank(operand, steps)
            if isinstance(sizes, ast.Tuple | ast.List):
                return (2 if below is None else below) - 1 + len(sizes.elts)
            return None
        below = self.rank(operand, steps)
        if below is None:
            return 1 if name == "flatten" and not arguments else None
        if name == "unsqueeze":
            return below + 1
        if name == "flatten":
            return 1 if not arguments else None
        return below if name in _KEEP_RANK | {"split", "chunk", "tensor_split"} else None

    def _count(self, sizes: list[ast.expr], steps: int) -> int | None:
        """How many dimensions the arguments of a view name."""
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        elif len(sizes) == 1 and not _is_minus_one(sizes[0]):
            return None
        count = 0
        for size in sizes:
            if not isinstance(size, ast.Starred):
                count += 1
                continue
            leading = self._leading(size.value, steps)
            if leading is None:
                return None
            count += leading
        return count

    def _leading(self, node: ast.expr, steps: int) -> int | None:
        """The length of ``y.shape[:-1]``: a token and its features have two dimensions."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
            return None
        cut, shape = node.slice, node.value
        if isinstance(shape, ast.Call):  # y.size()
            shape = shape.func
        if not isinstance(shape, ast.Attribute) or shape.attr not in ("shape", "size"):
            return None
        if cut.lower is not None or cut.step is not None:
            return None
        end = spelled(cut.upper) if cut.upper is not None else "0"
        if not end.lstrip("-").isdigit():
            return None
        whole = self.rank(shape.value, steps)
        whole = 2 if whole is None else whole
        return int(end) if int(end) > 0 else whole + int(end)

    def dtypes(self, node: ast.expr, steps: int = _STEPS) -> set[str]:
        """The dtypes that the lines may have converted the expression to."""
        if isinstance(node, ast.Name):
            found: set[str] = set()
            known = self._assigned(node.id) if steps else []
            for value, _ in known[-1:]:
                self_line, self.line = self.line, value.lineno
                found |= self.dtypes(value, steps - 1)
                self.line = self_line
            return found
        if isinstance(node, ast.BinOp):
            return self.dtypes(node.left, steps) | self.dtypes(node.right, steps)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return set()
        name = node.func.attr
        if name in _CASTS and not node.args:
            return {_CASTS[name]}
        if name in ("to", "type"):
            return set().union(*(_named_dtype(argument) for argument in _values(node)))
        if name == "type_as":
            return set(_ANY_DTYPE)
        operand = node.func.value
        if _is_torch(operand):
            given = node.args[0] if node.args else node
            if isinstance(given, ast.List | ast.Tuple):
                return set().union(*(self.dtypes(item, steps) for item in given.elts))
            return self.dtypes(given, steps) if given is not node else set()
        return self.dtypes(operand, steps)


def _values(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args[:2]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "dtype")


def _named_dtype(node: ast.expr) -> set[str]:
    """What ``.to(node)`` may convert to; nothing where ``node`` is a device."""
    text = spelled(node)
    if isinstance(node, ast.Constant) or "device" in text:
        return set()
    if text.startswith("torch."):
        name = text.removeprefix("torch.")
        return {_CASTS.get(name, name)} if name in {*_CASTS, "bfloat16"} else set()
    return set(_ANY_DTYPE)


def _is_torch(node: ast.expr) -> bool:
    return spelled(node) in ("torch", "F", "nn.functional", "torch.nn.functional")


def _is_call(node: ast.expr, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


def _is_minus_one(node: ast.expr) -> bool:
    return spelled(node) == "-1"
