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

from normport.codemods.classes import ClassReader
from normport.codemods.elsewhere import Elsewhere
from normport.codemods.model import Edit, FilePlan, Site
from normport.codemods.module_info import ModuleInfo, read_module
from normport.codemods.registry import LAYERNORM
from normport.codemods.torch_norms import TorchNorms
from normport.codemods.uses import class_uses

_STANDARD = {f"{LAYERNORM}.RMSNorm": "RMSNorm", f"{LAYERNORM}.GemmaRMSNorm": "GemmaRMSNorm"}
# RMS normalisation takes a root of a mean, or calls a function that does. Other files are not
# parsed: parsing is nearly all that a scan costs.
_ROOT_HINT = re.compile(
    r"sqrt|\*\*\s*\(?-?\s*0?\.5|-\s*0\.5|rms_?norm\s*\("
    r"|\w\.RMSNorm\b|torch\.nn[\w.]* import .*RMSNorm"
)
_MEAN_HINT = re.compile(r"\bmean\s*\(|\bsum\s*\(|rms_?norm\s*\(|rsqrt|RMSNorm")
_TORCH_HINT = re.compile(
    r"\.(RMSNorm|rms_norm)\b|from torch[\w.]* import (\([^)]*|[^\n]*)\b(RMSNorm|rms_norm)\b"
)
_WORD = re.compile(r"\w+")
_ROOT_BYTES = re.compile(_ROOT_HINT.pattern.encode())
_MEAN_BYTES = re.compile(_MEAN_HINT.pattern.encode())


@dataclass(frozen=True)
class Options:
    """How to decide.

    unsafe: prefer the variant that is equal within a bound (plain RMSNorm for NP103).
    dims: ``CLASS.attribute`` -> source text of the size there, for weightless norms.
    outside_uses: names of this file that other files import.

    Raises ValueError for a ``dims`` entry that is not ``CLASS.attribute`` = an expression.
    """

    unsafe: bool = False
    dims: Mapping[str, str] = field(default_factory=dict)
    outside_uses: frozenset[str] = frozenset()

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
    if LAYERNORM.encode() in source:
        return True
    return bool(_ROOT_BYTES.search(source) and _MEAN_BYTES.search(source))


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
    if not may_hold_norm(source):
        return ()
    module = read_module(decode(source))
    chosen = options or Options()
    sites: list[Site] = []
    if _takes_root_of_mean(module.text):
        reported: list[ast.ClassDef] = []
        elsewhere = Elsewhere(module)
        for name, node in module.classes.items():
            if _may_be_norm(module, node):
                outside = name in chosen.outside_uses
                reader = ClassReader(module, node, chosen.unsafe, chosen.dims, outside)
                found = reader.sites()
                if found and not elsewhere.is_layer(node):
                    reported.append(node)
                    sites += found
        sites += elsewhere.sites(reported)
        if _TORCH_HINT.search(module.text):
            sites += TorchNorms(module, chosen.unsafe).sites(elsewhere.shown)
    sites += _done(module)
    return tuple(sorted(sites, key=lambda site: (site.line, site.column)))


def _takes_root_of_mean(text: str) -> bool:
    return bool(_ROOT_HINT.search(text) and _MEAN_HINT.search(text))


def _may_be_norm(module: ModuleInfo, node: ast.ClassDef) -> bool:
    """Whether the class, with the functions of the file that it names, takes a root of a mean."""
    if not any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in node.body):
        return False
    text = module.segment(node)
    if _takes_root_of_mean(text):
        return True
    pending = set(module.functions) & set(_WORD.findall(text))
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        seen.add(name)
        body = module.segment(module.functions[name])
        text += body
        pending |= (set(module.functions) & set(_WORD.findall(body))) - seen
    return _takes_root_of_mean(text)


def _done(module: ModuleInfo) -> list[Site]:
    """Constructions of the standard layers themselves."""
    if LAYERNORM not in module.text:
        return []
    found: list[Site] = []
    for local, full in module.imports.items():
        if full not in _STANDARD or local in module.classes:
            continue
        for name in module.names.get(local, []):
            call = module.parents[name]
            if isinstance(call, ast.Call) and call.func is name:
                found.append(
                    Site(
                        line=call.lineno,
                        column=module.column(call),
                        code="NP100",
                        norm=_STANDARD[full],
                        attribute=None,
                        computes=None,
                        verdict="done",
                        target=None,
                        reason=None,
                    )
                )
    return found


def plan(source: bytes, sites: Sequence[Site], options: Options | None = None) -> FilePlan:
    """The edits of the ``convert`` sites among ``sites``, and what dies with them.

    source: the bytes that ``sites`` were found in.
    """
    module = read_module(decode(source))
    outside = (options or Options()).outside_uses
    chosen = [site for site in sites if site.verdict == "convert"]
    imports: dict[str, tuple[str, ...]] = {}
    for site in chosen:
        for name, names in site.imports.items():
            imports[name] = tuple(sorted({*imports.get(name, ()), *names}))
    edited = {(site.line, site.column) for site in chosen}
    dead: list[str] = []
    for name in sorted({site.norm for site in chosen} & set(module.classes)):
        uses = class_uses(module, name)
        calls = {(call.lineno, module.column(call)) for call in uses.calls}
        if calls <= edited and not (uses.bases or uses.checks or uses.others):
            dead += [name, *_helpers(module, name)]
    names = tuple(dict.fromkeys(name for name in dead if name not in outside))
    return FilePlan(edits=_merged(chosen), imports=imports, dead=names)


def _helpers(module: ModuleInfo, name: str) -> list[str]:
    """Module-level functions and classes that the class reaches, directly or through others."""
    found: list[str] = []
    queue: list[ast.AST] = [module.classes[name]]
    while queue:
        for part in ast.walk(queue.pop()):
            if isinstance(part, ast.Name) and part.id not in (name, *found):
                helper = module.functions.get(part.id) or module.classes.get(part.id)
                if helper is not None:
                    found.append(part.id)
                    queue.append(helper)
    return found


def _merged(sites: Sequence[Site]) -> tuple[Edit, ...]:
    """All edits in order; an expression that two sites want to read differently is left."""
    by_place: dict[tuple[int, int], set[Edit]] = {}
    for site in sites:
        for edit in site.edits:
            by_place.setdefault((edit.line, edit.column), set()).add(edit)
    return tuple(edits.pop() for _, edits in sorted(by_place.items()) if len(edits) == 1)
