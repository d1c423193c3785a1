"""The optional patch that runs the norms between two sub-layers as one ``NormAddNorm`` layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files as resources

from normport.codemods.model import FormatterError, ProofCase, RefusedEdit
from normport.codemods.sandwich import Sandwich, convert_sandwiches, find_sandwiches
from normport.codemods.sandwich_cases import sandwich_cases
from normport.tools.cpu_methods import add_cpu_methods
from normport.tools.discover import PythonFile
from normport.tools.errors import UserError
from normport.tools.messages import model_label, trailers_of, wrapped
from normport.tools.pipeline import Settings
from normport.tools.proof import Equivalence, prove
from normport.tools.tree import SIGN_OFF, FileChange, Patch, SourceTree

NAME = "norm-add-norm"
LAYER = "vllm/model_executor/layers/norm_add_norm.py"
SUBJECT = "[Model] Run norm, add and norm of sandwich layers as one layer"

WHY = """\
Optional, on top of the series. Between two sub-layers of a sandwich-norm model the
norm of what the first gave, the sum with the residual and the norm before the second
follow each other. NormAddNorm is that step as one layer, so that a platform can put one
kernel there. Natively it calls the two norms and adds, as the model does now; what each
of them dispatches to stays. It is not fused_add_rms_norm, which normalizes x + residual:
here the norm comes before the sum, each norm has its own eps and weight, and the first
norm's result and the sum are rounded to the dtype of the run.

The norms stay attributes of their layer and are passed with the call, so parameter
names, checkpoints and whatever else reads them do not change."""

ON_CPU = """\
On the CPU a standard norm layer costs more calls in eager mode than a class of the model
itself: the layer's dispatch, the op's, and each op of the native chain. RMSNorm and
GemmaRMSNorm get a forward_cpu that computes the same, bit for bit, in one to four calls
of PyTorch, and NormAddNorm has its own. It is for plain layers without a residual;
subclasses, traced code and other implementations of ir.ops.rms_norm keep the native path,
and so does every other platform."""

PROOF = """\
The proof ran each changed method as a whole, before and after, with the norm layers of
this tree and stand-ins for the other modules that it calls."""

DROPPABLE = "vLLM has a layer for this step, or the models run it in another way."


@dataclass(frozen=True)
class Place:
    """One finding: ``path`` is relative to the tree; equivalence: of what was run for it."""

    path: str
    site: Sandwich
    applied: bool = False
    equivalence: Equivalence | None = None

    def to_json(self) -> dict[str, object]:
        found = {"path": self.path, **self.site.to_json()}
        if self.equivalence is not None:
            found["equivalence"] = self.equivalence.to_json()
        return found


@dataclass(frozen=True)
class Plan:
    """The optional patch, if there is anything to convert, and every place that was found.

    unread: the files in which nothing could be looked for.
    """

    patch: Patch | None = None
    places: tuple[Place, ...] = ()
    unread: tuple[PythonFile, ...] = ()

    @property
    def evidence(self) -> dict[str, object]:
        """For the manifest: what the patch rests on, and what it leaves."""
        found: dict[str, object] = {
            NAME: [place.to_json() for place in self.places if place.applied]
        }
        left = [place.to_json() for place in self.places if not place.applied]
        return {**found, f"{NAME}: left": left} if self.places else {}


@dataclass
class _Draft:
    path: str
    before: bytes
    sites: list[Sandwich]
    after: bytes
    cases: dict[int, list[ProofCase]] = field(default_factory=dict)

    def refuse(self, code: str, reason: str) -> None:
        """Leave the file as it is, for one reason."""
        self.after = self.before
        self.sites = [
            replace(s, code=code, verdict="refuse", second=None, target=None, reason=reason)
            if s.verdict == "convert"
            else s
            for s in self.sites
        ]


def plan_norm_add_norm(
    tree: SourceTree,
    files: Sequence[PythonFile],
    changed: Mapping[str, bytes],
    settings: Settings,
) -> Plan:
    """Find and convert what can be in ``files``; nothing is written.

    changed: the content of files after the series, by path.
    Raises UserError when the tree has another layer of the new one's name, or a file cannot be
    read.
    """
    layer = layer_source()
    looked = settings.workers.map(partial(_look, changed), files)
    drafts = [found for found in looked if isinstance(found, _Draft)]
    unread = tuple(found for found in looked if isinstance(found, PythonFile))
    for draft in drafts:
        _check_subclasses(draft, files)
    converting = [draft for draft in drafts if draft.after != draft.before]
    target = tree.root / LAYER
    present = target.read_bytes() if target.is_file() else None
    if converting and present not in (None, layer):
        raise UserError(f"{tree.origin} has a {LAYER} of its own: move it away.")
    for draft in converting:
        for number, site in enumerate(draft.sites):
            if site.verdict == "convert":
                text = _without_docstring(layer.decode())
                cases = sandwich_cases(draft.before, draft.after, site.function, text)
                draft.cases[number] = cases
    for draft in converting:
        for number, cases in draft.cases.items():
            if not cases:
                name = draft.sites[number].function
                draft.refuse("NP505", f"{name} takes no argument with which it could be run.")
                break
    results = _proven(converting, tree, settings)
    places = [
        _place(draft, n, results, settings) for draft in drafts for n in range(len(draft.sites))
    ]
    changes = [
        FileChange(draft.path, draft.before, draft.after)
        for draft in converting
        if draft.after != draft.before
    ]
    if not changes:
        return Plan(None, tuple(places), unread)
    if present is None:
        changes.insert(0, FileChange(LAYER, None, layer))
    on_cpu = add_cpu_methods(tree, changed)
    if on_cpu is not None:
        changes.insert(0, on_cpu)
    return Plan(_patch(changes, places, tree, on_cpu is not None), tuple(places), unread)


def layer_source() -> bytes:
    """The module that the patch adds, which is the one that the tests run."""
    return resources("normport.layers.in_tree").joinpath("norm_add_norm.py").read_bytes()


def _look(changed: Mapping[str, bytes], file: PythonFile) -> _Draft | PythonFile | None:
    """What a file holds; the file itself where it cannot be read."""
    try:
        source = changed.get(file.relative) or file.read()
        sites = find_sandwiches(source)
    except (OSError, RefusedEdit, SyntaxError, ValueError, RecursionError):
        return file
    if not sites:
        return None
    draft = _Draft(file.relative, source, sites, source)
    try:
        draft.after = convert_sandwiches(source)
    except RefusedEdit as refused:
        draft.refuse("NP505", f"The file cannot be changed without a loss: {refused}")
    except FormatterError as error:
        raise UserError(str(error)) from error
    return draft


def _check_subclasses(draft: _Draft, files: Sequence[PythonFile]) -> None:
    """Refuse a class of which another file has a subclass that may not run its ``__init__``."""
    names = {site.function.split(".")[0] for site in draft.sites if site.verdict == "convert"}
    if not names:
        return
    heads = re.compile(rf"^class (\w+)\([^)]*\b({'|'.join(names)})\b[^)]*\):".encode(), re.M)
    for file in files:
        if file.relative == draft.path:
            continue
        source = file.read()
        for head in heads.finditer(source):
            body = re.split(rb"^(?=[^\s#])", source[head.end() :], maxsplit=1, flags=re.M)[0]
            if b"def __init__(" in body and b"super().__init__(" not in body:
                name, base = head[1].decode(), head[2].decode()
                draft.refuse(
                    "NP505", f"{name} of {file.relative} does not run the __init__ of {base}."
                )
                return


def _proven(
    drafts: Sequence[_Draft], tree: SourceTree, settings: Settings
) -> dict[ProofCase, Equivalence]:
    """What was found for each case; a file with one that is not bit-equal is left as it is."""
    cases = [case for draft in drafts for found in draft.cases.values() for case in found]
    if not settings.proof:
        if "unproven" not in settings.accept:
            for draft in drafts:
                draft.refuse("NP505", settings.unproven)
        return {}
    settings.progress("proving", 0, 1)
    results = dict(zip(cases, prove(cases, tree), strict=True))
    for draft in drafts:
        wrong = [
            results[case]
            for found in draft.cases.values()
            for case in found
            if results[case].status != "equal"
        ]
        if wrong and (wrong[0].status != "failed" or "unproven" not in settings.accept):
            draft.refuse("NP301", f"The method is not bit-equal: {wrong[0].reason}.")
    return results


def _place(
    draft: _Draft, number: int, results: Mapping[ProofCase, Equivalence], settings: Settings
) -> Place:
    site = draft.sites[number]
    found = [results[case] for case in draft.cases.get(number, ()) if case in results]
    applied = site.verdict == "convert"
    return Place(draft.path, site, applied, found[-1] if found and applied else None)


def _patch(
    changes: Sequence[FileChange], places: Sequence[Place], tree: SourceTree, on_cpu: bool
) -> Patch:
    applied = [place for place in places if place.applied]
    sites = "\n".join(
        f"  {model_label(place.path)}: {place.site.function}: "
        f"{place.site.first.removeprefix('self.')},\n"
        f"      {(place.site.second or '').removeprefix('self.')}"
        for place in applied
    )
    proofs = [place.equivalence for place in applied if place.equivalence is not None]
    why = [*WHY.split("\n\n"), *([ON_CPU] if on_cpu else [])]
    paragraphs = [*why, sites, *([PROOF] if proofs else [])]
    text = [p if p is sites else wrapped(" ".join(p.split())) for p in paragraphs]
    return Patch(
        name=NAME,
        subject=SUBJECT,
        why="\n\n".join(text),
        trailers=(*trailers_of(proofs, tree), SIGN_OFF),
        changes=tuple(changes),
        droppable=DROPPABLE,
    )


def _without_docstring(source: str) -> str:
    return source[source.index("from typing import Any\n") :]
