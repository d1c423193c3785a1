"""Writes the findings of norms that are found but not converted."""

from __future__ import annotations

import ast

from normport.codemods.describe import Description
from normport.codemods.flow import Step
from normport.codemods.model import Computes, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.places import Place
from normport.codemods.products import Product


def refuse(
    module: ModuleInfo,
    node: ast.expr | ast.stmt,
    code: str,
    norm: str,
    why: str,
    computes: Computes | None = None,
) -> Site:
    """A refusal at ``node``; ``why`` is a clause about ``norm``."""
    return stated(module, node, code, norm, f"{norm}: {why}.", computes)


def stated(
    module: ModuleInfo,
    node: ast.expr | ast.stmt,
    code: str,
    norm: str,
    reason: str,
    computes: Computes | None = None,
) -> Site:
    """A refusal at ``node``; ``reason`` is the whole sentence."""
    return Site(
        line=node.lineno,
        column=module.column(node),
        code=code,
        norm=norm,
        attribute=None,
        computes=computes,
        verdict="refuse",
        target=None,
        reason=reason,
    )


def layer(computes: Computes) -> str:
    """The standard layer that computes what ``computes`` says, as a maintainer would write it."""
    if computes.weight == "offset" and computes.offset == 1.0:
        return "GemmaRMSNorm"
    return "RMSNorm(has_weight=False)" if computes.weight == "none" else "RMSNorm"


def for_class(
    module: ModuleInfo,
    node: ast.expr | ast.stmt,
    place: Place,
    entry: Place,
    read: Description,
) -> Site:
    """A class that stands somewhere else, or computes somewhere else, than where we rewrite."""
    code, why = read.code, read.why
    if code is None or why is None:
        if place.outer is not None:
            kind = "class" if place.outer.is_class else "function"
            code = "NP234"
            why = f"it is defined inside the {kind} {place.outer.node.name}; move it to the top"
        elif place.conditional:
            code, why = "NP234", "it is defined under a condition; define it once, at the top"
        elif entry.node.name == "forward":
            code, why = _forward(place, entry.node)
        else:
            code = "NP235"
            why = (
                f"it normalises in {entry.node.name}, which something else than nn.Module may "
                f"dispatch; declare {layer(read.computes)} in its place"
            )
    return refuse(module, node, code, place.node.name, why, read.computes)


def for_kernel_class(
    module: ModuleInfo, node: ast.expr | ast.stmt, place: Place, kernel: str, extends: bool
) -> Site:
    """A class that leaves its computation to a function of another file.

    extends: it inherits from a standard layer.
    """
    if extends:
        why = "it inherits from a standard layer and computes something else in its forward"
        return refuse(module, node, "NP239", place.node.name, why)
    why = (
        f"it calls {kernel}, whose computation is not read here; declare RMSNorm or GemmaRMSNorm "
        "in its place if that is what the kernel computes"
    )
    return refuse(module, node, "NP238", place.node.name, why)


def _forward(place: Place, node: ast.AST) -> tuple[str, str]:
    """Why a forward at the top of the file was not read to the end."""
    init = next((inner.node for inner in place.inner if inner.node.name == "__init__"), None)
    for method in (init, node):
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if method.args.posonlyargs or not method.args.args:
            return "NP215", (
                f"its {method.name} has positional-only parameters or no self; declare plain ones"
            )
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    needed = len(node.args.args) - len(node.args.defaults) - 1
    if needed > 1:
        return "NP216", f"its forward needs {needed} arguments"
    return "NP210", "what it computes depends on branches or calls that are not followed"


def for_function(
    module: ModuleInfo, node: ast.expr | ast.stmt, place: Place, read: Description
) -> Site:
    """A call of a function that normalises, or the function."""
    code, why = read.code, read.why
    if code is None or why is None:
        code = "NP230"
        why = (
            "a function has no layer that vLLM could dispatch; build "
            f"{layer(read.computes)} in the constructor and call that here"
        )
    return refuse(module, node, code, place.name, why, read.computes)


def for_inline(
    module: ModuleInfo, place: Place | None, found: Product | Step, read: Description | None
) -> Site:
    """A norm in the middle of other code; without ``read``, its root alone."""
    norm = place.name if place is not None else "the module"
    step = found.step if isinstance(found, Product) else found
    node = _outermost(module, step.node)
    if read is None or (isinstance(found, Product) and found.how == "other"):
        why = (
            "the root of a mean of squares multiplies something else than what was squared, so "
            "no standard layer can take its place"
            if read is not None
            else "a root of a mean of squares is taken and what it multiplies is not seen"
        )
        return refuse(module, node, "NP237", norm, why, read.computes if read else None)
    code, why_not = read.code, read.why
    if code is None or why_not is None:
        code = "NP231"
        why_not = (
            "the norm is written inline, where vLLM cannot dispatch it; build "
            f"{layer(read.computes)} in the constructor and call that here"
        )
    return refuse(module, node, code, norm, why_not, read.computes)


def _outermost(module: ModuleInfo, node: ast.expr) -> ast.expr:
    """The whole norm that ``node`` is a part of, inside its statement."""
    while True:
        parent = module.parents.get(node)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
            node = parent
        elif isinstance(parent, ast.Attribute) and parent.attr in _CASTS:
            call = module.parents.get(parent)
            if not (isinstance(call, ast.Call) and call.func is parent):
                return node
            node = call
        else:
            return node


_CASTS = {"to", "type_as", "float", "half", "bfloat16", "type"}
