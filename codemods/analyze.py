"""Finds model-local norms in one file and decides, construction by construction.

Uses Python's own parser; LibCST comes in only where a file is changed (``edit.py``).
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from normport.codemods.advice import with_advice
from normport.codemods.class_uses import class_uses
from normport.codemods.classes import ClassReader
from normport.codemods.elsewhere import Elsewhere
from normport.codemods.hints import MEANS, RMS_NORM, Hint
from normport.codemods.model import Edit, FilePlan, Site
from normport.codemods.module_info import ModuleInfo, read_module
from normport.codemods.planning import (
    all_or_none,
    annotation_edits,
    helpers,
    is_replaced,
    merged_edits,
    with_word,
)
from normport.codemods.registry import LAYERNORM
from normport.codemods.standard import constructions
from normport.codemods.subclasses import inherited
from normport.codemods.torch_norms import TorchNorms

_STANDARD = {f"{LAYERNORM}.RMSNorm": "RMSNorm", f"{LAYERNORM}.GemmaRMSNorm": "GemmaRMSNorm"}
# RMS normalisation takes a root of a mean, or calls something whose name says that it does. Other
# files are not parsed: parsing is nearly all that a scan costs.
_ROOT_HINT = Hint(
    {
        "sqrt": "",
        ".5": r"\*\*\s*\(?\s*-?\s*\(?\s*0*\.5|-\s*0*\.5",
        "**": r"\*\*\s*\(?\s*-?\s*\(?\s*(?:1(?:\.0?)?\s*/\s*2|5e-1)",
        "pow": r"pow\w*\s*\((?:[^\n]*,)?\s*(?:\w+\s*=\s*)?0?\.5",
    }
)
_GOT = r"RMSNorm['\"](?<=['\"]RMSNorm['\"])\s*[,)\]]"
"""The end of ``getattr(nn, "RMSNorm")``, perhaps with a default, or of ``vars(nn)["RMSNorm"]``."""
_GOT_FUNCTION = r"getattr\([^()]*['\"]rms_norm['\"]"
_MEAN_HINT = Hint({**MEANS, "rsqrt": ""})
_NAMED_HINT = Hint(
    {
        "rms": RMS_NORM,
        "rms_norm as": "",
        ".RMSNorm": r"\.RMSNorm\b",
        "RMSNorm": _GOT,
        "getattr": _GOT_FUNCTION,
    }
)
_FROM_TORCH_HINT = Hint(
    {"torch.nn": r"torch\.nn[\w.]*\s+import\b"}  # over how many lines is not looked at
)
_LAYER_HINT = Hint({"RMSNorm": ""})
# A standard layer is imported by its name, or reached through its module.
_SPELLED = (LAYERNORM.encode(), b"layernorm.RMSNorm", b"layernorm.GemmaRMSNorm")
_TORCH_HINT = Hint(
    {
        ".RMSNorm": r"\.RMSNorm\b",
        "rms_norm": r"rms_norm(?:(?<=\.rms_norm)|(?<=\._fused_rms_norm))\b",
        "from torch": r"from torch import (\([^)]*|[^\n]*)\brms_norm\b",
        "torch.nn": r"torch\.nn[\w.]*\s+import\b",
        "getattr": _GOT_FUNCTION,
        "RMSNorm": _GOT,
    }
)
_WORD = re.compile(r"\w+")
# What stands before the name of a layer that is taken from its module.
_DOT = re.compile(r"\.(?:\s|\\|#.*\n)*(?:Gemma)?\Z")


@dataclass(frozen=True)
class Foreign:
    """A norm class that another file defines and this one imports.

    source: of the other file. name: of the class there. together: see ``Site``.
    """

    source: bytes
    name: str
    together: str


@dataclass(frozen=True)
class Options:
    """How to decide.

    unsafe: prefer the variant that is equal within a bound (plain RMSNorm for NP103).
    dims: ``CLASS.attribute`` -> source text of the size there, for weightless norms.
    outside_uses: names of this file that other files import.
    foreign: norm classes of other files, by the names under which this file imports them.
    shared: classes of this file that others construct, with the ``together`` of all their sites.

    Raises ValueError for a ``dims`` entry that is not ``CLASS.attribute`` = an expression.
    """

    unsafe: bool = False
    dims: Mapping[str, str] = field(default_factory=dict)
    outside_uses: frozenset[str] = frozenset()
    foreign: Mapping[str, Foreign] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, text in self.dims.items():
            if not re.fullmatch(r"\w+\.\w+", key):
                raise ValueError(f"`{key}` is not CLASS.attribute")
            try:
                body = ast.parse(text, mode="eval").body
            except SyntaxError:
                raise ValueError(f"`{text}` (for {key}) is not a Python expression") from None
            if isinstance(body, ast.Tuple | ast.List | ast.Starred | ast.NamedExpr | ast.Lambda):
                raise ValueError(f"`{text}` (for {key}) is not one size")


def may_hold_norm(source: bytes) -> bool:
    """A look at the bytes: False means that parsing the file would find nothing."""
    if any(spelled in source for spelled in _SPELLED):
        return True
    return _takes_root_of_mean(source)


def decode(source: bytes) -> str:
    """Source text without its byte order mark, by PEP 263.

    Raises SyntaxError or UnicodeDecodeError when the bytes are not what they say they are.
    """
    encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
    try:
        return source.decode(encoding)
    except UnicodeDecodeError:
        raise
    except (LookupError, UnicodeError) as error:
        raise SyntaxError(f"the encoding {encoding} is not one for source text: {error}") from error


def find_sites(source: bytes, path: str, options: Options | None = None) -> tuple[Site, ...]:
    """Every construction of a model-local norm in ``source``, in order of position.

    source: the file's bytes. path: its name, for nothing but messages.
    Raises SyntaxError or UnicodeDecodeError when Python cannot read the file.
    """
    chosen = options or Options()
    if not may_hold_norm(source) and not chosen.foreign:
        return ()
    module = read_module(decode(source))
    sites: list[Site] = []
    homes: dict[str, tuple[ModuleInfo, ast.ClassDef]] = {}
    for local, foreign in chosen.foreign.items():
        home = read_module(decode(foreign.source))
        homes[local] = (home, home.classes[foreign.name])
    for local, foreign in chosen.foreign.items():
        home, node = homes[local]
        reader = ClassReader(
            module, node, chosen.unsafe, chosen.dims, False, local, home, homes=homes
        )
        sites += [with_word(site, foreign.together) for site in reader.sites()]
    if _takes_root_of_mean(module.text):
        reported: list[ast.ClassDef] = []
        elsewhere = Elsewhere(module)
        for name, node in module.classes.items():
            own, adds = inherited(module, node) or (node, False)
            if _may_be_norm(module, own) and elsewhere.may_hold_norm(own):
                outside = name in chosen.outside_uses
                reader = ClassReader(
                    module,
                    own,
                    chosen.unsafe,
                    chosen.dims,
                    outside,
                    name=name,
                    hidden=chosen.outside_uses,
                    adds=adds,
                    homes=homes,
                )
                found = reader.sites()
                if found and not elsewhere.is_layer(own):
                    reported += (node, own)
                    sites += found
        sites += elsewhere.sites(reported)
        if _TORCH_HINT.found_in(module.text):
            sites += TorchNorms(module, chosen.unsafe).sites(elsewhere.shown)
    sites = [
        # A class that its own file does not construct stands in nobody's way.
        site if site.code == "NP219" else with_word(site, chosen.shared.get(site.norm))
        for site in sites
    ]
    sites = all_or_none([with_advice(site) for site in sites])
    doubtful = {(site.line, site.column) for site in sites if site.code == "NP221"}
    sites += [site for site in _done(module) if (site.line, site.column) not in doubtful]
    return tuple(sorted(sites, key=lambda site: (site.line, site.column)))


def _takes_root_of_mean(text: str | bytes) -> bool:
    return (
        _NAMED_HINT.found_in(text)
        or (_ROOT_HINT.found_in(text) and _MEAN_HINT.found_in(text))
        or (_LAYER_HINT.found_in(text) and _FROM_TORCH_HINT.found_in(text))
    )


def _may_be_norm(module: ModuleInfo, node: ast.ClassDef) -> bool:
    """Whether the class, with the functions of the file that it names, takes a root of a mean."""
    if not any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in node.body):
        return False
    text = module.respelled(module.segment(node))
    if _takes_root_of_mean(text):
        return True
    pending = _functions_named(module, text)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        seen.add(name)
        body = module.respelled(module.segment(module.functions[name]))
        text += body
        pending |= _functions_named(module, body) - seen
    return _takes_root_of_mean(text)


def _functions_named(module: ModuleInfo, text: str) -> set[str]:
    """The functions of the file that the text names."""
    found = {name for name in module.functions if name in text}
    return found and found.intersection(_WORD.findall(text))


def _done(module: ModuleInfo) -> list[Site]:
    """Constructions of the standard layers themselves."""
    if "layernorm" not in module.text:
        return []
    found = [_standard(module, call, norm) for call, norm in constructions(module, _STANDARD)]
    for full, layer in _STANDARD.items() if _may_stand_behind_dot(module.text) else ():
        for attribute in module.attributes.get(layer, []):
            call = module.parents[attribute]
            behind = isinstance(call, ast.Call) and call.func is attribute
            if behind and module.qualified(attribute) == full:
                found.append(_standard(module, call, layer))
    return found


def _may_stand_behind_dot(text: str) -> bool:
    """Whether a layer may be an attribute; what is not ASCII may be read as a name that is."""
    places = (match.start() for match in re.finditer("RMSNorm", text))
    return not text.isascii() or any(_DOT.search(text[max(0, at - 200) : at]) for at in places)


def _standard(module: ModuleInfo, call: ast.AST, norm: str) -> Site:
    assert isinstance(call, ast.Call)
    return Site(
        line=call.lineno,
        column=module.column(call),
        code="NP100",
        norm=norm,
        attribute=None,
        computes=None,
        verdict="done",
        target=None,
        reason=None,
    )


def plan(source: bytes, sites: Sequence[Site], options: Options | None = None) -> FilePlan:
    """The edits of the ``convert`` sites among ``sites``, and what dies with them.

    source: the bytes that ``sites`` were found in.
    """
    module = read_module(decode(source))
    given = options or Options()
    outside = given.outside_uses
    chosen = [site for site in sites if site.verdict == "convert"]
    imports: dict[str, tuple[str, ...]] = {}
    for site in chosen:
        for name, names in site.imports.items():
            imports[name] = tuple(sorted({*imports.get(name, ()), *names}))
    edited = {(site.line, site.column) for site in chosen}
    dead: list[str] = []
    dropped: list[str] = []
    annotations: list[Edit] = []
    local = {*module.classes, *given.foreign}  # torch's own norm is neither
    for name in sorted({site.norm for site in chosen} & local):
        uses = class_uses(module, name)
        calls = {(call.lineno, module.column(call)) for call in uses.calls}
        others = any(not is_replaced(module, node, chosen) for node in uses.others)
        if calls <= edited and not (uses.bases or uses.checks or others):
            if name in module.classes:
                dead += [name, *helpers(module, name)]
            else:
                dropped.append(name)
            layers = {layer for site in chosen if site.norm == name for layer in site.layers}
            if name not in outside:
                annotations += annotation_edits(module, name, layers)
    names = tuple(dict.fromkeys(name for name in dead if name not in outside))
    return FilePlan(merged_edits(chosen, annotations), imports, names, tuple(dropped))
