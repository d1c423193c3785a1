"""The records that the codemods hand over: what a norm computes, what was decided, what to edit.

Nothing here knows a model, imports torch or reads a file. Positions count lines and columns
from 1, columns in code points, as editors show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

WeightKind = Literal["none", "scale", "offset"]
MultiplyIn = Literal["float32", "weight dtype", "input dtype"]
Initial = str  # the factory or initialiser by its name: zeros, ones, empty, ...
Verdict = Literal["convert", "done", "refuse"]

APART = frozenset({"NP401", "NP402", "NP403"})
"""Codes of what is no model's norm: kernels, fusion passes, the standard layers themselves."""


@dataclass(frozen=True)
class Computes:
    """What one constructed norm computes, in vLLM's terms.

    weight: ``none`` (no parameter), ``scale`` (``x * w``) or ``offset`` (``x * (offset + w)``).
    offset: the constant added to the weight; 0.0 unless ``weight`` is ``offset``.
    multiply_in: the dtype in which the weight is multiplied; None without a weight.
    eps: source text of the epsilon as the constructing scope sees it, e.g.
        ``config.rms_norm_eps`` or ``1e-06``.
    initial: how the parameter starts before a checkpoint overwrites it: ``zeros``, ``ones`` ...
    weight_dtype: the dtype the parameter is stored in: the run's, or float32 whatever the run's.
    residual, grouped, gated, bias, mean_subtracted: true when the local norm also does that.
    """

    weight: WeightKind
    offset: float
    multiply_in: MultiplyIn | None
    eps: str | None
    initial: Initial | None = None
    weight_dtype: Literal["run dtype", "float32", "other"] | None = None
    residual: bool = False
    grouped: bool = False
    gated: bool = False
    bias: bool = False
    mean_subtracted: bool = False


@dataclass(frozen=True)
class Edit:
    """Replace one expression (a call or a name) that starts at ``line``, ``column``.

    ``old`` is the exact source text of the expression as it stands in the file and guards
    against a stale position. ``new`` is the replacement on one line, laid out by the editor
    to the file's line length.
    """

    line: int
    column: int
    old: str
    new: str


@dataclass(frozen=True)
class CallForm:
    """A way in which sites call their norm.

    name: how a person would name it, e.g. ``4-D input``.
    old, new: the call before and after the conversion, expressions of ``norm``, ``x`` and
        ``residual``, another tensor of the shape and dtype of ``x``.
    rank: the dimensions of ``x``; None: not known, 2 and 3 are run.
    dtype: what the site converts ``x`` to, a dtype of torch by its name; None: it does not.
    """

    name: str
    old: str = "norm(x)"
    new: str = "norm(x)"
    rank: int | None = None
    dtype: str | None = None

    @property
    def plain(self) -> bool:
        """Whether it is among what is run for every norm: ``norm(x)`` with 2-D and 3-D input."""
        return (
            self.old == self.new == "norm(x)" and self.rank in (None, 2, 3) and self.dtype is None
        )


@dataclass(frozen=True)
class ProofCase:
    """How to run a local norm and its replacement side by side.

    module: Python source that defines the local class and everything it needs, importable
        with nothing but torch installed.
    old, new: expressions that build the two norms. They may use the names ``SIZE`` (the
        normalised size, an int), ``EPS`` (a float), ``torch`` and, in ``old``, what ``module``
        defines; in ``new``, ``RMSNorm`` and ``GemmaRMSNorm``.
    weight: what the parameter ``weight`` of both is drawn as (none: there is no parameter).
    eps: the epsilon when the source states a number, else None (the prover picks real ones).
    forms: how the sites call the norm; each must have run. Empty: ``norm(x)``, nothing known of x.
    layers: ``old`` and ``new`` are whole layers, both built from what ``module`` defines on top of
        ``RMSNorm`` and ``GemmaRMSNorm``.
    """

    module: str
    old: str
    new: str
    weight: WeightKind
    eps: float | None = None
    forms: tuple[CallForm, ...] = ()
    layers: bool = False


@dataclass(frozen=True)
class Site:
    """One construction of a model-local norm, and what was decided about it.

    ``attribute`` of ``owner``, a class, holds the norm. ``target`` is the new expression in one
    line. ``imports`` maps a module to the names that ``target`` needs from it; an empty tuple
    means ``import module``. Sites that share a word of ``together`` are converted all or none.
    also: further (owner, attribute) pairs that hold what is constructed here.
    rewrites_calls: the calls of the norm change too, so a call in another file must not exist.
    """

    line: int
    column: int
    code: str
    norm: str
    attribute: str | None
    computes: Computes | None
    verdict: Verdict
    target: str | None
    reason: str | None
    edits: tuple[Edit, ...] = ()
    imports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    proof: ProofCase | None = None
    owner: str | None = None
    together: tuple[str, ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    rewrites_calls: bool = False

    def refused(self, code: str, reason: str) -> Site:
        """The same site, refused after all."""
        return replace(
            self,
            code=code,
            verdict="refuse",
            target=None,
            reason=reason,
            edits=(),
            imports={},
            proof=None,
        )

    @property
    def layers(self) -> tuple[str, ...]:
        """The standard layers among what it imports."""
        return tuple(
            name for names in self.imports.values() for name in names if name.endswith("RMSNorm")
        )

    @property
    def apart(self) -> bool:
        """Whether this is counted apart from the models' norms."""
        return self.code in APART


@dataclass(frozen=True)
class FilePlan:
    """Everything that one file needs, all or nothing.

    edits: the expressions to replace; they do not overlap.
    imports: module -> names to import from it (``()``: ``import module``).
    dead: module-level classes and functions that lose their last use with these edits.
    dropped: names whose import must go, because what they name goes from its file.
    """

    edits: tuple[Edit, ...]
    imports: dict[str, tuple[str, ...]]
    dead: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class EditResult:
    """The file after a plan was carried out.

    lost_comments: comments that went with a removed class, as they stood.
    removed: names of the classes, functions and imports that went.
    """

    source: bytes
    removed: tuple[str, ...] = ()
    lost_comments: tuple[str, ...] = ()


class RefusedEdit(Exception):
    """The plan cannot be carried out without a loss; the message says what and where."""


class FormatterError(Exception):
    """ruff does not run here at all; the message is one sentence that says what to do.

    No refusal: it would be the same for every file, and says nothing of any of them.
    """
