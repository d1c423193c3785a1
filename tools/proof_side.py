"""One side of a proof: builds a norm, runs it on what is asked for and hands back what came out.

Runs in a process of its own, confined before any code of the norm is loaded. It decides nothing:
what it says of itself only ends its own case, and numbers are compared by another process.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from normport.tools import proof_compare as compare
from normport.tools.proof_channel import Channel

Names = dict[str, Any]

# What a norm raises for an input that it does not take.
_REFUSALS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)
_MOST_ELEMENTS = 1 << 22


class UnusableError(Exception):
    """The case cannot be run as it is described."""


def old_names(module: str) -> Names:
    """What the source of the local norm defines."""
    made = ModuleType("normport_proof_case")
    sys.modules[made.__name__] = made
    exec(compile(module, "<case>", "exec", dont_inherit=True), vars(made))
    return vars(made) | {"torch": torch}


def new_names(root: Path | None) -> Names:
    """The standard layers of the tree at ``root``, or those of ``normport.kernels.reference``."""
    from normport.kernels import reference
    from normport.tools.source_norms import Norms, load_norms

    norms = Norms(reference.RMSNorm, reference.GemmaRMSNorm)
    if root is not None:
        norms = load_norms(root)
    return {"torch": torch, "RMSNorm": norms.rms_norm, "GemmaRMSNorm": norms.gemma_rms_norm}


def layer_names(module: str, root: Path | None) -> Names:
    """What the source of whole layers defines on top of the norms of the tree at ``root``."""
    names = new_names(root)
    made = ModuleType("normport_proof_case")
    vars(made).update(names)
    sys.modules[made.__name__] = made
    exec(compile(module, "<case>", "exec", dont_inherit=True), vars(made))
    return vars(made) | names


def serve(channel: Channel, expression: str, load: Callable[[], Names]) -> None:
    """Answer requests about the norm that ``expression`` builds from the names of ``load``."""
    gc.disable()  # it would touch, and so copy, all that is shared with the process before the fork
    try:
        watched = _watched()
        names = load()
        channel.send({"loaded": True})
        side = _Side(channel, expression, names)
        with torch.no_grad():
            while side.answer(watched):
                pass
    except BaseException as error:  # the norm's own code ran: anything may come out of it
        channel.send({"failed": describe(error)})


def describe(error: BaseException) -> str:
    """The last line of a traceback; of an error of normport's own, its sentence."""
    if type(error).__module__.startswith("normport."):
        return str(error)
    lines = traceback.format_exception_only(error)[-1].strip().splitlines() or [""]
    return lines[0]


class _Side:
    def __init__(self, channel: Channel, expression: str, names: Names) -> None:
        self.channel = channel
        self.expression, self.names = expression, names
        pool = compare.noise(compare.POOL)
        self.inputs = {name: compare.Inputs(name, pool) for name in compare.DTYPES}
        self.norm: nn.Module = nn.Identity()
        self.now = (self.inputs["float32"], 0, 0.0)

    def answer(self, watched: dict[str, Names]) -> bool:
        """Answer one request; False after the last."""
        request, _ = self.channel.receive()
        if "build" in request:
            self.channel.send({"state": self._build(*request["build"])})
        elif "load" in request:
            self._load(**request["load"])
        elif "run" in request:
            call = compile(request["call"], "<call>", "eval", dont_inherit=True)
            outputs = (self._run(call, request["dtype"], *point) for point in request["run"])
            if request["brief"]:
                digest = hashlib.blake2b()
                told = []
                for message, values in outputs:
                    told.append(message)
                    for value in values:
                        digest.update(_bytes(value))
                self.channel.send({"outputs": told, "digest": digest.hexdigest()})
                return True
            for message, values in outputs:
                self.channel.hold(message, *(_bytes(value) for value in values))
            self.channel.flush()
        else:
            self.channel.send({"changed": _changed(watched)})
            return False
        return True

    def _build(self, name: str, size: int, eps: float) -> list[tuple[str, str, list[int]]]:
        inputs = self.inputs[name]
        before = torch.get_default_dtype()
        torch.set_default_dtype(inputs.dtype)
        try:
            norm = eval(self.expression, {**self.names, "SIZE": size, "EPS": eps})
            if torch.get_default_dtype() != inputs.dtype:
                raise UnusableError("its constructor changes torch's default dtype")
        finally:
            torch.set_default_dtype(before)
        self.norm, self.now = _module(norm), (inputs, size, eps)
        state = self.norm.state_dict()
        return [(key, _dtype(value), list(value.shape)) for key, value in state.items()]

    def _load(self, kind: str, float32: bool) -> None:
        """Copy a checkpoint's weight in, as vLLM does: cast to the parameter's dtype."""
        inputs, size, _ = self.now
        weight = inputs.weight(size, kind).to(torch.float32 if float32 else inputs.dtype)
        self.norm.get_parameter("weight").data.copy_(weight)

    def _run(
        self, call: CodeType, dtype: str | None, layout: str, rows: int, kind: str
    ) -> tuple[Names, list[Tensor]]:
        """What one call gave, and the tensors whose bytes belong to it."""
        inputs, size, eps = self.now
        x = compare.make_input(inputs, eps, size, compare.layout(layout), rows, kind)
        given = {"x": x}
        if "residual" in call.co_names:
            given["residual"] = compare.make_residual(inputs, x)
        if dtype is not None:
            given = {name: value.to(getattr(torch, dtype)) for name, value in given.items()}
        pristine = {name: value.clone() for name, value in given.items()}
        try:
            result = eval(call, {"norm": self.norm, "torch": torch, **given})
        except _REFUSALS as error:
            if type(error).__module__.startswith("normport."):
                raise
            lines = str(error).splitlines() or [""]
            return {"refused": f"{type(error).__name__}: {lines[0]}"[:300]}, []
        parts = list(result) if isinstance(result, tuple | list) else [result]
        written = {name: v for name, v in given.items() if not _same_bits(v, pristine[name])}
        sent = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
        sent += written.values()
        if sum(part.numel() for part in sent) > _MOST_ELEMENTS:
            raise UnusableError(f"its result has {max(part.numel() for part in sent)} elements")
        message = {
            "kind": "Tensor" if isinstance(result, Tensor) else type(result).__name__,
            "parts": [
                (_dtype(part), list(part.shape))
                if isinstance(part, Tensor)
                else type(part).__name__
                for part in parts
            ],
            "written": [
                (name, _dtype(value), list(value.shape)) for name, value in written.items()
            ],
        }
        return message, [value.detach().contiguous() for value in sent]


def _module(norm: object) -> nn.Module:
    if isinstance(norm, nn.Module):
        return norm.eval()
    if callable(norm):
        return _Function(norm)
    raise UnusableError(f"the expression builds {type(norm).__name__}, not a norm")


class _Function(nn.Module):
    """A norm that is a function of the input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    bits = compare.BITS[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))


def _bytes(value: Tensor) -> memoryview:
    size = value.numel() * value.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(value.data_ptr()))


_NAMESPACES = {
    "torch": torch,
    "torch.nn": nn,
    "torch.nn.functional": nn.functional,
    "torch.Tensor": Tensor,
    "torch.nn.Module": nn.Module,
    "builtins": sys.modules["builtins"],
}


def _watched() -> dict[str, Names]:
    return {name: dict(vars(space)) for name, space in _NAMESPACES.items()}


def _changed(watched: dict[str, Names]) -> list[str]:
    """Names of torch and Python that the norm's code has given another meaning."""
    found = [
        f"{space}.{name}"
        for space, before in watched.items()
        for name, value in before.items()
        if vars(_NAMESPACES[space]).get(name) is not value
    ]
    if torch.get_default_dtype() != torch.float32:
        found.append("torch's default dtype")
    return found[:5]
