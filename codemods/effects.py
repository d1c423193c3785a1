"""What a file does when it is imported, or reaches by name while it runs: nothing to lose."""

from __future__ import annotations

import ast
import sys

from normport.codemods.acts import defining
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk

# Modules that are imported anyway where a vLLM model is, or have no effect when imported.
QUIET = sys.stdlib_module_names | {"einops", "numpy", "torch", "transformers"}
# Of vLLM itself: what a standard layer imports too, and what only defines. Others may register.
_QUIET_VLLM = (
    *("vllm", "vllm.config", "vllm.distributed", "vllm.envs", "vllm.forward_context"),
    *("vllm.logger", "vllm.platforms", "vllm.sequence", "vllm.utils"),
    *("vllm.model_executor.custom_op", "vllm.model_executor.utils"),
    *("vllm.model_executor.layers.activation", "vllm.model_executor.layers.layernorm"),
    "vllm.model_executor.layers.linear",
)
_QUIET_VLLM_PACKAGES = ("vllm.config.", "vllm.distributed.", "vllm.platforms.", "vllm.utils.")
_PURE_DECORATORS = frozenset(
    {
        *("staticmethod", "classmethod", "property"),
        *("torch.compile", "torch.jit.script", "torch.no_grad", "torch.inference_mode"),
        *("functools.cache", "functools.lru_cache", "functools.wraps", "dataclasses.dataclass"),
        "triton.jit",
        "vllm.triton_utils.triton.jit",
    }
)
_PURE_BASES = ("torch.", "enum.", "typing.", "abc.")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_LOOKUPS = frozenset({"globals", "eval", "exec", "locals", "vars"})


def is_quiet(name: str) -> bool:
    """Whether importing the module has no effect that would be lost with the import."""
    if name.split(".")[0] in QUIET:
        return True
    return name in _QUIET_VLLM or name.startswith(_QUIET_VLLM_PACKAGES)


def looks_names_up(tree: ast.Module) -> bool:
    """Whether the code has something that can reach any name of the file while it runs."""
    return any(_looks_up(node) for node in walk(tree)) or _calls_sys_modules(tree)


def _looks_up(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return name in _LOOKUPS
        case ast.Attribute(attr=name, value=ast.Name(id="builtins" | "__builtins__")):
            return name in _LOOKUPS
        case ast.ImportFrom(module="sys", names=names):
            return any(alias.name == "modules" for alias in names)
        case ast.Call(func=function, args=[ast.Name(id="__name__"), *_]):
            word = function.attr if isinstance(function, ast.Attribute) else None
            return (word or getattr(function, "id", "")) in ("import_module", "__import__")
    return False


def _calls_sys_modules(tree: ast.Module) -> bool:
    """Whether ``modules`` of anything is read: that of a ``nn.Module`` is called instead."""
    called = {node.func for node in walk(tree) if isinstance(node, ast.Call)}
    return any(
        isinstance(node, ast.Attribute) and node.attr == "modules" and node not in called
        for node in walk(tree)
    )


def has_effect(module: ModuleInfo, node: Definition) -> bool:
    """Whether a definition may do something when it is run beside binding its name."""
    if is_decorated(module, node):
        return True
    if not isinstance(node, ast.ClassDef):
        return any(_calls(part) for one in defining(module, node) for part in walk(one))
    if node.keywords:
        return True
    for base in node.bases:
        name = module.qualified(base.value if isinstance(base, ast.Subscript) else base) or "?"
        own = module.classes.get(name)
        if own is None and name != "object" and not name.startswith(_PURE_BASES):
            return True
        if own is not None and any(_hooks(part) for part in own.body):
            return True
    return any(_acts(module, statement) for statement in node.body)


def is_decorated(module: ModuleInfo, node: Definition) -> bool:
    """Whether a decorator may do something with the definition beside what is known of it."""
    return any(_decorator(module, one) not in _PURE_DECORATORS for one in node.decorator_list)


def _calls(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.NamedExpr)


def _hooks(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__"


def _acts(module: ModuleInfo, node: ast.stmt) -> bool:
    """Whether a statement of a class's body does more than to define."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return has_effect(module, node)
        case ast.Assign() | ast.AnnAssign():
            calls = [part for part in walk(node) if isinstance(part, ast.Call)]
            return any(module.qualified(call.func) != "dataclasses.field" for call in calls)
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return False
    return True


def _decorator(module: ModuleInfo, node: ast.expr) -> str | None:
    return module.qualified(node.func if isinstance(node, ast.Call) else node)
