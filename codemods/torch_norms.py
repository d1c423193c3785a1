"""``torch.nn.RMSNorm`` and ``torch.nn.functional.rms_norm``: norms that torch ships.

``torch.nn.RMSNorm`` normalises and multiplies in float32 and rounds once, for bf16 and fp16
inputs too; without an ``eps`` it uses float32's machine epsilon whatever the input's dtype
(torch 2.13, ``test_torch_norms.py``).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from normport.codemods.checks import Refused, check_dtypes, is_shape
from normport.codemods.class_uses import class_uses
from normport.codemods.construction import check_arguments
from normport.codemods.epsilon import tensor_epsilon
from normport.codemods.forms import input_forms
from normport.codemods.holders import bindings
from normport.codemods.lookups import looked_up
from normport.codemods.model import Computes, Edit, ProofCase, Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import dotted, spelled, walk
from normport.codemods.refusals import refuse
from normport.codemods.registry import NormSite, all_rules
from normport.codemods.stored import values_of
from normport.codemods.tensor_calls import MACHINE_EPS, RMS_NORMS
from normport.codemods.uses import Binding, attribute_calls, objection

CLASS = "torch.nn.RMSNorm"
_CLASSES = {CLASS, "torch.nn.modules.RMSNorm", "torch.nn.modules.normalization.RMSNorm"}
_FUNCTIONS = RMS_NORMS | {"torch.ops.aten.rms_norm", "torch.ops.aten._fused_rms_norm"}
_HEADS = ("RMSNorm", "rms_norm", "_fused_rms_norm")
_STARS = {
    **dict.fromkeys(("torch.nn", "torch.nn.modules", "torch.nn.modules.normalization"), "RMSNorm"),
    **dict.fromkeys(("torch.nn.functional", "torch"), "rms_norm"),
}
"""Modules from which ``import *`` brings a norm, and its name."""
_PARAMETERS = ("normalized_shape", "eps", "elementwise_affine", "device", "dtype")


def _without_default(call: ast.Call) -> ast.Call:
    if len(call.args) != 3:
        return call
    return ast.copy_location(ast.Call(call.func, call.args[:2], call.keywords), call)


@dataclass(frozen=True)
class _Arguments:
    """A construction's arguments by name, where they are given."""

    given: Mapping[str, ast.expr]

    def constant(self, name: str, default: object) -> object:
        """The value of an argument that is a constant; the expression itself where it is not."""
        node = self.given.get(name)
        if node is None:
            return default
        return node.value if isinstance(node, ast.Constant) else node


class TorchNorms:
    """Reads one file. unsafe: see ``analyze.Options``."""

    def __init__(self, module: ModuleInfo, unsafe: bool) -> None:
        self.module = module
        self.unsafe = unsafe
        self._called: dict[ast.expr, ast.expr] = {}

    def sites(self, reported: Collection[ast.AST]) -> list[Site]:
        """reported: classes and functions whose findings say already what they call."""
        found: list[Site] = []
        for node in self._references():
            if not self._is_class(node) and self._is_in(node, reported):
                continue
            site = self._site(node)
            if site is not None:
                found.append(site)
        return found + self._by_star() + looked_up(self.module)

    def _by_star(self) -> list[Site]:
        """What ``from torch.nn import *`` may have brought, also over what was imported before."""
        found: list[Site] = []
        for name, stars in self._stars().items():
            if name in self.module.bindings:
                continue
            named = [
                node.lineno
                for node in self.module.each(ast.ImportFrom)
                if any((alias.asname or alias.name) == name for alias in node.names)
            ]
            last = max(stars, key=lambda node: node.lineno)
            if named and max(named) > last.lineno:
                continue
            why = (
                f"`from {last.module} import *` brings it, as far as can be seen; import it by name"
            )
            label = CLASS if name == "RMSNorm" else "torch.nn.functional.rms_norm"
            found += [
                refuse(self.module, node, "NP221", label, why)
                for node in self.module.names.get(name, [])
                if node not in self.module.annotated and not self._is_checked(node)
            ]
        return found

    def _stars(self) -> dict[str, list[ast.ImportFrom]]:
        """The imports that may bring a norm, by its name."""
        found: dict[str, list[ast.ImportFrom]] = {}
        for node in self.module.each(ast.ImportFrom):
            if node.names[0].name == "*" and node.module in _STARS and not node.level:
                found.setdefault(_STARS[node.module], []).append(node)
        return found

    def _is_in(self, node: ast.AST, outer: Collection[ast.AST]) -> bool:
        current: ast.AST | None = node
        while current is not None and current not in outer:
            current = self.module.parents.get(current)
        return current is not None

    def _references(self) -> list[ast.expr]:
        """Every name or dotted name that means one of torch's norms, not being part of one."""
        nodes: list[ast.expr] = [n for name in _HEADS for n in self.module.attributes.get(name, [])]
        nodes += self._by_getattr()
        for local, full in self.module.imports.items():
            if full in _CLASSES | _FUNCTIONS:
                nodes += self.module.names.get(local, [])
        return sorted(
            (n for n in nodes if self.module.qualified(n) in _CLASSES | _FUNCTIONS),
            key=lambda node: (node.lineno, node.col_offset),
        )

    def _by_getattr(self) -> Iterator[ast.expr]:
        """``getattr(F, "rms_norm")`` as the dotted name that it is, whatever it is by default: the
        torch that vLLM wants has it."""
        for constant in (c for name in _HEADS for c in self.module.strings.get(name, [])):
            parent = self.module.parents[constant]
            named = dotted(_without_default(parent)) if isinstance(parent, ast.Call) else None
            if isinstance(parent, ast.Call) and isinstance(named, ast.Attribute):
                self.module.parents[named] = self.module.parents[parent]
                self._called[named] = parent
                yield named

    def _is_class(self, node: ast.expr) -> bool:
        return self.module.qualified(node) in _CLASSES

    def _site(self, node: ast.expr) -> Site | None:
        parent = self.module.parents[node]
        spelled_as = self._called.get(node, node)
        call = parent if isinstance(parent, ast.Call) and parent.func is spelled_as else None
        if not self._is_class(node):
            name = self.module.qualified(node) or ""
            if call is None and isinstance(getattr(node, "ctx", None), ast.Store):
                return None
            if call is None:
                why = "it is passed on as a value here, so its calls are not seen; call it by name"
                return refuse(self.module, node, "NP233", name, why)
            why = (
                "the call normalises without a layer that vLLM could dispatch; build RMSNorm in "
                "the constructor and call that here"
            )
            return refuse(self.module, call, "NP233", name, why, self._functional(call))
        if call is not None:
            return self._construction(call)
        if node in self.module.annotated or self._is_checked(node):
            return None
        if isinstance(parent, ast.ClassDef):
            return self._subclass(parent)
        why = "it is passed on as a value here, so what it builds is not seen; build it by name"
        return refuse(self.module, node, "NP209", CLASS, why)

    def _is_checked(self, node: ast.expr) -> bool:
        parent: ast.AST = self.module.parents[node]
        while isinstance(parent, ast.Tuple | ast.BinOp):
            parent = self.module.parents[parent]
        called = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name)
        return called and spelled(parent.func) in ("isinstance", "issubclass")  # type: ignore[attr-defined]

    def _functional(self, call: ast.Call) -> Computes:
        names = ("input", "normalized_shape", "weight", "eps")
        given = dict(zip(names, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        weight, eps = given.get("weight"), given.get("eps")
        bare = weight is None or (isinstance(weight, ast.Constant) and weight.value is None)
        return Computes(
            weight="none" if bare else "scale",
            offset=0.0,
            multiply_in=None if bare else "float32",
            eps=self._eps(eps),
        )

    def _eps(self, node: ast.expr | None) -> str:
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return MACHINE_EPS
        text = self.module.segment(node)
        return text if "\n" not in text else spelled(node)

    def _subclass(self, node: ast.ClassDef) -> Site | None:
        """A class that inherits from torch's: its first construction, or the class."""
        uses = class_uses(self.module, node.name) if self._is_top(node) else None
        where: ast.expr | ast.stmt = uses.calls[0] if uses and uses.calls else node
        why = (
            "it inherits from torch.nn.RMSNorm; inherit from vLLM's RMSNorm, or declare that "
            "where this class is built"
        )
        return refuse(self.module, where, "NP236", node.name, why)

    def _is_top(self, node: ast.ClassDef) -> bool:
        return self.module.classes.get(node.name) is node

    def _construction(self, call: ast.Call) -> Site:
        held = bindings(self.module, call)
        # What a function is given, in place of the constructor, is not looked at.
        around = self.module.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        bound = held[0] if len(held) == 1 and held[0].init is around else None
        site = refuse(self.module, call, "NP232", CLASS, "")
        if bound is not None:
            site = replace(site, attribute=bound.attribute, owner=bound.owner.name)
        try:
            return self._convert(call, bound, site)
        except Refused as refused:
            reason = f"{CLASS}: {refused.why}."
            return replace(site, code=refused.code, computes=refused.computes, reason=reason)

    def _convert(self, call: ast.Call, bound: Binding | None, site: Site) -> Site:
        arguments = self._arguments(call)
        computes = self._computes(arguments)
        size = self._size(arguments, computes)
        if bound is None:
            why = "it is not stored in an attribute of self, so its calls are not seen"
            raise Refused("NP209", why, computes)
        found = objection(self.module, bound)
        if found is not None:
            raise Refused(found.code, found.why, computes)
        if bound.init.name != "__init__":
            why = f"it is built in {bound.init.name}, where no vLLM config is sure to be set"
            raise Refused("NP222", why, computes)
        calls = attribute_calls(self.module, bound)
        for each in calls:
            if len(each.args) != 1 or each.keywords or isinstance(each.args[0], ast.Starred):
                text = f"`{spelled(each)}` in line {each.lineno}"
                why = f"{text} passes something else than the input; pass that alone, first"
                raise Refused("NP208", why, computes)
        if self._may_be_none(arguments.given.get("eps"), bound):
            why = "its eps may be None, which RMSNorm does not take; write the number"
            raise Refused("NP232", why, computes)
        tensor = tensor_epsilon(self.module, call, computes.eps or "None")
        if tensor is not None:
            raise Refused("NP232", tensor, computes)
        line = self._checked_line()
        if line is not None:
            why = f"its type is checked in line {line}; ask for the standard layer there"
            raise Refused("NP211", why, computes)
        check_dtypes(self.module, bound, computes)
        rule = all_rules()["NP105"]
        assert rule.target is not None
        target = rule.target(NormSite(computes, size, computes.eps or ""), self.unsafe)
        check_arguments(self.module, call, target.text, computes)
        edits = [self._edit(call, target.text), *self._annotations(bound, target.layer)]
        return replace(
            site,
            code=rule.code,
            computes=computes,
            verdict="convert",
            target=target.text,
            reason=target.reason,
            edits=tuple(edits),
            imports=target.imports,
            proof=replace(
                self._proof(arguments, computes, target.text, size),
                forms=input_forms(self.module, calls, "x"),
            ),
        )

    def _arguments(self, call: ast.Call) -> _Arguments:
        if any(isinstance(a, ast.Starred) for a in call.args) or any(
            k.arg is None for k in call.keywords
        ):
            raise Refused("NP215", "its arguments are spread with * or **")
        given = dict(zip(_PARAMETERS, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        if len(call.args) > len(_PARAMETERS) or set(given) - set(_PARAMETERS):
            raise Refused("NP215", "its call does not fit its constructor")
        if "normalized_shape" not in given:
            raise Refused("NP215", "its call does not fit its constructor")
        return _Arguments(given)

    def _computes(self, arguments: _Arguments) -> Computes:
        affine = arguments.constant("elementwise_affine", True)
        dtype = arguments.given.get("dtype")
        full = self.module.qualified(dtype) if dtype is not None else None
        stored = full in ("torch.float32", "torch.float")
        computes = Computes(
            weight="scale" if affine else "none",
            offset=0.0,
            multiply_in="float32" if affine else None,
            eps=self._eps(arguments.given.get("eps")),
            initial="ones" if affine else None,
            weight_dtype=("float32" if stored else "run dtype") if affine else None,
        )
        if not isinstance(affine, bool):
            why = "whether it has a weight is decided at run time; build either in a branch"
            raise Refused("NP232", why, computes)
        plain = dtype is None or (isinstance(dtype, ast.Constant) and dtype.value is None)
        if affine and not plain and not stored:
            why = "its weight is stored in a dtype of its own; leave it, or give it the run's"
            raise Refused("NP206", why, computes)
        if arguments.constant("device", None) is not None:
            why = "its weight is put on a device of its own; leave the device to vLLM"
            raise Refused("NP232", why, computes)
        return computes

    def _size(self, arguments: _Arguments, computes: Computes) -> str:
        node = arguments.given["normalized_shape"]
        if isinstance(node, ast.Tuple | ast.List):
            if len(node.elts) != 1 or isinstance(node.elts[0], ast.Starred):
                why = "it normalises over more than one dimension; leave it, or flatten them"
                raise Refused("NP232", why, computes)
            node = node.elts[0]
        if isinstance(node, ast.Constant) and not isinstance(node.value, int):
            raise Refused("NP215", "its size is not a number; give one", computes)
        if is_shape(node):
            why = f"`{spelled(node)}` may name more than one dimension; give one number"
            raise Refused("NP232", why, computes)
        text = self.module.segment(node)
        return text if "\n" not in text else spelled(node)

    def _may_be_none(self, eps: ast.expr | None, bound: Binding) -> bool:
        """Whether an eps is a parameter of the constructor, or a variable, that says so."""
        if not isinstance(eps, ast.Name):
            return False
        stored = [part for value in values_of(self.module, eps) for part in walk(value)]
        if any(isinstance(part, ast.Constant) and part.value is None for part in stored):
            return True
        parameters = bound.init.args
        plain = [*parameters.posonlyargs, *parameters.args]
        defaults = dict(
            zip(reversed([a.arg for a in plain]), reversed(parameters.defaults), strict=False)
        )
        keyword = zip([a.arg for a in parameters.kwonlyargs], parameters.kw_defaults, strict=True)
        defaults |= {name: default for name, default in keyword if default is not None}
        default = defaults.get(eps.id)
        if isinstance(default, ast.Constant) and default.value is None:
            return True
        notes = [a.annotation for a in (*plain, *parameters.kwonlyargs) if a.arg == eps.id]
        words = " ".join(spelled(note) for note in notes if note is not None)
        return "None" in words or "Optional" in words

    def _checked_line(self) -> int | None:
        """The line of an isinstance that asks for torch's class."""
        for node in self._references():
            if self._is_class(node) and self._is_checked(node):
                return node.lineno
        return None

    def _edit(self, node: ast.expr, new: str) -> Edit:
        return Edit(node.lineno, self.module.column(node), self.module.segment(node), new)

    def _annotations(self, bound: Binding, layer: str) -> list[Edit]:
        edits: list[Edit] = []
        for node in walk(bound.owner):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Attribute)
                and node.target.attr == bound.attribute
            ):
                parts = [p for p in walk(node.annotation) if isinstance(p, ast.expr)]
                edits += [self._edit(p, layer) for p in parts if self._names_class(p)]
        return edits

    def _names_class(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and self._is_class(node)

    def _proof(
        self, arguments: _Arguments, computes: Computes, target: str, size: str
    ) -> ProofCase:
        eps = arguments.constant("eps", None)
        number: float | None = None
        if eps is None:
            number = float(MACHINE_EPS)
        elif isinstance(eps, int | float):
            number = float(eps)
        passed = ["SIZE"]
        if eps is not None:
            passed.append("eps=EPS")
        if computes.weight == "none":
            passed.append("elementwise_affine=False")
        if computes.weight_dtype == "float32":
            passed.append("dtype=torch.float32")
        new = target.replace(f"({size}, ", "(SIZE, ", 1)
        new = new.replace(f"eps={computes.eps}", "eps=EPS", 1)
        return ProofCase(
            module="import torch\n",
            old=f"{CLASS}({', '.join(passed)})",
            new=new,
            weight=computes.weight,
            eps=number,
        )
