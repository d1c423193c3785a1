"""Follows a norm class that is chosen or named as a value before it is constructed.

``Norm = LocalNorm``, ``cls = LocalNorm if flag else nn.LayerNorm``, ``{"rms": LocalNorm}[kind]``
and ``partial(LocalNorm, eps=1e-5)``: the class is replaced where it stands by what can be called
in the same way, and the calls stay as they are, because another choice may be called there too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

from normport.codemods.checks import Refused
from normport.codemods.model import Computes
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.registry import Target


@dataclass(frozen=True)
class Choice:
    """One place where the class stands as a value.

    name: the class there. calls: the constructions that may get it. partial: the call of
    ``functools.partial`` around it, if any.
    """

    name: ast.Name
    calls: tuple[ast.Call, ...]
    partial: ast.Call | None = None

    @property
    def replaced(self) -> ast.expr:
        """The expression to put the standard layer's in place of."""
        return self.partial or self.name


def follow(module: ModuleInfo, name: ast.Name, hidden: Collection[str]) -> Choice | None:
    """The constructions that the class reaches from ``name``; None where they are not all seen.

    hidden: names of the file that other files use.
    """
    node: ast.expr = name
    partial: ast.Call | None = None
    while True:
        parent = module.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            return Choice(name, (parent,), partial)
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            node = parent
        elif isinstance(parent, ast.Call) and partial is None and _is_partial(module, parent, node):
            node = partial = parent
        elif isinstance(parent, ast.Dict) and node in parent.values:
            lookup = module.parents[parent]
            if not (isinstance(lookup, ast.Subscript) and lookup.value is parent):
                return None
            node = lookup
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            calls = _calls_of_variable(module, parent.targets[0], hidden)
            return Choice(name, tuple(calls), partial) if calls else None
        else:
            return None


def _is_partial(module: ModuleInfo, call: ast.Call, node: ast.expr) -> bool:
    named = module.qualified(call.func) == "functools.partial"
    return named and call.args == [node] and all(keyword.arg for keyword in call.keywords)


def _calls_of_variable(
    module: ModuleInfo, target: ast.expr, hidden: Collection[str]
) -> list[ast.Call]:
    """The calls of a variable that is set once and does nothing but be called."""
    if not isinstance(target, ast.Name):
        return []
    function = module.enclosing(
        target, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef
    )
    if function is None:
        if not module.means_one_thing(target.id) or target.id in hidden:
            return []
        if module.strings.get(target.id):
            return []
    elif not isinstance(function, ast.FunctionDef):
        return []
    found: list[ast.Call] = []
    for node in walk(function or module.tree):
        if not isinstance(node, ast.Name) or node.id != target.id or node is target:
            continue
        call = module.parents[node]
        if not (isinstance(call, ast.Call) and call.func is node):
            return []
        if function is not None and node.lineno < target.lineno:
            return []
        found.append(call)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def stand_in(
    module: ModuleInfo, choice: Choice, call: ast.Call, target: Target, computes: Computes
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """What to put in place of the class, and its imports, so that ``call`` builds ``target``.

    Raises Refused where the call's arguments do not say the same to the standard layer.
    """
    try:
        wanted = ast.parse(target.text, mode="eval").body
    except SyntaxError:  # an epsilon that needs parentheses: ``(small := 1e-5)``
        raise Refused("NP225", _unlike(call), computes) from None
    assert isinstance(wanted, ast.Call)
    size = spelled(wanted.args[0])
    words = {k.arg: ast.get_source_segment(target.text, k.value) or "" for k in wanted.keywords}
    given: dict[str | None, str] = {}
    for position, argument in enumerate(call.args):
        given[("hidden_size", "eps")[position] if position < 2 else None] = spelled(argument)
    for keyword in call.keywords:
        given[keyword.arg] = spelled(keyword.value)
    kept = choice.partial.keywords if choice.partial else []
    bound = {k.arg: module.segment(k.value) for k in kept}
    unknown = (set(given) | set(bound)) - {"hidden_size", "eps"}
    if unknown or {**bound, **given}.get("hidden_size") != size:
        raise Refused("NP225", _unlike(call), computes)
    eps = {**bound, **given}.get("eps")
    if eps is not None and _normal(eps) != _normal(words["eps"]):
        raise Refused("NP225", _unlike(call), computes)
    extra = {key: text for key, text in words.items() if key != "eps"}
    if eps is None and _normal(words["eps"]) != "1e-06":
        extra = {"eps": words["eps"], **extra}
    imports = {name: names for name, names in target.imports.items() if name != "torch"}
    if "torch" in target.imports and any("torch" in text for text in extra.values()):
        imports["torch"] = ()
    parts = [f"{key}={text}" for key, text in {**bound, **extra}.items()]
    if not parts:
        return target.layer, imports
    if choice.partial is not None:
        function = module.segment(choice.partial.func)
    else:
        function, imports["functools"] = "functools.partial", ()
    return f"{function}({target.layer}, {', '.join(parts)})", imports


def _normal(text: str) -> str:
    """One spelling for each expression, and each number."""
    try:
        return repr(float(re.sub("_", "", text)))
    except ValueError:
        return spelled(ast.parse(text, mode="eval"))


def _unlike(call: ast.Call) -> str:
    return (
        f"it is chosen before it is constructed, and the arguments of `{spelled(call)}` in "
        f"line {call.lineno} are not those of a standard layer (size first, eps); name them so"
    )
