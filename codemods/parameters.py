"""What a file does with parameters without saying whose: gives them new data, asks their dtype."""

from __future__ import annotations

import ast

from normport.codemods.instances import is_module
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.stored import stored_value, values_of
from normport.codemods.uses import Binding

_LISTINGS = frozenset({"parameters", "named_parameters", "state_dict"})
# Layers of which the first parameter is a weight of their own.
_FIRST = ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "Conv2dLayer", "Conv3dLayer")


def replaced_data(module: ModuleInfo, bound: Binding) -> tuple[str, int] | None:
    """``(text, line)`` of what may put data of another dtype into the norm's weight, or None.

    ``x.copy_(y)`` keeps the dtype. What is named to be another's weight is none of this norm's.
    """
    for attribute in module.attributes.get("data", []):
        if isinstance(attribute.ctx, ast.Store) and _may_be(module, attribute.value, bound):
            return spelled(attribute), attribute.lineno
    for attribute in module.attributes.get("weight", []):
        owner = attribute.value
        known = isinstance(owner, ast.Attribute) or spelled(owner) == "self"
        if isinstance(attribute.ctx, ast.Store) and not known:
            return spelled(attribute), attribute.lineno
    for word in ("_parameters", "set_", "load_state_dict", "swap_tensors"):
        for attribute in module.attributes.get(word, []):
            call = module.parents[attribute]
            assigns = isinstance(call, ast.Call) and any(k.arg == "assign" for k in call.keywords)
            if word != "load_state_dict" or assigns:
                return spelled(call), attribute.lineno
    for name in module.names.get("setattr", []):
        call = module.parents[name]
        if isinstance(call, ast.Call) and call.func is name and len(call.args) == 3:
            key = call.args[1]
            other = isinstance(key, ast.Constant) and key.value != "weight"
            if not other and "Parameter" in spelled(call.args[2]):
                return spelled(call), call.lineno
    return None


def _may_be(module: ModuleInfo, node: ast.expr, bound: Binding, steps: int = 4) -> bool:
    """Whether a parameter may be the weight of the norm."""
    if isinstance(node, ast.Attribute):
        owner = node.value
        if node.attr != "weight":
            return False
        return not isinstance(owner, ast.Attribute) or owner.attr == bound.attribute
    if isinstance(node, ast.Name) and steps:
        values = list(values_of(module, node))
        if values:
            return any(_may_be(module, value, bound, steps - 1) for value in values)
    return True


def dtype_reading(module: ModuleInfo) -> tuple[str, int] | None:
    """``(text, line)`` of a read of the dtype of any parameter that a module has, or None.

    ``next(self.encoder.parameters()).dtype`` tells of the norm where the encoder is built from
    a class of the file, unless another layer is seen to come first.
    """
    for attribute in module.attributes.get("dtype", []):
        if isinstance(attribute.ctx, ast.Load):
            for listing in _listings(module, attribute.value):
                owner = listing.value
                if is_module(module, owner) and not _starts_otherwise(module, owner):
                    return spelled(attribute), attribute.lineno
            match attribute.value:
                case ast.Attribute(value=ast.Name(id=name) as variable, attr="weight"):
                    if name != "self" and is_module(module, variable):
                        return spelled(attribute), attribute.lineno
    return None


def _listings(module: ModuleInfo, node: ast.expr) -> list[ast.Attribute]:
    """The ``x.parameters`` that a tensor comes from, through whatever variables."""
    found: list[ast.Attribute] = []
    followed: set[ast.expr] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if node in followed:
            continue
        followed.add(node)
        for part in walk(node):
            if isinstance(part, ast.Attribute) and part.attr in _LISTINGS:
                call = module.parents[part]
                if isinstance(call, ast.Call) and call.func is part:
                    found.append(part)
            elif isinstance(part, ast.Name):
                pending += values_of(module, part)
    return found


def _starts_otherwise(module: ModuleInfo, owner: ast.expr) -> bool:
    """Whether the first parameter of the module is seen to be another layer's.

    Parameters come in the order in which they were registered.
    """
    if not (isinstance(owner, ast.Name) and owner.id == "self"):
        return False
    node = module.enclosing(owner, ast.ClassDef)
    assert isinstance(node, ast.ClassDef), "self is seen to be a module"
    bases = {spelled(base).rpartition(".")[2] for base in node.bases}
    init = next((n for n in node.body if getattr(n, "name", "") == "__init__"), None)
    if bases & set(module.classes) or not isinstance(init, ast.FunctionDef):
        return False
    for statement in init.body:
        stores = [n for n in walk(statement) if isinstance(n, ast.Attribute)]
        stores = [n for n in stores if isinstance(n.ctx, ast.Store)]
        for store in stores:
            values = list(stored_value(module, store))
            if not any(isinstance(part, ast.Call) for v in values for part in walk(v)):
                continue
            call = values[0]
            plain = isinstance(statement, ast.Assign | ast.AnnAssign)
            return plain and isinstance(call, ast.Call) and _is_layer(module, call)
    return False


def _is_layer(module: ModuleInfo, call: ast.Call) -> bool:
    home, _, kind = (module.qualified(call.func) or "").rpartition(".")
    return home.startswith(("torch.nn", "vllm.model_executor.layers.")) and kind.endswith(_FIRST)
