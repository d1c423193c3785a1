"""Checks that a conversion must pass; each raises ``Refused`` with a code and a clause."""

from __future__ import annotations

import ast
from collections.abc import Collection

from normport.codemods.acts import defining, unread
from normport.codemods.casts import default_dtype, module_cast
from normport.codemods.effects import is_decorated
from normport.codemods.input_dtypes import converted_input
from normport.codemods.model import Computes
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import expression, spelled, walk
from normport.codemods.parameters import dtype_reading, replaced_data
from normport.codemods.uses import Binding
from normport.codemods.values import Const, Source, Unknown, Weight
from normport.codemods.walks import walked_use

_OWN_METHODS = {"__init__", "forward", "extra_repr", "__repr__"}


class Refused(Exception):
    """The site is refused: by which rule, why, and what is known of what it computes."""

    def __init__(self, code: str, why: str, computes: Computes | None = None) -> None:
        self.code = code
        self.why = why
        self.computes = computes


def check_dtypes(module: ModuleInfo, bound: Binding, computes: Computes) -> None:
    """Where the dtypes are what the rules take them for: the run's, and the same for both."""
    if computes.multiply_in == "input dtype":
        line = converted_input(module, bound)
        if line is not None:
            why = (
                "its input, or what that is made of, is converted to another dtype before line "
                f"{line}, and the local class multiplies in the input's dtype, RMSNorm in the "
                "weight's; convert after the norm instead, or leave it"
            )
            raise Refused("NP208", why, computes)
    if computes.weight == "scale" and computes.multiply_in in ("float32", "input dtype"):
        line = module_cast(module)
        if line is not None:
            kind = "float32" if computes.multiply_in == "float32" else "norm's"
            why = (
                f"a module is converted in line {line}, and a {kind} weight with it; build it in "
                "the dtype that it is to have"
            )
            raise Refused("NP222", why, computes)
        line = default_dtype(module)
        if line is not None:
            why = (
                f"torch's default dtype is set in line {line}, and its weight may have that; name "
                "the dtype where it is wanted instead"
            )
            raise Refused("NP222", why, computes)
        replaced = replaced_data(module, bound)
        if replaced is not None:
            text, line = replaced
            why = (
                f"`{text}` in line {line} may give its weight another dtype; copy into the weight "
                "with copy_ instead"
            )
            raise Refused("NP222", why, computes)
    if computes.multiply_in == "float32" and computes.weight_dtype == "run dtype":
        read = dtype_reading(module)
        if read is not None:
            text, line = read
            why = (
                f"`{text}` is read in line {line}, and its weight, which becomes float32, may "
                "tell; take the dtype from the configuration there"
            )
            raise Refused("NP214", why, computes)


def check_class(
    home: ModuleInfo,
    node: ast.ClassDef,
    reached: set[str],
    computes: Computes,
    modules: Collection[ModuleInfo],
) -> None:
    """Whether the class is a plain module.

    home: the file that defines it. reached: its methods that the constructor or forward calls.
    modules: the files whose uses of its methods count.
    """
    if node.decorator_list:
        text = spelled(node.decorator_list[0])
        why = f"it is decorated with @{text}; take that off if nothing needs it, else leave it"
        raise Refused("NP211", why, computes)
    bases = [home.qualified(base) for base in node.bases]
    if bases != ["torch.nn.Module"] or node.keywords:
        text = ", ".join(spelled(base) for base in node.bases) or "nothing"
        why = (
            f"it inherits from {text}, not from nn.Module alone; take the rest away if nothing "
            "needs it, else leave it"
        )
        raise Refused("NP211", why, computes)
    for module in modules:
        walked = walked_use(module, node)
        if walked is not None:
            text, line = walked
            why = (
                f"`{text}` in line {line}, in a walk over all modules, may mean it; ask for the "
                "class that is meant there"
            )
            raise Refused("NP214", why, computes)
        _check_body(module, node, reached, computes)


def _check_body(
    module: ModuleInfo, node: ast.ClassDef, reached: set[str], computes: Computes
) -> None:
    """Nothing but the constructor, forward, what they call, and how it prints."""
    inside = set(walk(node))
    names: list[str] = []
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            names.append(statement.name)
        elif isinstance(statement, ast.AnnAssign) and not module.postpones_annotations:
            act = unread(module, statement.annotation)
            if act is not None:
                raise Refused("NP212", f"it also has {act}", computes)
        elif isinstance(statement, ast.AnnAssign | ast.Assign | ast.Pass):
            continue
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            why = (
                f"its body has a statement in line {statement.lineno} that is not followed; move "
                "it out of the class"
            )
            raise Refused("NP211", why, computes)
    if len(set(names)) != len(names):
        why = "one of its methods is defined twice; keep the one that is meant"
        raise Refused("NP221", why, computes)
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef):
            continue
        name = statement.name
        for part in module.attributes.get(name, []):
            if part not in inside and name not in _OWN_METHODS:
                why = (
                    f"its method {name} is used in line {part.lineno}; do without it there, or "
                    "leave the class"
                )
                raise Refused("NP214", why, computes)
        if name not in _OWN_METHODS | reached:
            why = (
                f"its method {name} has a meaning of its own to whoever calls it; drop the method "
                "if nobody does, else leave the class"
            )
            raise Refused("NP211", why, computes)
        if statement.decorator_list and name in ("__init__", "forward"):
            text = spelled(statement.decorator_list[0])
            why = f"its {name} is decorated with @{text}; take that off if nothing needs it"
            raise Refused("NP211", why, computes)
        run = defining(module, statement)
        if is_decorated(module, statement) or unread(module, *run) is not None:
            why = f"the line that defines its {name}, {statement.lineno}, may do more than that"
            raise Refused("NP212", why, computes)


def weight_objection(weight: Weight, names: set[str], computes: Computes) -> tuple[str, str] | None:
    """``(code, why)`` when the parameter is not one that a standard layer has.

    names: all parameters of the norm.
    """
    if weight.buffer:
        return "NP212", "its weight is a buffer; make it a parameter, or leave it"
    if names != {"weight"}:
        name = min(names, default="?")
        return "NP206", (
            f"its parameter is called `{name}`, not `weight`; rename it, and map the checkpoint's "
            "key in load_weights"
        )
    if len(weight.shape) != 1:
        return "NP206", "its weight is not one-dimensional; leave it"
    size = weight.shape[0]
    if isinstance(size, Source) and not _is_one_size(size.text):
        return "NP206", (
            f"the size of its weight is given as `{size.text}`, not as one number; give the number"
        )
    if isinstance(size, Const) and not isinstance(size.value, int):
        return "NP206", "its weight is not one-dimensional; leave it"
    if size == Const(1):
        return "NP206", "its weight is a scalar; leave it, or expand it when it is loaded"
    if not isinstance(size, Const | Source):
        why = size.why if isinstance(size, Unknown) else "a computed value"
        return "NP206", (
            f"the size of its weight is not known: {why}; hand the size to its constructor"
        )
    own = weight.dtype == "float32" and (
        computes.weight == "offset" or computes.multiply_in != "float32"
    )
    if weight.dtype == "other" or own:
        return "NP206", (
            "its weight is stored in a dtype of its own; leave it, or give it the run's"
        )
    return None


def _is_one_size(text: str) -> bool:
    """Whether an expression may be a number; ``(config.size,)`` is a shape."""
    body = expression(text)
    containers = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp)
    return not (isinstance(body, (*containers, ast.Starred, ast.JoinedStr)) or is_shape(body))


def is_shape(node: ast.expr) -> bool:
    """``x.shape``, ``x.size()``, ``x.shape[1:]``, ``tuple(x)``, ``torch.Size(x)``: how many numbers
    it holds is not seen."""
    match node:
        case ast.Attribute(attr="shape") | ast.Subscript(slice=ast.Slice()):
            return True
        case ast.Call(func=ast.Attribute(attr="size"), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="Size") | ast.Name(id="Size" | "tuple" | "list")):
            return True
    return False
