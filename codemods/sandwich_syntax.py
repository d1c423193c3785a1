"""What the matcher of sandwich norms asks about statements and expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from normport.codemods.sandwich_class import OP_ATTRIBUTE, Function

_NOT_A_LAYER = re.compile(r"normali[sz]|norms?_?(?:eps|factor|type|dim|size|cfg|config)", re.I)
_LIBRARIES = {"torch", "F", "np", "numpy", "linalg", "math"}


def may_match(function: Function) -> bool:
    """Whether a function adds anything to the result of a method of ``self`` or of a norm."""
    adds = calls = False
    for node in ast.walk(function):
        if isinstance(node, ast.Add):
            adds = True
        elif isinstance(node, ast.Call):
            adds = adds or addends(node) is not None
            calls = calls or is_norm(node.func) or isinstance(node.func, ast.Attribute)
    return adds and calls


def is_behind(node: ast.Name, statement: ast.stmt, *, or_in: bool) -> bool:
    """Whether a name stands behind a statement; or_in: in it counts too."""
    if any(inner is node for inner in ast.walk(statement)):
        return or_in
    return (node.lineno, node.col_offset) > (statement.lineno, statement.col_offset)


def needed_names(function: Function, name: str) -> Iterator[ast.Name]:
    """Where a function needs that ``name`` has its value: reads, ``name += ...``, ``del name``."""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.target.id == name:
                yield node.target
        elif isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            yield node


def leaves_by_name(function: Function, name: str) -> bool:
    """Whether ``name`` is a variable of the module or of a function around this one."""
    return any(
        isinstance(node, ast.Global | ast.Nonlocal) and name in node.names
        for node in ast.walk(function)
    )


def name_of(statement: ast.stmt) -> str | None:
    """The name of ``name = ...``, if that is the only target."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def is_arithmetic(value: ast.AST, names: Sequence[str]) -> bool:
    """Whether an expression adds to one of ``names``, multiplies it or the like."""
    return isinstance(value, ast.BinOp | ast.AugAssign) and any(
        isinstance(node, ast.Name) and node.id in names for node in ast.walk(value)
    )


def reads_one_of(call: ast.Call, names: Sequence[str]) -> bool:
    first = call.args[0] if len(call.args) == 1 else None
    return isinstance(first, ast.Name) and first.id in names


def addends(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What a sum adds, as ``+``, ``+=``, ``torch.add(a, b)``, ``a.add(b)`` or ``a.add_(b)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return node.left, node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target, node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in ("add", "add_"):
        return None
    holder = node.func.value
    of_torch = isinstance(holder, ast.Name) and holder.id == "torch"
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    parts = [*([] if of_torch else [holder]), *node.args]
    parts += [named[name] for name in ("input", "other") if name in named]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def more_than_a_sum(node: ast.AST) -> tuple[str, str] | None:
    """The code and the reason where a call does more than give a new sum; None: it does not."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr == "add_" or any(keyword.arg == "out" for keyword in node.keywords):
        return "NP505", f"{ast.unparse(node.func)} writes the sum into a tensor that others hold."
    if node.keywords:
        return "NP502", f"{ast.unparse(node.func)} is called with more than its two addends."
    return None


def is_norm(function: ast.expr) -> bool:
    """Whether a call is one of a norm layer, as far as its name tells."""
    name = function
    if isinstance(name, ast.Subscript):
        name = name.value
    if isinstance(name, ast.Attribute):
        root = name.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in _LIBRARIES:
            return False
        text = name.attr
    elif isinstance(name, ast.Name):
        text = name.id
    else:
        return False
    return "norm" in text.lower() and not _NOT_A_LAYER.search(text) and text != OP_ATTRIBUTE


def expressions(statement: ast.stmt) -> Iterator[tuple[ast.expr | ast.AugAssign, bool]]:
    """A statement's own expressions, and whether each is all that it computes."""
    if isinstance(statement, ast.AugAssign):
        yield statement, True
    elif isinstance(statement, ast.Assign | ast.Return | ast.Expr | ast.AnnAssign):
        if statement.value is not None:
            yield statement.value, True
    elif not isinstance(statement, Function | ast.ClassDef):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.expr):
                yield child, False
            elif isinstance(child, ast.withitem):
                yield child.context_expr, False


def blocks(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """The blocks of statements inside a statement."""
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield part.body


def copied_to(statement: ast.stmt, holders: Sequence[str]) -> str | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
        return name_of(statement) if statement.value.id in holders else None
    return None


def returned(statement: ast.Return) -> set[str]:
    value = statement.value
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def calls_in(expression: ast.AST) -> Iterator[ast.Call]:
    """The calls of an expression in the order in which they are made."""
    for child in ast.iter_child_nodes(expression):
        yield from calls_in(child)
    if isinstance(expression, ast.Call):
        yield expression


def fresh(name: str, function: Function) -> str:
    taken = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    while name in taken:
        name += "_"
    return name
