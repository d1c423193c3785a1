"""Decides about every construction of one model-local norm class."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from normport.codemods.calls import CallChange, CallReader, merged
from normport.codemods.cases import proof_case
from normport.codemods.checks import Refused, check_class, check_dtypes
from normport.codemods.class_uses import class_objection, class_uses
from normport.codemods.construction import Constructed, check_arguments, construct
from normport.codemods.epsilon import tensor_epsilon
from normport.codemods.forms import input_forms
from normport.codemods.holders import bindings
from normport.codemods.layer_sizes import Homes
from normport.codemods.made import asks_no_gradient, placed_weight
from normport.codemods.model import Computes, Edit, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import walk
from normport.codemods.outcomes import Outcome
from normport.codemods.planning import with_word
from normport.codemods.reading import NormReader
from normport.codemods.recognise import NotStandard, Recognised
from normport.codemods.registry import NormSite, Target, conversion
from normport.codemods.renaming import renamed
from normport.codemods.selection import Choice, follow, stand_in
from normport.codemods.sizes import SizeInference
from normport.codemods.subclasses import inherited
from normport.codemods.uses import (
    Binding,
    attribute_calls,
    binding,
    called_elsewhere,
    holds_only,
    objection,
)
from normport.codemods.values import Const, Source, Value

CHOICE = "choice in line"
"""How the word begins that the constructions of one chosen class have in common."""


class ClassReader:
    """Reads one class and its uses.

    module: the file. node: the class. unsafe, dims: see ``analyze.Options``.
    outside: other files import the class. name: what the file calls it, where that is another name.
    home: the file that defines it, where that is another one.
    """

    def __init__(
        self,
        module: ModuleInfo,
        node: ast.ClassDef,
        unsafe: bool,
        dims: Mapping[str, str],
        outside: bool,
        name: str | None = None,
        home: ModuleInfo | None = None,
        hidden: Collection[str] = (),
        adds: bool = False,
        homes: Homes | None = None,
    ) -> None:
        self.module = module
        self.home = home or module
        self.node = node
        self.name = name or node.name
        self.unsafe = unsafe
        self.dims = dims
        self.outside = outside
        self.hidden, self.adds, self.homes = hidden, adds, homes
        self.uses = class_uses(module, self.name)
        self.chosen = self._follow()
        self.norm = NormReader(self.home, node)
        self._modules = [module] if self.home is module else [module, self.home]

    def sites(self) -> list[Site]:
        """A site for each construction; one at the class when there is none; none at all when
        the class does not normalise."""
        if self.norm.is_unusual or self.norm.blind() is None:
            return []
        found: list[Site] = []
        for call in (*self.uses.calls, *self.chosen):
            site = self._site(call)
            if site is not None:
                found.append(site)
        found = [self._agreeing(site, found) for site in found]
        derived = any(inherited(self.module, node) for node in self.uses.bases)
        if not found and not self.uses.calls and self.home is self.module and not derived:
            site = self._never_constructed()
            return [] if site is None else [site]
        return found

    def _follow(self) -> dict[ast.Call, Choice]:
        """The constructions of the class where it is chosen as a value, while all are seen."""
        found: dict[ast.Call, Choice] = {}
        for node in self.uses.others:
            choice = follow(self.module, node, self.hidden) if isinstance(node, ast.Name) else None
            if choice is None or any(call in found for call in choice.calls):
                return {}
            found |= dict.fromkeys(choice.calls, choice)
        self.uses.others.clear()
        return found

    def _agreeing(self, site: Site, sites: Sequence[Site]) -> Site:
        """The site, refused when another one wants something else in place of the same choice."""
        kin = [s for s in sites if s.verdict == "convert" and set(s.together) & set(site.together)]
        if site.verdict == "refuse" or len({(s.edits[0], *s.imports) for s in kin}) == 1:
            return site
        if not any(word.startswith(CHOICE) for word in site.together):
            return site
        why = "it is chosen once and constructed in ways that need different layers"
        return site.refused("NP225", f"{self.name}: {why}; choose it apart for each.")

    def _site(self, call: ast.Call) -> Site | None:
        bounds = bindings(self.module, call, self.hidden)
        bound = bounds[0] if bounds else None
        site = Site(
            line=call.lineno,
            column=self.module.column(call),
            code="NP210",
            norm=self.name,
            attribute=bound.attribute if bound else None,
            owner=bound.owner.name if bound else None,
            also=tuple((b.owner.name, b.attribute) for b in bounds[1:]),
            computes=None,
            verdict="refuse",
            target=None,
            reason=None,
        )
        choice = self.chosen.get(call)
        if choice is not None:
            site = with_word(site, f"{CHOICE} {choice.name.lineno}, {choice.name.col_offset}")
        try:
            found = self._convert(call, bounds, site)
            if found is None and choice is not None:
                raise Refused("NP210", "what it computes with these arguments is not followed")
            return found
        except Refused as refused:
            reason = f"{self.name}: {refused.why}."
            words = tuple(f"{bound.owner.name}.{bound.attribute}" for bound in bounds)
            return replace(
                site,
                code=refused.code,
                computes=refused.computes,
                reason=reason,
                together=(*site.together, *words),
            )

    def _never_constructed(self) -> Site | None:
        read = self.norm.blind()
        if read is None:
            return None
        code, why = "NP219", "nothing in this file constructs it"
        computes = read.computes if isinstance(read, NotStandard) else read.read.computes
        if isinstance(read, NotStandard) and read.code != "NP210":
            code, why = read.code, read.why
        elif self.uses.others:
            line = getattr(self.uses.others[0], "lineno", 0)
            why = f"it is chosen or passed on as a value in line {line}; construct it by its name"
            code = "NP225"
        return Site(
            line=self.node.lineno,
            column=self.module.column(self.node),
            code=code,
            norm=self.name,
            attribute=None,
            computes=computes,
            verdict="refuse",
            target=None,
            reason=f"{self.name}: {why}.",
        )

    def _convert(self, call: ast.Call, bounds: Sequence[Binding], site: Site) -> Site | None:
        if self.adds:
            blind = self.norm.blind()
            read = blind.read if isinstance(blind, Outcome) else blind
            why = f"it inherits from {self.node.name} and adds to it; build that if it is enough"
            raise Refused("NP211", why, read.computes if read is not None else None)
        choice = self.chosen.get(call)
        more = choice.partial.keywords if choice is not None and choice.partial else ()
        built = construct(self.module, self.home, self.norm.init, call, more)
        blind = self.norm.read(built.values)
        if blind is None:
            return None
        placed = placed_weight(self.norm.init, built.values)
        if placed is not None:
            known = blind.computes if isinstance(blind, NotStandard) else blind.read.computes
            why = f"its weight is made on `{placed}`, whatever the run's; leave the device to vLLM"
            raise Refused("NP206", why, known)
        changes: list[CallChange] = []
        if isinstance(blind, NotStandard):
            changes = self._calls_instead(built, bounds, blind)
            read = changes[0].outcome.read
        else:
            read = blind.read
        computes = read.computes
        rule = conversion(computes)
        if rule is None or rule.target is None:
            raise Refused("NP213", f"it adds {computes.offset:g} to its weight", computes)
        self._check_class(computes)
        if self.outside:
            why = "other files import it, so its uses are not all seen here"
            raise Refused("NP220", why, computes)
        if not bounds:
            why = "it is not stored in an attribute of self, so its calls are not seen"
            raise Refused("NP209", why, computes)
        for bound in bounds:
            self._check_holder(bound, computes)
        changes = changes or self._calls(built, bounds)
        call_edits, forms = merged(changes) if changes else ((), ())
        if changes and read != changes[0].outcome.read:
            why = "its calls make it compute something else; call it with the input alone"
            raise Refused("NP208", why, computes)
        if call_edits:
            self._check_held(bounds, computes)
        for bound in bounds:
            check_dtypes(self.module, bound, computes)
        if built.spread is not None:
            why = f"its arguments come out of {built.spread}; write them out in the call"
            raise Refused("NP215", why, computes)
        if isinstance(read.eps, Source):
            tensor = tensor_epsilon(self.module, call, read.eps.text)
            if tensor is not None:
                raise Refused("NP210", tensor, computes)
        size = self._size(read, bounds, call, built.values)
        target = rule.target(NormSite(computes, size, computes.eps or ""), self.unsafe)
        check_arguments(self.module, call, target.text, computes)
        calls = [one for bound in bounds for one in attribute_calls(self.module, bound)]
        forms = input_forms(self.module, calls, self._input(), forms)
        proof, why_not = proof_case(
            self.home, self.node, built.passed, built.values, read, target, size, forms
        )
        told = [target.reason] if target.reason else []
        if asks_no_gradient(self.norm.init):
            told.append("The local weight has requires_grad=False, the standard layer's has not.")
        if self.norm.overwrites:
            told.append("The local class overwrites a float32 input, the standard layer does not.")
        reason = " ".join(told) or None
        if why_not is not None:
            reason = f"{self.name} cannot be run by itself: {why_not}."
        edit, imports = self._edit(call, target.text), target.imports
        words = [f"{b.owner.name}.{b.attribute}" for b in bounds] if call_edits else []
        if choice is not None:
            new, imports = stand_in(self.module, choice, call, target, computes)
            edit = self._edit(choice.replaced, new)
        annotations = [one for bound in bounds for one in self._annotations(bound, target)]
        return replace(
            site,
            code=rule.code,
            computes=computes,
            verdict="convert",
            target=target.text,
            reason=reason,
            edits=(edit, *annotations, *call_edits),
            imports=imports,
            proof=proof,
            together=(*site.together, *dict.fromkeys(words)),
            rewrites_calls=bool(call_edits),
        )

    def _check_holder(self, bound: Binding, computes: Computes) -> None:
        """What holds the norm is only called, and is built where a standard layer can be."""
        found = objection(self.module, bound)
        if found is not None:
            raise Refused(found.code, found.why, computes)
        if bound.init.name != "__init__":
            why = f"it is built in {bound.init.name}, where no vLLM config is sure to be set"
            raise Refused("NP222", why, computes)

    def _check_held(self, bounds: Sequence[Binding], computes: Computes) -> None:
        """Where calls change, whatever is called there is to change with them."""
        for bound in bounds:
            if bound.kind == "attribute" and holds_only(self.module, bound, self.name):
                continue
            why = (
                f"its calls would have to be rewritten, and self.{bound.attribute} may hold "
                "something else than this norm; store that under another name"
            )
            raise Refused("NP208", why, computes)

    def _check_class(self, computes: Computes) -> None:
        check_class(self.home, self.node, self.norm.reached, computes, self._modules)
        for name, module in ((self.name, self.module), (self.node.name, self.home)):
            uses = self.uses if module is self.module else class_uses(module, name)
            found = class_objection(module, name, uses)
            if found is not None:
                raise Refused(found.code, found.why, computes)

    def _calls(self, built: Constructed, bounds: Sequence[Binding]) -> list[CallChange]:
        """What each call of the norm becomes; raises Refused."""
        forward = self.norm.method("forward")
        assert forward is not None, "a class without one is no norm"
        reader = CallReader(
            self.module, forward, lambda given, words: self.norm.read(built.values, given, words)
        )
        calls = [call for bound in bounds for call in attribute_calls(self.module, bound)]
        return [reader.change(call) for call in calls]

    def _input(self) -> str:
        """The name of forward's input."""
        forward = self.norm.method("forward")
        names = [argument.arg for argument in forward.args.args] if forward is not None else []
        return names[1] if len(names) > 1 else "x"

    def _calls_instead(
        self, built: Constructed, bounds: Sequence[Binding], blind: NotStandard
    ) -> list[CallChange]:
        """The calls of a norm that takes or returns more than a standard layer, where each of
        them can be said to one; else raises Refused for what the class is."""
        changes: list[CallChange] = []
        if blind.code == "NP216" and all(bound.kind == "attribute" for bound in bounds):
            try:
                changes = self._calls(built, bounds)
            except Refused as refused:
                if refused.code != "NP208":
                    raise
        if not changes:
            raise Refused(blind.code, blind.why, blind.computes)
        return changes

    def _size(
        self,
        read: Recognised,
        bounds: Sequence[Binding],
        call: ast.Call,
        arguments: Mapping[str, Value],
    ) -> str:
        if read.weight is not None:
            size = read.weight.shape[0]
            assert isinstance(size, Source | Const)
            return size.text or repr(getattr(size, "value", size))
        bound = bounds[0]
        given = self.dims.get(f"{bound.owner.name}.{bound.attribute}")
        if given is not None:
            return given
        line = called_elsewhere(self.module, bound)
        hint = f"give its size with --dim {bound.owner.name}.{bound.attribute}=EXPR"
        if line is not None:
            why = f"self.{bound.attribute} is also called outside of its class, in line {line}"
            raise Refused("NP207", f"{why}; {hint}", read.computes)
        if len(bounds) > 1 or bound.kind != "attribute" or binding(self.module, call) is None:
            why = f"what flows into self.{bound.attribute} is not followed through what holds it"
            raise Refused("NP207", f"{why}; {hint}", read.computes)
        inference = SizeInference(self.module, bound.owner, bound.init, self.homes)
        inferred, why = inference.infer(bound.attribute, call)
        if inferred is None:
            hint = hint.replace("its size", "it")
            raise Refused("NP207", f"{why}; {hint}", read.computes)
        return inferred

    def _edit(self, node: ast.expr, new: str) -> Edit:
        return Edit(node.lineno, self.module.column(node), self.module.segment(node), new)

    def _annotations(self, bound: Binding, target: Target) -> list[Edit]:
        """Edits of the class's name in annotations of the attribute."""
        edits: list[Edit] = []
        for node in walk(bound.owner):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Attribute):
                continue
            if node.target.attr == bound.attribute:
                edits += renamed(self.module, walk(node.annotation), self.name, target.layer)
        return edits
