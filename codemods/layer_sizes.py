"""The size of what a layer gives, from how it is constructed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from normport.codemods.checks import Refused
from normport.codemods.construction import construct
from normport.codemods.module_info import ModuleInfo
from normport.codemods.nodes import expression, spelled
from normport.codemods.outcomes import Outcome
from normport.codemods.reading import NormReader
from normport.codemods.subclasses import inherited
from normport.codemods.values import Const, Source

Homes = Mapping[str, tuple[ModuleInfo, ast.ClassDef]]


@dataclass(frozen=True)
class _Layer:
    """Where a layer's output size stands in its constructor's arguments.

    pair: its forward returns ``(output, bias)`` unless ``return_bias=False``.
    gathers: the size holds only with ``gather_output=True``.
    """

    position: int
    keyword: str
    pair: bool = False
    gathers: bool = False


_LAYERS = {
    "Linear": _Layer(1, "out_features"),
    "Embedding": _Layer(1, "embedding_dim"),
    "VocabParallelEmbedding": _Layer(1, "embedding_dim"),
    "ReplicatedLinear": _Layer(1, "output_size", pair=True),
    "RowParallelLinear": _Layer(1, "output_size", pair=True),
    "ColumnParallelLinear": _Layer(1, "output_size", pair=True, gathers=True),
    "RMSNorm": _Layer(0, "hidden_size"),
    "GemmaRMSNorm": _Layer(0, "hidden_size"),
    "LayerNorm": _Layer(0, "normalized_shape"),
}

_HOMES = ("torch.nn", "vllm.model_executor.layers.")


@dataclass(frozen=True)
class OutputSize:
    """size: None where it is not known. pair: the layer returns a tuple, this the first item of it.
    same_as_input: it is that of the input."""

    size: ast.expr | None
    pair: bool = False
    same_as_input: bool = False


def output_size(module: ModuleInfo, call: ast.Call, homes: Homes) -> OutputSize | None:
    """What the layer that ``call`` constructs gives; None for a layer that is not known.

    A norm of the file counts like the standard layer that it is about to become.
    """
    home, _, kind = (module.qualified(call.func) or "").rpartition(".")
    layer = _LAYERS.get(kind) if home.startswith(_HOMES) else None
    if layer is None:
        return _local_norm(module, call, homes)
    keywords = {k.arg: k.value for k in call.keywords}
    if layer.gathers and spelled(keywords.get("gather_output", call)) != "True":
        return OutputSize(None, pair=True)
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    size = keywords.get(layer.keyword)
    if size is None and len(call.args) > layer.position:
        size = call.args[layer.position]
    pair = layer.pair and spelled(keywords.get("return_bias", call)) != "False"
    return OutputSize(size, pair)


def _local_norm(module: ModuleInfo, call: ast.Call, homes: Homes) -> OutputSize | None:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    home, node = homes.get(name, (module, module.classes.get(name)))
    if node is None or not module.means_one_thing(name):
        return None
    own, adds = inherited(home, node) or (node, False)
    reader = NormReader(home, own)
    if adds or reader.is_unusual or reader.method("forward") is None:
        return None
    try:
        found = reader.read(construct(module, home, reader.init, call).values)
    except Refused:
        return None
    if not isinstance(found, Outcome) or found.kind != "single":
        return None
    if found.read.weight is None:
        return OutputSize(None, same_as_input=True)
    size = found.read.weight.shape[0]
    if not isinstance(size, Source | Const):
        return None
    text = size.text or repr(getattr(size, "value", size))
    return OutputSize(expression(text))
