"""Decides about every construction of one model-local norm class."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from normport.codemods.calls import CallChange, CallReader, merged
from normport.codemods.cases import proof_case
from normport.codemods.checks import Refused, check_class, check_dtypes, weight_objection
from normport.codemods.construction import Constructed, check_arguments, construct, default
from normport.codemods.evaluate import Evaluator
from normport.codemods.forms import Outcome, outcome
from normport.codemods.model import Edit, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.recognise import NotStandard, Recognised, recognise
from normport.codemods.registry import NormSite, Target, conversion
from normport.codemods.sizes import SizeInference
from normport.codemods.uses import (
    Binding,
    attribute_calls,
    binding,
    called_elsewhere,
    class_uses,
    holds_only,
    objection,
)
from normport.codemods.values import Const, Source, Value, Weight


class ClassReader:
    """Reads one class and its uses.

    module: the file. node: the class. unsafe, dims: see ``analyze.Options``.
    outside: other files import the class.
    """

    def __init__(
        self,
        module: ModuleInfo,
        node: ast.ClassDef,
        unsafe: bool,
        dims: Mapping[str, str],
        outside: bool,
    ) -> None:
        self.module = module
        self.node = node
        self.unsafe = unsafe
        self.dims = dims
        self.outside = outside
        self.uses = class_uses(module, node.name)
        self._reached: set[str] = set()

    def sites(self) -> list[Site]:
        """A site for each construction; one at the class when there is none; none at all when
        the class does not normalise."""
        for name in ("__init__", "forward"):
            method = self._method(name)
            if method is not None and (method.args.posonlyargs or not method.args.args):
                return []
        if self._blind() is None:
            return []
        found: list[Site] = []
        for call in self.uses.calls:
            site = self._site(call)
            if site is not None:
                found.append(site)
        if not self.uses.calls:
            site = self._never_constructed()
            return [] if site is None else [site]
        return found

    def _site(self, call: ast.Call) -> Site | None:
        bound = binding(self.module, call)
        site = Site(
            line=call.lineno,
            column=self.module.column(call),
            code="NP210",
            norm=self.node.name,
            attribute=bound.attribute if bound else None,
            owner=bound.owner.name if bound else None,
            computes=None,
            verdict="refuse",
            target=None,
            reason=None,
        )
        try:
            return self._convert(call, bound, site)
        except Refused as refused:
            reason = f"{self.node.name}: {refused.why}."
            return replace(site, code=refused.code, computes=refused.computes, reason=reason)

    def _blind(self) -> Outcome | NotStandard | None:
        """What the class computes with nothing known of its arguments; None: no norm at all.

        Two readings, because a flag that is not known hides what depends on it: with every
        argument unknown, and with the defaults.
        """
        init = self._init()
        names = [a.arg for a in (*init.args.args[1:], *init.args.kwonlyargs)] if init else []
        unknown: dict[str, Value] = {name: Source(name, name) for name in names}
        defaults = dict(unknown)
        if init is not None:
            pairs = zip(reversed(init.args.args), reversed(init.args.defaults), strict=False)
            defaults |= {
                a.arg: value
                for a, node in pairs
                if (value := default(self.module, node)) != Const(None)
            }
        return self._read(unknown) or self._read(defaults)

    def _never_constructed(self) -> Site | None:
        read = self._blind()
        if read is None:
            return None
        code, why = "NP219", "nothing in this file constructs it"
        computes = read.computes if isinstance(read, NotStandard) else read.read.computes
        if isinstance(read, NotStandard) and read.code != "NP210":
            code, why = read.code, read.why
        return Site(
            line=self.node.lineno,
            column=self.module.column(self.node),
            code=code,
            norm=self.node.name,
            attribute=None,
            computes=computes,
            verdict="refuse",
            target=None,
            reason=f"{self.node.name}: {why}.",
        )

    def _read(
        self,
        arguments: Mapping[str, Value],
        positional: Sequence[Value] | None = None,
        keywords: Mapping[str, Value] | None = None,
    ) -> Outcome | NotStandard | None:
        """What an instance built with ``arguments`` computes, checked down to its parameters.

        positional, keywords: of a call; without them the input alone is passed, and what comes
        back in a tuple counts as not standard.
        """
        evaluator = Evaluator(self.module, self.node)
        instance = evaluator.construct(arguments)
        value = evaluator.forward(positional, keywords)
        found = outcome(value)
        if positional is None and isinstance(found, Outcome) and found.kind != "single":
            found = recognise(value)
        self._reached |= evaluator.reached
        if not isinstance(found, Outcome):
            return found if isinstance(found, NotStandard) else None
        read = found.read
        if instance.notes:
            note = instance.notes[0]
            return NotStandard("NP212", f"it also has {note}", read.computes)
        parameters = {
            name: value for name, value in instance.attributes.items() if isinstance(value, Weight)
        }
        extra = [name for name, value in parameters.items() if value != read.weight]
        if extra:
            why = f"it has a parameter `{extra[0]}` that the standard layer lacks"
            return NotStandard("NP206", why, read.computes)
        if read.weight is not None:
            objected = weight_objection(read.weight, set(parameters), read.computes)
            if objected is not None:
                return NotStandard(*objected, read.computes)
        return found

    def _convert(self, call: ast.Call, bound: Binding | None, site: Site) -> Site | None:
        built = construct(self.module, self.module, self._init(), call)
        blind = self._read(built.values)
        if blind is None:
            return None
        changes: list[CallChange] = []
        if isinstance(blind, NotStandard):
            changes = self._calls_instead(built, bound, blind)
            read = changes[0].outcome.read
        else:
            read = blind.read
        computes = read.computes
        rule = conversion(computes)
        if rule is None or rule.target is None:
            raise Refused("NP213", f"it adds {computes.offset:g} to its weight", computes)
        check_class(self.module, self.node, self.uses, self._reached, computes)
        if self.outside:
            why = "other files import it, so its uses are not all seen here"
            raise Refused("NP220", why, computes)
        if bound is None:
            why = "it is not stored in an attribute of self, so its calls are not seen"
            raise Refused("NP209", why, computes)
        found = objection(self.module, bound)
        if found is not None:
            raise Refused(found.code, found.why, computes)
        changes = changes or self._calls(built, bound)
        call_edits, forms = merged(changes)
        if read != changes[0].outcome.read:
            raise Refused("NP208", "its calls make it compute something else", computes)
        if call_edits and not holds_only(self.module, bound, self.node.name):
            why = (
                f"its calls would have to be rewritten, and self.{bound.attribute} may hold "
                "something else than this norm"
            )
            raise Refused("NP208", why, computes)
        if bound.init.name != "__init__":
            why = f"it is built in {bound.init.name}, where no vLLM config need be set"
            raise Refused("NP222", why, computes)
        check_dtypes(self.module, bound, computes)
        if built.spread is not None:
            why = f"its arguments come out of {built.spread}; write them out in the call"
            raise Refused("NP215", why, computes)
        size = self._size(read, bound, call, built.values)
        target = rule.target(NormSite(computes, size, computes.eps or ""), self.unsafe)
        check_arguments(self.module, call, target.text, computes)
        proof, why_not = proof_case(
            self.module, self.node, built.passed, built.values, read, target, size, forms
        )
        reason = target.reason
        if why_not is not None:
            reason = f"{self.node.name} cannot be run by itself: {why_not}."
        together = f"{bound.owner.name}.{bound.attribute}" if call_edits else None
        return replace(
            site,
            code=rule.code,
            computes=computes,
            verdict="convert",
            target=target.text,
            reason=reason,
            edits=(
                self._edit(call, target.text),
                *self._annotations(bound, target),
                *call_edits,
            ),
            imports=target.imports,
            proof=proof,
            together=together,
            rewrites_calls=bool(call_edits),
        )

    def _calls(self, built: Constructed, bound: Binding) -> list[CallChange]:
        """What each call of the norm becomes; raises Refused."""
        forward = self._method("forward")
        assert forward is not None, "a class without one is no norm"
        reader = CallReader(
            self.module, forward, lambda given, words: self._read(built.values, given, words)
        )
        return [reader.change(call) for call in attribute_calls(self.module, bound)]

    def _calls_instead(
        self, built: Constructed, bound: Binding | None, blind: NotStandard
    ) -> list[CallChange]:
        """The calls of a norm that takes or returns more than a standard layer, where each of
        them can be said to one; else raises Refused for what the class is."""
        changes: list[CallChange] = []
        if blind.code == "NP216" and bound is not None:
            try:
                changes = self._calls(built, bound)
            except Refused as refused:
                if refused.code != "NP208":
                    raise
        if not changes:
            raise Refused(blind.code, blind.why, blind.computes)
        return changes

    def _init(self) -> ast.FunctionDef | None:
        return self._method("__init__")

    def _method(self, name: str) -> ast.FunctionDef | None:
        for statement in reversed(self.node.body):
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
        return None

    def _size(
        self, read: Recognised, bound: Binding, call: ast.Call, arguments: Mapping[str, Value]
    ) -> str:
        if read.weight is not None:
            size = read.weight.shape[0]
            assert isinstance(size, Source | Const)
            return size.text or repr(getattr(size, "value", size))
        given = self.dims.get(f"{bound.owner.name}.{bound.attribute}")
        if given is not None:
            return given
        line = called_elsewhere(self.module, bound)
        if line is not None:
            why = f"self.{bound.attribute} is also called outside of its class, in line {line}"
            hint = f"{why}; give its size with --dim {bound.owner.name}.{bound.attribute}=EXPR"
            raise Refused("NP207", hint, read.computes)
        inference = SizeInference(self.module, bound.owner, bound.init)
        inferred, why = inference.infer(bound.attribute, call)
        if inferred is None:
            hint = f"{why}; give it with --dim {bound.owner.name}.{bound.attribute}=EXPR"
            raise Refused("NP207", hint, read.computes)
        return inferred

    def _edit(self, node: ast.expr, new: str) -> Edit:
        return Edit(node.lineno, self.module.column(node), self.module.segment(node), new)

    def _annotations(self, bound: Binding, target: Target) -> list[Edit]:
        """Edits of the class's name in annotations of the attribute."""
        edits: list[Edit] = []
        for node in ast.walk(bound.owner):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Attribute):
                continue
            if node.target.attr != bound.attribute:
                continue
            for part in ast.walk(node.annotation):
                if isinstance(part, ast.Name) and part.id == self.node.name:
                    edits.append(self._edit(part, target.layer))
        return edits
