"""torch's norms, looked up by name in the dict of a module: ``vars(nn)["RMSNorm"]``."""

from __future__ import annotations

import ast

from normport.codemods.model import Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled
from normport.codemods.refusals import refuse

_LABELS = {"RMSNorm": "torch.nn.RMSNorm", "rms_norm": "torch.nn.functional.rms_norm"}


def looked_up(module: ModuleInfo) -> list[Site]:
    """A refusal for each; what is done with it is not followed."""
    found = []
    for name, label in _LABELS.items():
        for constant in module.strings.get(name, []):
            parent = module.parents[constant]
            if isinstance(parent, ast.Subscript) and _is_namespace(module, parent.value):
                why = f"`{spelled(parent)}` looks it up by its name; name it outright"
                found.append(refuse(module, parent, "NP209", label, why))
    return found


def _is_namespace(module: ModuleInfo, node: ast.expr) -> bool:
    """Whether ``node`` is the dict of one of torch's modules."""
    match node:
        case ast.Call(func=ast.Name(id="vars"), args=[owner], keywords=[]):
            pass
        case ast.Attribute(value=owner, attr="__dict__"):
            pass
        case _:
            return False
    return (module.qualified(owner) or "").startswith("torch.nn")
