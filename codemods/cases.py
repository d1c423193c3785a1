"""How one construction of a local norm is run beside its replacement."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from normport.codemods.model import CallForm, ProofCase
from normport.codemods.module_info import ModuleInfo
from normport.codemods.recognise import Recognised
from normport.codemods.registry import Target
from normport.codemods.standalone import NotStandalone, standalone
from normport.codemods.values import Const, Source, Value

Passed = list[tuple[str | None, str]]
"""The arguments of a construction: keyword (None: positional) and the parameter it fills."""


def proof_case(
    home: ModuleInfo,
    norm: ast.ClassDef,
    passed: Passed,
    arguments: Mapping[str, Value],
    read: Recognised,
    target: Target,
    size: str,
    forms: tuple[CallForm, ...],
) -> tuple[ProofCase | None, str | None]:
    """The case, or why it cannot be run. home: the file that defines ``norm``."""
    try:
        text = standalone(home, norm.name)
    except NotStandalone as problem:
        return None, str(problem)
    shape = read.weight.shape[0] if read.weight is not None else None
    size_param = shape.param if isinstance(shape, Const | Source) else ""
    if shape is not None and not size_param:
        return None, "the size of its weight is written into its constructor"
    eps = read.eps
    words: list[str] = []
    for keyword, param in passed:
        value = arguments[param]
        if param == size_param or (isinstance(value, Source) and value.text == size):
            word = "SIZE"
        elif param == eps.param:
            word = "EPS"
        else:
            word = repr(value.value) if isinstance(value, Const) else "None"
        words.append(f"{keyword}={word}" if keyword else word)
    eps_value = eps.value if isinstance(eps, Const) else None
    new = target.text.replace(f"({size}, ", "(SIZE, ", 1)
    new = new.replace(f"eps={read.computes.eps}", "eps=EPS", 1)
    case = ProofCase(
        module=text,
        old=f"{norm.name}({', '.join(words)})",
        new=new,
        weight=read.computes.weight,
        eps=float(eps_value) if isinstance(eps_value, int | float) else None,
        forms=forms,
    )
    return case, None
