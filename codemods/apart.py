"""RMS normalisation that is no model's: device kernels, fusion passes and the standard layers.

They are listed apart, with the codes NP401 to NP403; there is nothing in them to convert.
"""

from __future__ import annotations

import ast
import re

from normport.codemods.flow import Flow
from normport.codemods.hints import Hint
from normport.codemods.model import Site
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import spelled, walk
from normport.codemods.places import Place, Places, last
from normport.codemods.products import products
from normport.codemods.refusals import stated
from normport.codemods.registry import LAYERNORM

_DEVICE = re.compile(r"\b(triton|tilelang|cutlass|cute|helion|gluon|flydsl|pallas|numba|taichi)\b")
_DEVICE_NAMES = {"tl", "T", "cute", "hl", "gl", "tldevice", "libdevice", "fx", "pl"}
_DEVICE_DECORATORS = {
    "jit", "kernel", "prim_func", "autotune", "heuristics", "register_kernel", "macro",
}  # fmt: skip
_PASS_MODULES = re.compile(r"^torch\._inductor|^torch\.fx|inductor_pass|pattern_matcher")
_PASS_HINT = Hint(
    {"torch._inductor": "", "fx": r"fx(?<=\bfx)\b", "inductor_pass": "", "pattern_matcher": ""}
)
_PTX_QUOTIENT = re.compile(r"\b(?:div|mul)\.\w")
_STANDARD_OPS = {"rms_norm", "gemma_rms_norm", "rms_norm_gated"}
_FUSED = re.compile(r"(fused_add_)?rms_norm|Matcher\w*RMSNorm\w*")
_IR_DECORATORS = {"register_op", "register_impl"}


class Apart:
    """Reads one file. ``taken`` collects every place that belongs to what was found."""

    def __init__(self, module: ModuleInfo, places: Places) -> None:
        self.module = module
        self.places = places
        self.taken: set[Place] = set()

    def sites(self) -> list[Site]:
        return [*self._standard(), *self._kernels(), *self._passes()]

    def _take(self, place: Place) -> None:
        self.taken.add(place)
        for inner in place.inner:
            self._take(inner)

    # The standard layers and ops

    def _standard(self) -> list[Site]:
        found: list[Site] = []
        if "regist" not in self.module.text and LAYERNORM not in self.module.text:
            return found
        for place in self.places.all:
            what = self._is_standard(place)
            if what is not None:
                self._take(place)
                why = f"{place.name} is {what} itself: it stays as it is."
                found.append(stated(self.module, place.node, "NP403", place.name, why))
        return found

    def _is_standard(self, place: Place) -> str | None:
        for decorator in place.node.decorator_list:
            name = last(decorator)
            if place.is_class and name.startswith("register") and isinstance(decorator, ast.Call):
                first = decorator.args[0] if decorator.args else None
                if isinstance(first, ast.Constant) and first.value in _STANDARD_OPS:
                    return "a standard norm layer"
            if not place.is_class and name in _IR_DECORATORS:
                text = spelled(decorator)
                if "rms_norm" in text or "rms_norm" in place.node.name:
                    return "a standard norm op" if name == "register_op" else "an op's provider"
        if self.extends_standard(place):
            methods = {inner.node.name for inner in place.inner}
            if "forward" not in methods and any(name.startswith("forward_") for name in methods):
                return "a platform's variant of a standard norm layer"
        return None

    def extends_standard(self, place: Place) -> bool:
        """Whether a class inherits from vLLM's own norm layers."""
        if not isinstance(place.node, ast.ClassDef) or LAYERNORM not in self.module.text:
            return False
        bases = [self.module.qualified(base) or "" for base in place.node.bases]
        return any(base.startswith(f"{LAYERNORM}.") for base in bases)

    # Device kernels

    def _kernels(self) -> list[Site]:
        found = []
        named: set[str] = set()
        assembled = "rsqrt." in self.module.text
        for place in self.places.functions:
            if not place.direct or place in self.taken:
                continue
            if assembled and _is_ptx_root(place.node):
                found.append(self._kernel(place))
                continue
            if not self._on_device(place):
                continue
            flow = Flow(self.module, {}, {}, self.places.rooted)
            flow.run(place.node, place.bound)  # type: ignore[arg-type]
            pairs, lonely = products(flow.steps, device=True)
            if pairs or lonely:
                named |= {word for outer in place.outward() for word in self._decorators(outer)}
                found.append(self._kernel(place))
        for place in self.places.functions:
            if place.outer is None and place.node.name in named:
                self._take(place)  # a reference or an input generator that a decorator names
        return found

    def _kernel(self, place: Place) -> Site:
        self._take(place)
        why = f"{place.name} is a device kernel: no layer replaces it from the outside."
        return stated(self.module, place.node, "NP401", place.name, why)

    def _decorators(self, place: Place) -> set[str]:
        return {word for decorator in place.node.decorator_list for word in words(decorator)}

    def _on_device(self, place: Place) -> bool:
        for outer in place.outward():
            for decorator in outer.node.decorator_list:
                text = self.module.qualified(_called(decorator)) or ""
                if last(decorator) in _DEVICE_DECORATORS and not text.startswith(("torch", "jax")):
                    return True
        for node in walk(place.node):
            if isinstance(node, ast.Call) and "sqrt" in last(node.func):
                root = node.func
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root is not node.func:
                    full = self.module.imports.get(root.id, "")
                    if root.id in _DEVICE_NAMES or _DEVICE.search(full):
                        return True
        return False

    # Fusion passes and pattern matchers

    def _passes(self) -> list[Site]:
        found: list[Site] = []
        if not _PASS_HINT.found_in(self.module.text):
            return found
        if not any(_PASS_MODULES.search(full) for full in self.module.imports.values()):
            return found
        for place in self.places.all:
            if place.outer is not None or place in self.taken or self._is_layer(place):
                continue
            if self._matches_norms(place.node):
                self._take(place)
                why = f"{place.name} looks for norms in a graph and computes none for a model."
                found.append(stated(self.module, place.node, "NP402", place.name, why))
        return found

    def _is_layer(self, place: Place) -> bool:
        if not isinstance(place.node, ast.ClassDef):
            return False
        return any((self.module.qualified(b) or "").endswith("nn.Module") for b in place.node.bases)

    def _matches_norms(self, node: ast.AST) -> bool:
        for part in walk(node):
            if isinstance(part, ast.Call) and _FUSED.fullmatch(last(part.func)):
                return True
            if isinstance(part, ast.Constant) and part.value in ("rsqrt", "rms_norm"):
                return True
        return False


def _is_ptx_root(node: ast.AST) -> bool:
    """Whether a function writes PTX that divides a total, adds an epsilon and takes the root."""
    if not isinstance(node, ast.FunctionDef):
        return False
    if not any("eps" in argument.arg for argument in node.args.args):
        return False
    strings = [part.value for part in walk(node) if isinstance(part, ast.Constant)]
    code = " ".join(part for part in strings if isinstance(part, str))
    return all(map(code.__contains__, ("rsqrt.", "add."))) and bool(_PTX_QUOTIENT.search(code))


def words(node: ast.AST) -> set[str]:
    """Every bare name below ``node``."""
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node
