"""Binds the arguments of a construction to the constructor of the norm."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from normport.codemods.checks import Refused
from normport.codemods.expressions import bind_values
from normport.codemods.model import Computes
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.values import Const, Source, Unknown, Value


@dataclass(frozen=True)
class Constructed:
    """One construction.

    values: the constructor's parameters as it fills them, defaults included.
    passed: for each argument its keyword (None: positional) and the parameter that it fills.
    spread: why a ``*`` or ``**`` in it cannot be taken apart in the edited call, if so.
    """

    values: dict[str, Value]
    passed: list[tuple[str | None, str]]
    spread: str | None = None


def default(home: ModuleInfo, node: ast.expr) -> Value:
    """A parameter's default. home: the file that defines the norm."""
    try:
        return Const(ast.literal_eval(node), text=home.segment(node))
    except (ValueError, SyntaxError):
        name = node.id if isinstance(node, ast.Name) else ""
        constant = home.constants.get(name)
        if isinstance(constant, ast.Constant) and home.means_one_thing(name):
            return Const(constant.value, text=home.segment(constant))
        return Unknown(f"the default `{spelled(node)}`")


def construct(
    module: ModuleInfo,
    home: ModuleInfo,
    init: ast.FunctionDef | None,
    call: ast.Call,
    more: Iterable[ast.keyword] = (),
) -> Constructed:
    """``call`` of ``module`` bound to ``init``, which stands in ``home``; raises Refused.

    more: keywords that a ``functools.partial`` adds.
    """
    given, spread = _arguments(module, call)
    named = {keyword for keyword, _ in given}
    given += [(k.arg, k.value) for k in more if k.arg not in named]
    if init is not None and (init.args.posonlyargs or not init.args.args):
        raise Refused(
            "NP215", "its constructor has positional-only parameters or no self; declare plain ones"
        )
    more_of = [a for a in (init.args.vararg, init.args.kwarg) if a is not None] if init else []
    if more_of:
        raise Refused(
            "NP215",
            f"its constructor takes whatever it is given, in `{more_of[0].arg}`; name its "
            "parameters instead",
        )
    if init is None:
        if given:
            raise Refused("NP215", "it is called with arguments but has no constructor; drop them")
        return Constructed({}, [])
    names = [p.arg for p in init.args.args[1:]]
    plain = [node for keyword, node in given if keyword is None]
    if len(plain) > len(names):
        raise Refused("NP215", "its call does not fit its constructor")
    passed = [(None, name) for name, _ in zip(names, plain, strict=False)]
    positional = [_value(module, node, name) for node, name in zip(plain, names, strict=False)]
    keywords = {k: _value(module, node, k) for k, node in given if k is not None}
    parameters = ast.arguments(
        posonlyargs=[],
        args=init.args.args[1:],
        vararg=init.args.vararg,
        kwonlyargs=init.args.kwonlyargs,
        kw_defaults=init.args.kw_defaults,
        kwarg=init.args.kwarg,
        defaults=init.args.defaults,
    )
    bound = bind_values(parameters, positional, keywords, lambda node: default(home, node))
    if bound is None:
        raise Refused("NP215", "its call does not fit its constructor")
    return Constructed(bound, [*passed, *((k, k) for k in keywords)], spread)


def check_arguments(module: ModuleInfo, call: ast.Call, target: str, computes: Computes) -> None:
    """Every argument that may do something is evaluated once, as before."""
    for _, argument in _arguments(module, call)[0]:
        acts = [n for n in walk(argument) if isinstance(n, ast.Call | ast.NamedExpr)]
        acts = [n for n in acts if not _only_looks(n)]
        text = module.segment(argument)
        if acts and target.count(text) != 1:
            why = f"its argument `{text}` would not be evaluated once as it is now; store it first"
            raise Refused("NP215", why, computes)


def _only_looks(node: ast.AST) -> bool:
    """``getattr(config, "x", 1)`` and conversions: calls that only give a value."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "int", "float", "len", "max", "min", "bool")
    )


def _arguments(
    module: ModuleInfo, call: ast.Call
) -> tuple[list[tuple[str | None, ast.expr]], str | None]:
    """The arguments one by one, with what is spread taken apart where its parts are written out.

    Parts that are written out in a variable tell what the norm computes, but stay where they are:
    the second item says so.
    """
    found: list[tuple[str | None, ast.expr]] = []
    spread: str | None = None
    for argument in call.args:
        if not isinstance(argument, ast.Starred):
            found.append((None, argument))
            continue
        value = argument.value
        if isinstance(value, ast.Name):
            spread = f"`*{value.id}`"
            value = _assigned(module, call, value) or value
        if not isinstance(value, ast.Tuple | ast.List) or any(
            isinstance(part, ast.Starred) for part in value.elts
        ):
            raise Refused("NP215", "its arguments are spread with * or **")
        found += [(None, part) for part in value.elts]
    for keyword in call.keywords:
        if keyword.arg is not None:
            found.append((keyword.arg, keyword.value))
            continue
        value = keyword.value
        if isinstance(value, ast.Name):
            spread = f"`**{value.id}`"
            value = _assigned(module, call, value) or value
        parts = _items(value)
        if parts is None:
            raise Refused("NP215", "its arguments are spread with * or **")
        found += parts
    return found, spread


def _items(node: ast.expr) -> list[tuple[str | None, ast.expr]] | None:
    """The entries of ``{"dim": 1}`` or ``dict(dim=1)``; None for anything else."""
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if all(isinstance(key, str) for key in keys):
            return list(zip(map(str, keys), node.values, strict=True))
        return None
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(
            word.arg for word in words
        ):
            return [(word.arg, word.value) for word in words]
    return None


def _assigned(module: ModuleInfo, call: ast.Call, name: ast.Name) -> ast.expr | None:
    """What the function around ``call`` assigns to ``name``, once and in a plain statement."""
    function = module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef)
    stores = [
        node
        for node in walk(function or module.tree)
        if isinstance(node, ast.Name) and node.id == name.id and not isinstance(node.ctx, ast.Load)
    ]
    if len(stores) != 1:
        return None
    statement = module.parents[stores[0]]
    plain = isinstance(statement, ast.Assign) and statement.targets == [stores[0]]
    return statement.value if plain and isinstance(statement, ast.Assign) else None


def _value(module: ModuleInfo, node: ast.expr, param: str) -> Value:
    try:
        return Const(ast.literal_eval(node), param, module.segment(node))
    except (ValueError, SyntaxError):
        text = module.segment(node)
        return Source(text if "\n" not in text else spelled(node), param)
