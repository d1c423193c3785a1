"""What converts a module, or replaces a parameter of it, after it was built.

A conversion rounds a weight that a standard layer is to hold in float32, and parts the weight's
dtype from the run's, on which the rules rely.
"""

from __future__ import annotations

import ast

from normport.codemods.instances import is_module
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled

_CASTS = ("half", "bfloat16", "float", "double", "to", "type")


def default_dtype(module: ModuleInfo) -> int | None:
    """The line where the file has parameters made in another dtype than the run's, or None.

    vLLM builds a model with the run's dtype as torch's default one, in which a norm's weight is.
    """
    names = ("set_default_dtype", "set_default_torch_dtype")
    nodes: list[ast.expr] = []
    for name in names:
        nodes += module.attributes.get(name, [])
        nodes += module.names.get(name, [])
    for local, full in module.imports.items():
        if full.rpartition(".")[2] in names and local not in names:
            nodes += module.names.get(local, [])
    return min((node.lineno for node in nodes), default=None)


def module_cast(module: ModuleInfo) -> int | None:
    """The line where a module of this file is converted to another dtype, or None.

    A module is converted in place: a call that stands alone or is assigned back converts one, and
    so does any call on what is seen to be a module that this file defines.
    """
    for name in _CASTS:
        for attribute in module.attributes.get(name, []):
            owner = attribute.value
            call = module.parents[attribute]
            if not isinstance(call, ast.Call) or call.func is not attribute:
                # Kept to be called later; a type is often kept under the name of `type`.
                if (
                    name != "type"
                    and isinstance(attribute.ctx, ast.Load)
                    and is_module(module, owner)
                ):
                    return attribute.lineno
                continue
            if name == "to" and not _may_be_dtype(call):
                continue
            if (
                isinstance(module.parents[call], ast.Expr)
                or _is_assigned_back(module, call, owner)
                or (module.qualified(owner) or "").startswith("torch.nn.Module")
                or is_module(module, owner)
            ):
                return attribute.lineno
    return None


def _is_assigned_back(module: ModuleInfo, call: ast.Call, owner: ast.expr) -> bool:
    """``self.part = self.part.half()``; of a plain name that is how a tensor is converted."""
    outer = module.parents[call]
    text = spelled(owner)
    if not text.startswith("self."):
        return False
    return isinstance(outer, ast.Assign) and [spelled(t) for t in outer.targets] == [text]


def _may_be_dtype(call: ast.Call) -> bool:
    """Whether ``.to(...)`` may name a dtype, not a device alone."""
    if any(k.arg not in ("device", "non_blocking", "memory_format", "copy") for k in call.keywords):
        return True
    return any(not _is_device(argument) for argument in call.args[:1]) or len(call.args) > 1


def _is_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | int)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "device" in name.lower()
