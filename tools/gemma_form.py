"""Whether a class computes the Gemma norm that the XPU kernels compute.

A backport that only looked for names would put the kernels in place of whatever a changed
``forward_native`` does. So the method is read: what it returns without and with a residual, its
local variables replaced by what they stand for. Layout, comments, annotations and names do not
matter, nor does the order of the two branches; a statement of any other kind does.
"""

from __future__ import annotations

import ast
import copy

_WEIGHT = "(self.weight.float() + 1)"
_PLAIN = f"ir.ops.rms_norm(x, {_WEIGHT}, self.variance_epsilon)"
_ADDING = f"ir.ops.fused_add_rms_norm(x, residual, {_WEIGHT}, self.variance_epsilon)"
_STANDARD = (
    "ir.ops.rms_norm(x, self.weight.data if self.pass_weight else None, self.variance_epsilon, "
    "self.variance_size_override)"
)


def computes_gemma_norm(norm: ast.ClassDef) -> bool:
    """Whether ``forward_native`` is the norm over the IR's ops with ``weight + 1`` in float32."""
    return _returns(norm, _PLAIN, False) and _returns(norm, _ADDING, True)


def computes_rms_norm(norm: ast.ClassDef) -> bool:
    """Whether ``forward_native`` is, without a residual, the IR's op on the layer's attributes."""
    return _returns(norm, _STANDARD, False)


def _returns(norm: ast.ClassDef, expected: str, adding: bool) -> bool:
    """Whether ``forward_native`` returns the expression, with a residual or without one."""
    methods = [node for node in norm.body if _defines(node, "forward_native")]
    if len(methods) != 1 or not isinstance(methods[0], ast.FunctionDef):
        return False
    method = methods[0]
    names = _parameters(method)
    if names is None or method.decorator_list:
        return False
    known: dict[str, ast.expr] = {
        name: ast.Name(meaning, ast.Load())
        for name, meaning in zip(names, ("self", "x", "residual"), strict=True)
    }
    returned = _returned(method.body, _Inline(known, adding))
    return returned is not None and _form(returned) == _form(ast.parse(expected, mode="eval").body)


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store)
        for part in ast.walk(node)
    )


def _parameters(method: ast.FunctionDef) -> tuple[str, str, str] | None:
    """The names of ``self, x, residual=None``; None for any other parameters."""
    given = method.args
    names = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
    if given.vararg or given.kwarg or given.kwonlyargs or len(names) != 3:
        return None
    if [ast.unparse(default) for default in given.defaults] != ["None"]:
        return None
    return names[0], names[1], names[2]


def _returned(body: list[ast.stmt], inline: _Inline) -> ast.expr | None:
    """What is returned, in terms of the parameters; None where that is not plain."""
    for number, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            return inline(statement.value) if statement.value is not None else None
        if isinstance(statement, ast.If):
            taken = inline.holds(statement.test)
            if taken is None:
                return None
            branch = statement.body if taken else statement.orelse
            return _returned([*branch, *body[number + 1 :]], inline)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = inline(statement.value)
            for target in targets:
                if not isinstance(target, ast.Name):
                    return None
                inline.known[target.id] = value
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return None
    return None


class _Inline(ast.NodeTransformer):
    """Puts what is known of a name in its place, and of two branches the one that is taken.

    known: what names stand for.
    adding: whether there is a residual.
    """

    def __init__(self, known: dict[str, ast.expr], adding: bool) -> None:
        self.known = known
        self.adding = adding

    def __call__(self, expression: ast.expr) -> ast.expr:
        result: ast.expr = self.visit(copy.deepcopy(expression))
        return result

    def holds(self, test: ast.expr) -> bool | None:
        """Whether a test of the residual for None holds; None for any other condition."""
        form = ast.unparse(self(test))
        return {"residual is None": not self.adding, "residual is not None": self.adding}.get(form)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.known.get(node.id, node))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        taken = self.holds(node.test)
        if taken is None:
            return self.generic_visit(node)
        return self(node.body if taken else node.orelse)


class _Plain(ast.NodeTransformer):
    """One spelling for what can be written in several ways with the same result."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        # The sum of a float32 tensor and 1 is that of the tensor and 1.0.
        return ast.Constant(float(node.value)) if type(node.value) is int else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
            node.left, node.right = node.right, node.left
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if ast.unparse(node).endswith((".to(torch.float32)", ".to(torch.float)")):
            assert isinstance(node.func, ast.Attribute)
            return ast.Call(ast.Attribute(node.func.value, "float", ast.Load()), [], [])
        return node


def _form(expression: ast.expr) -> str:
    return ast.dump(_Plain().visit(copy.deepcopy(expression)))
