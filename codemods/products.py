"""What a root of a mean of squares multiplies, and whether a function returns that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from normport.codemods.flow import Opaque, Step
from normport.codemods.lengths import length_roots
from normport.codemods.roots import Root, base, root_of, same
from normport.codemods.values import Cast, Const, Input, Items, Op, Tensor, Value, peel, walk
from normport.codemods.values import Weight as Parameter

T = TypeVar("T")
How = Literal["same", "slice", "other"]

_DEEPEST = 50
"""How deep in a product a root is looked for."""


@dataclass(frozen=True)
class Product:
    """What a root multiplies: ``same`` as was squared, more of it (``slice``), or another."""

    step: Step
    root: Root
    factor: Value
    how: How


def products(steps: Sequence[Step], device: bool = False) -> tuple[list[Product], list[Step]]:
    """The innermost product of every root among ``steps``, and the roots that multiply nothing.

    Those of called functions are theirs.
    """
    found: dict[int, Product] = {}
    roots: dict[int, Step] = {}
    for step in steps:
        if _is_rsqrt(step.value) and root_of(step.value, device) is not None:
            roots.setdefault(id(step.value), step)
        for root, factor, how in matches(step.value, device):
            key = id(root.value)
            before = found.get(key)
            if before is None or (before.how == "other" and how != "other"):
                found[key] = Product(step, root, factor, how)
    lonely = [step for key, step in roots.items() if key not in found and step.own]
    own = [one for one in found.values() if one.step.own and (device or _is_related(one))]
    return own, lonely


def _is_related(product: Product) -> bool:
    """Whether the root multiplies what was squared, or something that was made of it."""
    if product.how != "other":
        return True
    squared = base(product.root.squared)
    return any(part is squared for part in walk(product.factor))


def _is_rsqrt(value: Value) -> bool:
    return isinstance(value, Op) and value.kind == "rsqrt"


def matches(value: Value, device: bool = False) -> Iterator[tuple[Root, Value, How]]:
    """Every root that is a factor of ``value``, with the factor that it normalises."""
    if not isinstance(value, Op) or value.kind not in ("mul", "div"):
        return
    roots, others = _factors(value, device)
    for root in roots:
        best: tuple[Value, How] | None = None
        for factor in others:
            how = _relation(factor, root.squared)
            if best is None or (best[1] == "other" and how != "other"):
                best = factor, how
        if best is not None:
            yield root, best[0], best[1]
    for root, over in length_roots(value):
        for factor in over:
            how = _relation(factor, root.squared)
            if how != "other":
                yield root, factor, how


def _factors(value: Value, device: bool) -> tuple[list[Root], list[Value]]:
    """The roots that ``value`` is a product of, and its other factors but numbers, each once."""
    return _Factors(device).of(value, 0)


class _Factors:
    """Takes products apart, each value once: a variable that is multiplied by itself again and
    again is a product of more factors than can be listed one by one."""

    def __init__(self, device: bool) -> None:
        self.device = device
        self._known: dict[int, tuple[list[Root], list[Value]]] = {}

    def of(self, value: Value, depth: int) -> tuple[list[Root], list[Value]]:
        """depth: of ``value`` in the product. What is deeper than anybody writes is one factor."""
        if id(value) not in self._known:
            found = self._taken_apart(value, depth + 1) if depth < _DEEPEST else None
            whole: list[Value] = [] if isinstance(value, Const) else [value]
            self._known[id(value)] = found or ([], whole)
        return self._known[id(value)]

    def _taken_apart(self, value: Value, depth: int) -> tuple[list[Root], list[Value]] | None:
        """None where there is no root in it."""
        root = root_of(value, self.device)
        if root is not None and _is_rsqrt(value):
            return [root], []
        if isinstance(value, Cast):
            inner = self.of(value.operand, depth)
            return inner if inner[0] else None
        if not isinstance(value, Op):
            return None
        if value.kind == "mul":
            left, right = (self.of(operand, depth) for operand in value.operands)
            if left[0] or right[0]:
                return _once(left[0] + right[0]), _once(left[1] + right[1])
        elif value.kind == "div":
            roots, others = self.of(value.operands[0], depth)
            under = _divisors(value.operands[1], self.device)
            if roots or under:
                return roots + under, others
        elif value.kind in ("reshape", "slice", "either"):
            inner = self.of(value.operands[0], depth)
            if inner[0] and not inner[1]:
                return inner
        return None


def _once(found: list[T]) -> list[T]:
    return list({id(one): one for one in found}.values())


def _divisors(value: Value, device: bool) -> list[Root]:
    """Roots that something is divided by."""
    value = peel(value)
    if not isinstance(value, Op):
        return []
    if value.kind == "sqrt":
        root = root_of(value, device)
        return [] if root is None else [root]
    if value.kind in ("add", "floor", "reshape", "either"):
        return [
            _outside(r, value, part) for part in value.operands for r in _divisors(part, device)
        ]
    return []


def _outside(root: Root, value: Op, part: Value) -> Root:
    """The root, of which ``value``, that divides, is made with an epsilon or a bound."""
    eps = root.eps or _other(value, part)
    if value.kind == "floor":
        return replace(root, eps=eps, floored="root")
    return replace(root, eps=eps, outside=True) if value.kind == "add" else root


def _other(value: Op, part: Value) -> Value | None:
    return next((operand for operand in value.operands if operand is not part), None)


def _relation(factor: Value, squared: Value) -> How:
    for one in _alternatives(factor):
        for two in _alternatives(squared):
            if same(base(one), base(two)):
                return "slice" if _slices(two) > _slices(one) else "same"
    return "other"


def _alternatives(value: Value) -> list[Value]:
    inner = base(value)
    if isinstance(inner, Op) and inner.kind == "either":
        return [value, *(part for operand in inner.operands for part in _alternatives(operand))]
    return [value]


def _slices(value: Value) -> int:
    count = 0
    while isinstance(value, Cast) or (isinstance(value, Op) and value.kind in ("reshape", "slice")):
        if isinstance(value, Op):
            count += value.kind == "slice"
            value = value.operands[0]
        else:
            value = value.operand
    return count


_SPINE = {"mul", "div", "add", "sub", "reshape", "slice", "either", "neg"}


def returned_norm(value: Value) -> tuple[Value, Root, Value, How] | None:
    """``(product, root, factor, how)`` when ``value`` is a norm with at most a few elementwise
    operations after it, or a tuple that begins with one: then comes e.g. the residual."""
    if isinstance(value, Items) and value.values:
        value = value.values[0]
    best: tuple[Value, Root, Value, How] | None = None
    for current in spine(value):
        for root, factor, how in matches(current):
            if how != "other":
                best = current, root, factor, how  # the innermost comes last
    return best


def spine(value: Value) -> Iterator[Value]:
    """``value`` and what it is made of by casts, reshapes and elementwise operations alone."""
    queue, seen = [value], set[int]()
    while queue:
        current = queue.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, Cast):
            queue.append(current.operand)
        elif isinstance(current, Items):
            queue += current.values
        elif isinstance(current, Op) and (current.kind in _SPINE or "rearrange" in current.kind):
            queue += current.operands


def is_argument(value: Value) -> bool:
    """Whether ``value`` is made of the function's parameters alone."""
    parts = walk(value)
    if any(isinstance(part, Op) and part.kind.startswith("call:self.") for part in parts):
        return False  # what a submodule made of them
    leaves = [
        part for part in parts if isinstance(part, Tensor) and not isinstance(part, Cast | Op)
    ]
    given = [leaf for leaf in leaves if isinstance(leaf, Input) and not isinstance(leaf, Opaque)]
    known = (Parameter, Input)
    return bool(given) and all(
        isinstance(leaf, known) and not isinstance(leaf, Opaque) for leaf in leaves
    )
