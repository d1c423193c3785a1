"""Norms that no top-level class with a ``forward`` holds: other classes, functions, inline code.

All are refused: there is no construction to replace. They are found by running every function
that takes a root (``flow.py``), not by any name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping

from normport.codemods.apart import Apart
from normport.codemods.describe import Description, describe, grown
from normport.codemods.evaluate import Evaluator
from normport.codemods.flow import Flow, Step
from normport.codemods.model import Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk as walk_nodes
from normport.codemods.places import Place, Places, last
from normport.codemods.products import Product, is_argument, products, returned_norm, spine
from normport.codemods.refusals import for_class, for_function, for_inline, for_kernel_class
from normport.codemods.roots import base
from normport.codemods.values import Op, Source, Value, Weight, walk

_KERNEL = re.compile(r"\w*rms_?norm\w*\s*\(")
_KERNEL_NAME = re.compile(r"(?!.*(embed|quant|rope|qk|moe|linear|reduce))\w*rms_?norm\w*")
_ENTRIES = ("forward", "__call__", "call")


class Elsewhere:
    """Reads one file."""

    def __init__(self, module: ModuleInfo) -> None:
        self.module = module
        self.places = Places(module)
        self.apart = Apart(module, self.places)
        self.covered: set[Place] = set()
        self.helpers: set[str] = set()
        self.norms: dict[Place, Description] = {}

    def may_hold_norm(self, node: ast.ClassDef) -> bool:
        """Whether a function of the class, or one that it reaches, takes a root."""
        mine = [place for place in self.places.classes if place.node.lineno == node.lineno]
        return not mine or any(map(self._reaches_root, mine))

    def is_layer(self, node: ast.ClassDef) -> bool:
        """Whether a class with a forward is no norm itself but has one in the middle of it."""
        for place in self.places.classes:
            forward = next((p for p in place.inner if p.node.name == "forward"), None)
            if place.node is node and forward is not None:
                flow, value = self._flow(forward, {})
                return returned_norm(value) is None and bool(products(flow.steps)[0])
        return False

    def sites(self, reported: Collection[ast.ClassDef]) -> list[Site]:
        """Everything in the file beside the classes that were ``reported``."""
        if not (self.places.loose or any(place.direct for place in self.places.all)):
            return []
        for place in self.places.classes:
            if place.node in reported:
                self._cover(place)
        found = self.apart.sites()
        self.covered |= self.apart.taken
        found += self._classes()
        found += self._functions()
        return found

    def _cover(self, place: Place) -> None:
        """Leave out what ``place`` holds; what it calls is its helper."""
        self.covered.add(place)
        for inner in place.inner:
            self._cover(inner)
        self.helpers |= self.places.reached(place) & self.places.rooted

    def _flow(self, place: Place, attributes: Mapping[str, Value]) -> tuple[Flow, Value]:
        methods = _methods(place.owner)
        sizes = _roots_of_sizes(methods.get("__init__")) if self.places.lengths else None
        flow = Flow(self.module, attributes, methods, self.places.followed, sizes)
        assert not isinstance(place.node, ast.ClassDef)
        return flow, flow.run(place.node, place.bound)

    def _attributes(self, owner: Place | None) -> Mapping[str, Value]:
        """What a constructor leaves in ``self``, none of its arguments being known."""
        if owner is None or not isinstance(owner.node, ast.ClassDef):
            return {}
        init = _methods(owner).get("__init__")
        if init is not None and (init.args.posonlyargs or not init.args.args):
            return {}
        names = [a.arg for a in (*init.args.args[1:], *init.args.kwonlyargs)] if init else []
        evaluator = Evaluator(self.module, owner.node)
        return evaluator.construct({name: Source(name, name) for name in names}).attributes

    # Classes

    def _classes(self) -> list[Site]:
        found: list[Site] = []
        for place in self.places.classes:
            if place in self.covered or not self._reaches_root(place):
                continue
            read = self._read_class(place)
            kernel = self._kernel(place) if read is None else None
            if read is None and kernel is None:
                continue
            self._cover(place)
            where: list[ast.expr | ast.stmt] = [*self._constructions(place)] or [place.node]
            for node in where:
                if read is not None:
                    found.append(for_class(self.module, node, place, *read))
                elif kernel is not None:
                    extends = self.apart.extends_standard(place)
                    found.append(for_kernel_class(self.module, node, place, kernel, extends))
        return found

    def _kernel(self, place: Place) -> str | None:
        """The function that the class hands its input and weight to, where that is an RMS norm by
        its name; what it computes is not seen."""
        text = self.places.text(place)
        found = _KERNEL.search(text) if "rms" in text else None
        if found is None:
            return None
        if self.apart.extends_standard(place):
            return found[0].rstrip("( ")
        attributes = self._attributes(place)
        for entry in place.inner:
            if not _is_entry(entry):
                continue
            assert not isinstance(entry.node, ast.ClassDef)
            flow = Flow(self.module, attributes, _methods(place), frozenset())
            for call in spine(flow.run(entry.node, entry.bound)):
                if not isinstance(call, Op) or not call.kind.startswith("call:"):
                    continue
                name = call.kind.removeprefix("call:")
                given = [part for operand in call.operands for part in walk(operand)]
                fed = any(part in flow.parameters for part in map(base, call.operands))
                weighted = fed and any(isinstance(part, Weight) for part in given)
                if weighted and _KERNEL_NAME.fullmatch(name.rsplit(".", 1)[-1]):
                    return name
        return None

    def _reaches_root(self, place: Place) -> bool:
        return any(
            inner.direct or inner.node.name in self.places.rooted for inner in place.inner
        ) and not any(outer in self.covered for outer in place.outward())

    def _read_class(self, place: Place) -> tuple[Place, Description] | None:
        """The method that normalises what it is given, and what it computes."""
        attributes: Mapping[str, Value] | None = None
        entries = [inner for inner in place.inner if _is_entry(inner)]
        for entry in sorted(entries, key=lambda inner: inner.node.name != "forward"):
            if entry.node.name not in self.places.rooted:
                continue
            norm = returned_norm(self._flow(entry, {})[1])
            if norm is None or not is_argument(norm[2]):
                continue
            if attributes is None:
                attributes = self._attributes(place)
            _, value = self._flow(entry, attributes)
            norm = returned_norm(value)
            if norm is not None and is_argument(norm[2]):
                product, root, factor, how = norm
                return entry, describe(value, root, product, factor, how)
        return None

    def _constructions(self, place: Place) -> list[ast.Call]:
        """Calls of the class by its name, bare or behind a dot."""
        name = place.node.name
        found: list[ast.Call] = []
        nodes: list[ast.expr] = [*self.module.names.get(name, [])]
        if place.outer is not None and place.outer.is_class:
            nodes += self.module.attributes.get(name, [])
        for node in nodes:
            call = self.module.parents[node]
            if isinstance(call, ast.Call) and call.func is node:
                found.append(call)
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    # Functions and inline code

    def _functions(self) -> list[Site]:
        norms = self.norms
        inline: list[tuple[Place | None, Product, Description]] = []
        lonely: dict[Place, list[Step]] = {}
        pending = [p for p in self.places.functions if p.direct and p not in self.covered]
        while pending:
            more: set[str] = set()
            for place in pending:
                flow, value = self._flow(place, {})
                if returned_norm(value) is None and not any(products(flow.steps)):
                    continue
                flow, value = self._flow(place, self._attributes(place.owner))
                norm = returned_norm(value)
                found, alone = products(flow.steps)
                if norm is not None and is_argument(norm[2]):
                    norms[place] = describe(value, norm[1], norm[0], norm[2], norm[3])
                    more.add(place.node.name)
                    continue
                inline += [(place, one, self._inline(flow, one)) for one in found]
                if alone:
                    lonely[place] = alone
                    more.add(place.node.name)
            if not more:
                break
            done = {*norms, *lonely, *(place for place, _, _ in inline)}
            pending = [
                place
                for place in self.places.functions
                if place not in done
                and place not in self.covered
                and more & self.places.words(place)
            ]
        inline += self._loose()
        sites = self._calls(norms)
        sites += [for_inline(self.module, where, one, read) for where, one, read in inline]
        sites += self._lonely(lonely)
        return sites

    def _inline(self, flow: Flow, one: Product) -> Description:
        product = one.step.value
        norm = grown(flow.steps, product)
        return describe(norm, one.root, product, one.factor, one.how)

    def _loose(self) -> list[tuple[Place | None, Product, Description]]:
        """Norms in the file's own statements."""
        if not self.places.loose:
            return []
        flow = Flow(self.module, {}, {}, self.places.followed)
        flow.run(self.module.tree, bound=False)
        return [(None, one, self._inline(flow, one)) for one in products(flow.steps)[0]]

    def _calls(self, norms: Mapping[Place, Description]) -> list[Site]:
        """A finding for each call, or one at the definition when there is none.

        A function that is called by nothing but other such functions is their helper, unless
        they are helpers too, all round.
        """
        found: list[Site] = []
        callers: dict[Place, set[ast.AST]] = {}
        shown: set[ast.AST] = {place.node for place in self.covered}
        for place, read in norms.items():
            calls = self._calls_of(place)
            around = {call: self._around(call, norms) for call in calls}
            free = [call for call in calls if around[call] is None]
            found += [for_function(self.module, call, place, read) for call in free]
            if free or place.node.name in self.helpers:
                shown.add(place.node)
            elif not calls:
                shown.add(place.node)
                found.append(for_function(self.module, place.node, place, read))
            else:
                callers[place] = {outer for outer in around.values() if outer is not None}
        while callers:
            helpers = [place for place, outer in callers.items() if outer & shown]
            if not helpers:
                helpers = [next(iter(callers))]
                place = helpers[0]
                found.append(for_function(self.module, place.node, place, norms[place]))
            for place in helpers:
                shown.add(place.node)
                del callers[place]
        return found

    def _calls_of(self, place: Place) -> list[ast.Call]:
        name = place.node.name
        found: list[ast.Call] = []
        nodes: list[ast.expr] = [*self.module.names.get(name, [])]
        if place.owner is not None:
            nodes = [*self.module.attributes.get(name, [])]
            nodes = [node for node in nodes if self._means(node, place.owner)]
        for node in nodes:
            call = self.module.parents[node]
            if isinstance(call, ast.Call) and call.func is node:
                found.append(call)
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def _means(self, node: ast.expr, owner: Place) -> bool:
        """Whether ``node``, an attribute, is one of ``owner``'s: of its name, or of ``self`` in
        the class or in one that inherits from it."""
        assert isinstance(node, ast.Attribute)
        if last(node.value) == owner.node.name:
            return True
        outer = self.module.enclosing(node, ast.ClassDef)
        if not isinstance(node.value, ast.Name) or node.value.id not in ("self", "cls"):
            return False
        if not isinstance(outer, ast.ClassDef):
            return False
        return outer is owner.node or owner.node.name in [last(base) for base in outer.bases]

    @property
    def shown(self) -> set[ast.AST]:
        """Classes and functions whose findings stand for all that is in them."""
        return {place.node for place in (*self.covered, *self.norms)}

    def _around(self, node: ast.AST, norms: Mapping[Place, Description]) -> ast.AST | None:
        """What ``node`` stands in that is reported itself."""
        taken = {place.node for place in (*self.covered, *norms)}
        current: ast.AST | None = node
        while current is not None and current not in taken:
            current = self.module.parents.get(current)
        return current

    def _lonely(self, lonely: Mapping[Place, list[Step]]) -> list[Site]:
        """Roots of a mean of squares that are not seen to multiply anything."""
        found: list[Site] = []
        for place, steps in lonely.items():
            used = self._calls_of(place) or place.node.name in self.helpers
            if not used:
                found += [for_inline(self.module, place, step, None) for step in steps]
        return found


def _methods(owner: Place | None) -> dict[str, ast.FunctionDef]:
    if owner is None:
        return {}
    return {
        inner.node.name: inner.node
        for inner in owner.inner
        if isinstance(inner.node, ast.FunctionDef)
    }


def _roots_of_sizes(init: ast.FunctionDef | None) -> dict[str, ast.expr]:
    """Attributes that a constructor stores a root of something in, as ``dim**0.5``."""
    found: dict[str, ast.expr] = {}
    for node in walk_nodes(init) if init is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                value = node.value
                power = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow | ast.Div)
                if power or (isinstance(value, ast.Call) and last(value) in ("sqrt", "rsqrt")):
                    found[name] = value
    return found


def _is_entry(place: Place) -> bool:
    name = place.node.name
    return not place.is_class and (name in _ENTRIES or "forward" in name)
