"""Values of the symbolic evaluation: what a constructor stores and what a forward computes.

Tensor expressions carry their dtype in words that matter for a norm: ``input`` (the dtype of
the first argument), ``float32``, ``param`` (the dtype the parameter is stored in) and
``other``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal

DTypeName = Literal["input", "float32", "param", "other"]


class Value:
    """Base of everything the evaluator handles."""


@dataclass(frozen=True)
class Const(Value):
    """A Python constant: None, a bool, a number, a string.

    param: the constructor parameter it was passed for, if any. text: how the source spells it.
    """

    value: object
    param: str = field(default="", compare=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Source(Value):
    """A value known only by its source text in the constructing scope, e.g. ``config.eps``.

    param: the constructor parameter it was passed for.
    """

    text: str
    param: str


@dataclass(frozen=True)
class Unknown(Value):
    """Anything the evaluator does not follow; ``why`` names it for the finding."""

    why: str


@dataclass(frozen=True)
class Module(Value):
    """An imported module or name, by its full dotted name."""

    name: str


@dataclass(frozen=True)
class Function(Value):
    """A function of the analysed file, or a method bound to the norm itself."""

    node: ast.FunctionDef
    bound: bool


@dataclass(frozen=True)
class SelfRef(Value):
    """The norm object itself."""


@dataclass(frozen=True)
class DType(Value):
    """A dtype in the words of this module."""

    name: DTypeName


@dataclass(frozen=True)
class Items(Value):
    """A tuple or list of values."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Tensor(Value):
    """A tensor expression. The subclasses below are its node types."""

    dtype: DTypeName


@dataclass(frozen=True)
class Shape(Unknown):
    """The shape of ``tensor``, of which only the last size is followed."""

    tensor: Tensor


@dataclass(frozen=True)
class LastSize(Unknown):
    """The size of the last dimension of ``tensor``."""

    tensor: Tensor


@dataclass(frozen=True)
class Input(Tensor):
    """An argument of forward; ``position`` counts from 0 without ``self``."""

    name: str
    position: int


@dataclass(frozen=True)
class Weight(Tensor):
    """A parameter or buffer of the norm.

    shape: the values given to the factory (``torch.zeros(dim)``: one).
    initial: the factory's name.
    """

    name: str
    shape: tuple[Value, ...]
    initial: str
    buffer: bool = False


@dataclass(frozen=True)
class Factory(Tensor):
    """A freshly made tensor, before it becomes a parameter."""

    shape: tuple[Value, ...]
    initial: str


@dataclass(frozen=True)
class Cast(Tensor):
    """``operand`` converted to ``dtype``."""

    operand: Tensor


@dataclass(frozen=True)
class Op(Tensor):
    """An operation by its field name: mul, add, sub, div, square, mean, rsqrt, sqrt, neg,
    reshape, slice, all_reduce, or ``call:NAME`` for any other function.

    detail: what distinguishes variants, e.g. ``last keepdim`` for a mean.
    """

    kind: str
    operands: tuple[Value, ...]
    detail: str = ""


@dataclass
class Instance:
    """State of a constructed norm: attributes, and what its constructor did beside storing.

    doubtful: names that were read as the import that binds them, though something else may too.
    overwrites: forward changes what it converted in place: its input, where that is float32.
    """

    attributes: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    overwrites: bool = False


def peel(value: Value) -> Value:
    """``value`` without casts around it."""
    while isinstance(value, Cast):
        value = value.operand
    return value


def walk(value: Value) -> list[Value]:
    """Every value below ``value``, itself first, each object once however often it is used."""
    found: list[Value] = []
    seen: set[int] = set()
    queue = [value]
    while queue:
        current = queue.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        found.append(current)
        if isinstance(current, Cast):
            queue.append(current.operand)
        elif isinstance(current, Op):
            queue += reversed(current.operands)
        elif isinstance(current, Items):
            queue += reversed(current.values)
    return found
