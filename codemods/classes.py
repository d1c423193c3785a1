"""Decides about every construction of one model-local norm class."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from normport.codemods.checks import (
    Refused,
    check_arguments,
    check_class,
    check_dtypes,
    weight_objection,
)
from normport.codemods.evaluate import Evaluator
from normport.codemods.expressions import bind_values
from normport.codemods.forms import input_forms
from normport.codemods.model import Edit, ProofCase, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.recognise import NotStandard, Recognised, recognise
from normport.codemods.registry import NormSite, Target, conversion
from normport.codemods.sizes import SizeInference
from normport.codemods.standalone import NotStandalone, standalone
from normport.codemods.uses import (
    Binding,
    binding,
    called_elsewhere,
    class_uses,
    objection,
    site_calls,
)
from normport.codemods.values import Const, Source, Unknown, Value, Weight


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

    def _blind(self) -> Recognised | NotStandard | None:
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
                a.arg: value for a, node in pairs if (value := self._default(node)) != Const(None)
            }
        return self._read(unknown) or self._read(defaults)

    def _never_constructed(self) -> Site | None:
        read = self._blind()
        if read is None:
            return None
        code, why = "NP219", "nothing in this file constructs it"
        if isinstance(read, NotStandard) and read.code != "NP210":
            code, why = read.code, read.why
        return Site(
            line=self.node.lineno,
            column=self.module.column(self.node),
            code=code,
            norm=self.node.name,
            attribute=None,
            computes=read.computes,
            verdict="refuse",
            target=None,
            reason=f"{self.node.name}: {why}.",
        )

    def _read(self, arguments: Mapping[str, Value]) -> Recognised | NotStandard | None:
        """What an instance built with ``arguments`` computes, checked down to its parameters."""
        evaluator = Evaluator(self.module, self.node)
        instance = evaluator.construct(arguments)
        read = recognise(evaluator.forward())
        self._reached |= evaluator.reached
        if not isinstance(read, Recognised):
            return read
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
            found = weight_objection(read.weight, set(parameters), read.computes)
            if found is not None:
                return NotStandard(*found, read.computes)
        return read

    def _convert(self, call: ast.Call, bound: Binding | None, site: Site) -> Site | None:
        arguments = self._bind(call)
        read = self._read(arguments)
        if read is None:
            return None
        if isinstance(read, NotStandard):
            raise Refused(read.code, read.why, read.computes)
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
        if bound.init.name != "__init__":
            why = f"it is built in {bound.init.name}, where no vLLM config need be set"
            raise Refused("NP222", why, computes)
        check_dtypes(self.module, bound, computes)
        size = self._size(read, bound, call, arguments)
        target = rule.target(NormSite(computes, size, computes.eps or ""), self.unsafe)
        check_arguments(self.module, call, target.text, computes)
        proof, why_not = self._proof(call, arguments, read, target, size)
        if proof is not None:
            forms = input_forms(self.module, site_calls(self.module, bound), self._input())
            proof = replace(proof, forms=forms)
        reason = target.reason
        if why_not is not None:
            reason = f"{self.node.name} cannot be run by itself: {why_not}."
        return replace(
            site,
            code=rule.code,
            computes=computes,
            verdict="convert",
            target=target.text,
            reason=reason,
            edits=(self._edit(call, target.text), *self._annotations(bound, target)),
            imports=target.imports,
            proof=proof,
        )

    def _bind(self, call: ast.Call) -> dict[str, Value]:
        """The constructor's parameters as this call fills them, defaults included."""
        if any(isinstance(a, ast.Starred) for a in call.args) or any(
            k.arg is None for k in call.keywords
        ):
            raise Refused("NP215", "its arguments are spread with * or **")
        init = self._init()
        if init is not None and (init.args.posonlyargs or not init.args.args):
            raise Refused("NP215", "its constructor's parameters are unusual")
        if init is None:
            if call.args or call.keywords:
                raise Refused("NP215", "it is called with arguments but has no constructor")
            return {}
        names = [p.arg for p in init.args.args[1:]]
        positional = [
            self._value(argument, name) for argument, name in zip(call.args, names, strict=False)
        ]
        keywords = {k.arg: self._value(k.value, k.arg) for k in call.keywords if k.arg}
        if len(call.args) > len(names):
            raise Refused("NP215", "its call does not fit its constructor")
        parameters = ast.arguments(
            posonlyargs=[],
            args=init.args.args[1:],
            vararg=init.args.vararg,
            kwonlyargs=init.args.kwonlyargs,
            kw_defaults=init.args.kw_defaults,
            kwarg=init.args.kwarg,
            defaults=init.args.defaults,
        )
        bound = bind_values(parameters, positional, keywords, self._default)
        if bound is None:
            raise Refused("NP215", "its call does not fit its constructor")
        return bound

    def _input(self) -> str:
        """The name of forward's input."""
        forward = self._method("forward")
        names = [argument.arg for argument in forward.args.args] if forward is not None else []
        return names[1] if len(names) > 1 else "x"

    def _init(self) -> ast.FunctionDef | None:
        return self._method("__init__")

    def _method(self, name: str) -> ast.FunctionDef | None:
        for statement in reversed(self.node.body):
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
        return None

    def _value(self, node: ast.expr, param: str) -> Value:
        try:
            return Const(ast.literal_eval(node), param, self.module.segment(node))
        except (ValueError, SyntaxError):
            text = self.module.segment(node)
            return Source(text if "\n" not in text else ast.unparse(node), param)

    def _default(self, node: ast.expr) -> Value:
        try:
            return Const(ast.literal_eval(node), text=self.module.segment(node))
        except (ValueError, SyntaxError):
            name = node.id if isinstance(node, ast.Name) else ""
            constant = self.module.constants.get(name)
            if isinstance(constant, ast.Constant) and self.module.means_one_thing(name):
                return Const(constant.value, text=self.module.segment(constant))
            return Unknown(f"the default `{ast.unparse(node)}`")

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

    def _proof(
        self,
        call: ast.Call,
        arguments: Mapping[str, Value],
        read: Recognised,
        target: Target,
        size: str,
    ) -> tuple[ProofCase | None, str | None]:
        """How to run this construction beside its replacement, or why it cannot be run."""
        try:
            text = standalone(self.module, self.node.name)
        except NotStandalone as problem:
            return None, str(problem)
        shape = read.weight.shape[0] if read.weight is not None else None
        size_param = shape.param if isinstance(shape, Const | Source) else ""
        if shape is not None and not size_param:
            return None, "the size of its weight is written into its constructor"
        eps = read.eps
        passed: list[str] = []
        given = [(None, a) for a in call.args] + [(k.arg, k.value) for k in call.keywords]
        names = [p.arg for p in init.args.args[1:]] if (init := self._init()) else []
        for position, (keyword, _) in enumerate(given):
            param = keyword or names[position]
            value = arguments[param]
            if param == size_param or (isinstance(value, Source) and value.text == size):
                word = "SIZE"
            elif param == eps.param:
                word = "EPS"
            else:
                word = repr(value.value) if isinstance(value, Const) else "None"
            passed.append(f"{keyword}={word}" if keyword else word)
        eps_value = eps.value if isinstance(eps, Const) else None
        new = target.text.replace(f"({size}, ", "(SIZE, ", 1)
        new = new.replace(f"eps={read.computes.eps}", "eps=EPS", 1)
        case = ProofCase(
            module=text,
            old=f"{self.node.name}({', '.join(passed)})",
            new=new,
            weight=read.computes.weight,
            eps=float(eps_value) if isinstance(eps_value, int | float) else None,
        )
        return case, None
