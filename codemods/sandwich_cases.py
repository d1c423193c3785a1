"""How a whole method with a sandwich is run before and after, beside each other.

The method's own text runs, with the tree's norm layers. What else it calls is a stand-in: a module
that maps the sum of its inputs through a fixed function, the same on both sides. So the two texts
give the same bits exactly when the norms, the sums and their order of rounding are the same.
"""

from __future__ import annotations

import ast
import textwrap

from normport.codemods.model import ProofCase
from normport.codemods.sandwich_class import (
    OP_ATTRIBUTE,
    Function,
    methods,
    norm_class,
    standard_names,
)
from normport.codemods.text import decode

_STAND_INS = '''
class _Called:
    """Stands for a module that is called: a fixed function of the sum of what it is given."""

    def __init__(self, number, results):
        self.number, self.results = number, results

    def __call__(self, *args, **kwargs):
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        total = given[0]
        for other in given[1:]:
            total = total + other
        out = torch.tanh(total.float() * (0.5 + self.number)).to(total.dtype)
        return out if self.results == 1 else (out,) + (None,) * (self.results - 1)


class _Layer:
    def __init__(self, size, eps, flag):
        random = torch.Generator().manual_seed(size)
        for number, (name, layer) in enumerate(_NORMS.items()):
            # Each norm has an eps of its own, so that none can take another's place.
            norm = {"RMSNorm": RMSNorm, "GemmaRMSNorm": GemmaRMSNorm}[layer](
                size, eps=eps * 10.0**number
            )
            norm.weight.data.copy_(torch.randn(size, generator=random) * 0.5)
            setattr(self, name, norm)
        for number, (name, results) in enumerate(_CALLED.items()):
            setattr(self, name, _Called(number, results))
        for name in _FACTORS:
            setattr(self, name, torch.tensor([0.75]))
        for name in _FLAGS:
            setattr(self, name, flag)
        if hasattr(self, "_with_op"):
            setattr(self, _OP, NormAddNorm())


def _run(kind, size, eps, flag):
    layer = kind(size, eps, flag)

    def run(x):
        given = {
            name: x if name == _INPUT else torch.tanh(x.roll(number + 1, -1))
            for number, name in enumerate(_PARAMETERS)
        }
        return getattr(layer, _METHOD)(**given)

    return run
'''
_INPUTS = ("hidden_states", "h", "x")


def sandwich_cases(before: bytes, after: bytes, function: str, layer: str) -> list[ProofCase]:
    """The cases for the converted methods named ``Class.method``, in most files one.

    layer: the source of the module that defines the new layer. Nothing for a method that takes no
    argument, which cannot be run.
    """
    pairs = zip(_methods(before, function), _methods(after, function), strict=True)
    return [
        case
        for (old, owner), (new, _) in pairs
        if ast.dump(old) != ast.dump(new)
        for case in _cases(before, after, owner, old, new, layer)
    ]


def _cases(
    before: bytes, after: bytes, owner: ast.ClassDef, old: Function, new: Function, layer: str
) -> list[ProofCase]:
    tree = ast.parse(decode(before).text)
    every = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    held = norm_class(owner, standard_names(tree), every).held
    own = old.args.args[0].arg
    uses = _Uses(own)
    uses.visit(old)
    norms = {name: norm.layer for name, norm in held.items() if name in uses.called}
    called = {name: parts for name, parts in uses.called.items() if name not in norms}
    others = uses.read - set(norms) - set(called)
    factors = sorted(others & uses.factors)
    flags = sorted(others - uses.factors)
    positional = old.args.args[1:]
    required = positional[: len(positional) - len(old.args.defaults)]
    parameters = [argument.arg for argument in required]
    parameters += [
        argument.arg
        for argument, default in zip(old.args.kwonlyargs, old.args.kw_defaults, strict=True)
        if default is None
    ]
    parameters = parameters or [argument.arg for argument in positional[:1]]
    if not parameters:
        return []
    given = next((name for name in _INPUTS if name in parameters), parameters[0])
    constants = {
        "_NORMS": norms,
        "_CALLED": called,
        "_FACTORS": factors,
        "_FLAGS": flags,
        "_PARAMETERS": parameters,
        "_INPUT": given,
        "_METHOD": old.name,
        "_OP": OP_ATTRIBUTE,
    }
    parts = [
        "from __future__ import annotations",
        "import math",
        "from typing import *",
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
        layer,
        *(f"{name} = {value!r}" for name, value in constants.items()),
        _STAND_INS,
        f"class Before(_Layer):\n{_text(before, old)}\n",
        f"class After(_Layer):\n    _with_op = True\n\n{_text(after, new)}\n",
    ]
    module = "\n".join(parts)
    return [
        ProofCase(
            module=module,
            old=f"_run(Before, SIZE, EPS, {flag})",
            new=f"_run(After, SIZE, EPS, {flag})",
            weight="none",
            layers=True,
        )
        for flag in ((False, True) if flags else (False,))
    ]


def _methods(source: bytes, function: str) -> list[tuple[Function, ast.ClassDef]]:
    """Every method of that name: a file may define a class, or a class a method, twice."""
    name, _, method = function.rpartition(".")
    return [
        (found, node)
        for node in ast.walk(ast.parse(decode(source).text))
        if isinstance(node, ast.ClassDef) and node.name == name
        for found in methods(node)
        if found.name == method
    ]


def _text(source: bytes, method: Function) -> str:
    lines = decode(source).text.splitlines()[method.lineno - 1 : method.end_lineno]
    return textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")


class _Uses(ast.NodeVisitor):
    """What a method does with the attributes of its object.

    called: how many results each call is unpacked into. factors: what is computed with.
    """

    def __init__(self, own: str) -> None:
        self.own = own
        self.called: dict[str, int] = {}
        self.read: set[str] = set()
        self.factors: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        name = self._called(node.value)
        if name is not None and isinstance(node.targets[0], ast.Tuple):
            self.called[name] = len(node.targets[0].elts)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._called(node)
        if name is not None:
            self.called.setdefault(name, 1)
        if isinstance(node.func, ast.Name) and node.func.id == "cast":
            self.factors |= {name for argument in node.args if (name := self._own(argument))}
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.factors |= {name for side in (node.left, node.right) if (name := self._own(side))}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (name := self._own(node)) is not None:
            self.read.add(name)
        self.generic_visit(node)

    def _called(self, node: ast.expr) -> str | None:
        return self._own(node.func) if isinstance(node, ast.Call) else None

    def _own(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id == self.own else None
        return None
