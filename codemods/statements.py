"""What a statement of a norm class is called, what it asks and what it leaves behind."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from normport.codemods.nodes import walk
from normport.codemods.values import Items, Op, Source, Tensor, Unknown, Value, Weight


def described(node: ast.stmt) -> str:
    """What a statement is, for a sentence."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return f"the function {node.name}"
        case ast.ClassDef():
            return f"the class {node.name}"
        case ast.Import() | ast.ImportFrom():
            return "an import"
    word = type(node).__name__.lower().removeprefix("async")
    return f"a {word.removesuffix('star')} statement"


def asks_for_argument(test: ast.expr, env: Mapping[str, Value], *, absent: bool = False) -> bool:
    """Whether ``argument is not None`` is asked of what a construction passes: without a size
    neither the local weight nor the standard one can be made.

    absent: ``argument is None`` is what is looked for.
    """
    kind = ast.Is if absent else ast.IsNot
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[asked], comparators=[other]):
            none = isinstance(other, ast.Constant) and other.value is None
            return none and isinstance(asked, kind) and isinstance(env.get(name), Source)
    return False


def either(why: str, values: Sequence[Value | None]) -> Value:
    """One of ``values``, it is not known which: never a value that a norm is read from."""
    tensors = tuple(value for value in values if isinstance(value, Tensor | Items))
    return Op("other", f"call:{why}", tensors) if tensors else Unknown(why)


def named(value: Value, name: str) -> Value:
    """Give a parameter the attribute name it is stored under."""
    if isinstance(value, Weight) and not value.name:
        return Weight(value.dtype, name, value.shape, value.initial, value.buffer)
    return value


def stored_attributes(node: ast.AST) -> set[str]:
    """Attributes of self that a statement may set, also through register_parameter."""
    found = {
        n.attr for n in walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    for call in walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("register_parameter", "register_buffer")
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ):
            found.add(str(call.args[0].value))
    return found
