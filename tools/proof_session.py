"""One case of the proof: both norms are run in every run dtype on the whole grid, and compared.

The norms run in processes of their own (``proof_side``); here nothing of them is executed, only
what they gave is looked at. So code that prints, exits or changes torch ends its own case, and a
result counts as equal only when the numbers that came from both sides are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from normport.codemods.model import CallForm, ProofCase
from normport.tools import proof_compare as compare
from normport.tools.proof_compare import Inputs, Tally
from normport.tools.proof_peer import FailedError, Output, Part, Peer, Point
from normport.tools.proof_side import new_names, old_names


class MismatchError(Exception):
    """The norms differ in something that is not a number: keys, shapes, dtypes, side effects."""


# A dtype in which so many inputs lie beyond the bound is decided and not run further.
_ENOUGH = 50
# How many inputs the norms are asked to run on at a time.
_BATCH = 32
_PLAIN = CallForm("norm(x)")

Verdict = tuple[str, str | None]
"""Status and reason, as in ``proof.Equivalence``."""


def load_tree(root: Path, limit_s: float) -> str | None:
    """Why the norms of the tree at ``root`` cannot be loaded; None when they can be."""
    try:
        Peer("None", partial(new_names, root), limit_s).end()
    except FailedError as failed:
        return str(failed)
    return None


class Session:
    """Runs one case. root: the tree of the new norms; None: ``normport.kernels.reference``."""

    def __init__(self, case: ProofCase, root: Path | None, limit_s: float) -> None:
        self.case = case
        self.eps = compare.EPS if case.eps is None else (case.eps,)
        self.pool = compare.noise(compare.POOL)
        self.root, self.limit_s = root, limit_s
        calls = [replace(_PLAIN, old=form.old, new=form.new) for form in case.forms]
        self.base = _PLAIN if not calls or _PLAIN in calls else calls[0]
        self.forms = [form for form in case.forms if not self._in_grid(form)]
        self.ranks: set[int] = set()
        self.tallies: dict[str, Tally] = {}
        self.checkpoint: dict[str, Tally] = {}
        self.more: dict[str, dict[str, Tally]] = {}

    def _in_grid(self, form: CallForm) -> bool:
        return (
            (form.old, form.new) == (self.base.old, self.base.new)
            and form.rank in (None, 2, 3)
            and form.dtype is None
        )

    def run(self) -> dict[str, Any]:
        """The answer that the parent reads: status, results per dtype and the reason."""
        peers: list[Peer] = []
        try:
            for expression, load in (
                (self.case.old, partial(old_names, self.case.module)),
                (self.case.new, partial(new_names, self.root)),
            ):
                peers.append(Peer(expression, load, self.limit_s))
            return self._compare(*peers)
        except FailedError as failed:
            return {"failed": str(failed)}
        finally:
            for peer in peers:
                peer.end()

    def _compare(self, old: Peer, new: Peer) -> dict[str, Any]:
        verdict: Verdict
        try:
            for name in compare.DTYPES:
                self._dtype(_Pair(old, new, Inputs(name, self.pool)))
            verdict = self._verdict()
        except MismatchError as mismatch:
            verdict = "different", str(mismatch)
        changed = old.changed()
        if changed:
            raise FailedError(f"its code changes {', '.join(changed)}, which other code uses")
        return {
            "status": verdict[0],
            "reason": verdict[1],
            "ranks": sorted(self.ranks),
            "results": _json(self.tallies),
            "float32_checkpoint": _json(self.checkpoint),
            "forms": {name: _json(tallies) for name, tallies in self.more.items()},
        }

    def _verdict(self) -> Verdict:
        for name, tally in self.tallies.items():
            if not tally.inputs:
                raise FailedError(f"the old norm accepts no {name} input ({tally.skipped[0]})")
        for form in self.case.forms:
            if self._in_grid(form) and form.rank and form.rank not in self.ranks:
                raise FailedError(f"the old norm accepts no {form.name}, which a site passes")
        verdicts = [judge(self.tallies)]
        for form in self.forms:
            ran = {name: t for name, t in self.more[form.name].items() if t.inputs}
            if not ran and form.dtype is None:
                skipped = next(iter(self.more[form.name].values())).skipped[0]
                raise FailedError(f"the old norm does not accept {form.name} ({skipped})")
            self.more[form.name] = ran
            if ran:
                status, reason = judge(ran)
                verdicts.append((status, f"{form.name}: {reason}" if reason else None))
        if self.base != _PLAIN:
            self.more[self.base.old] = {}
        return max(
            verdicts, key=lambda verdict: ("equal", "bounded", "different").index(verdict[0])
        )

    def _dtype(self, pair: _Pair) -> None:
        name = pair.inputs.name
        tally = self.tallies[name] = Tally()
        wrong = 0
        grid = compare.grid(self.eps)
        for (eps, size), group in groupby(grid, lambda point: (point[0], point[1])):
            points = [(layout, rows, kind) for _, _, layout, rows, kind in group]
            pair.build(self.case.weight, size, eps)
            wrong = pair.compare(self.base, points, tally, wrong, self.ranks)
            if wrong >= _ENOUGH:
                break
            if pair.splits_checkpoint:
                note = self.checkpoint.setdefault(name, Tally())
                pair.load(self.case.weight, float32=True)
                pair.compare(self.base, [p for p in points if p[0] is compare.LAYOUTS[0]], note)
        for form in self.forms:
            if form.dtype == name:
                continue
            tally = self.more.setdefault(form.name, {}).setdefault(name, Tally())
            for size, more in groupby(compare.form_grid(form.rank), lambda point: point[0]):
                pair.build(self.case.weight, size, self.eps[0])
                pair.compare(form, [point[1:] for point in more], tally)


def _json(tallies: dict[str, Tally]) -> dict[str, Any]:
    return {name: tally.to_json() for name, tally in tallies.items()}


class _Pair:
    """The old and the new norm in one run dtype; ``build`` makes those of a size and an eps."""

    def __init__(self, old: Peer, new: Peer, inputs: Inputs) -> None:
        self.old, self.new, self.inputs = old, new, inputs
        # Tallies of outputs that differ: these are looked at one by one, the others' digests are.
        self.differ: set[int] = set()

    def build(self, weight: str, size: int, eps: float) -> None:
        """Build both and load a weight of the run's dtype; both must take the same keys."""
        states = [peer.build(self.inputs.name, size, eps) for peer in (self.old, self.new)]
        self.size, self.eps = size, eps
        self.factor = torch.ones(size)
        self.splits_checkpoint = _check_keys(states[0], states[1], weight)
        if weight != "none":
            self.factor = self.inputs.weight(size, weight).abs().float()
            if weight == "offset":
                self.factor += 1.0
            self.load(weight, float32=False)

    def load(self, weight: str, *, float32: bool) -> None:
        for peer in (self.old, self.new):
            peer.load(weight, float32=float32)

    def compare(
        self,
        form: CallForm,
        points: Iterable[Point],
        tally: Tally,
        wrong: int = 0,
        ranks: set[int] | None = None,
    ) -> int:
        """Run both on ``points`` and count; the number of inputs that lie beyond the bound.

        wrong: how many did before. ranks: takes the ranks of the inputs that the old norm takes.
        """
        waiting = list(points)
        while waiting and wrong < _ENOUGH:
            batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
            wrong = self._batch(form, batch, tally, wrong, ranks)
        return wrong

    def _batch(
        self,
        form: CallForm,
        points: list[Point],
        tally: Tally,
        wrong: int,
        ranks: set[int] | None,
    ) -> int:
        if id(tally) not in self.differ:
            self._start(form, points, brief=True)
            summaries = [peer.summary() for peer in (self.old, self.new)]
            if summaries[0] == summaries[1]:
                if self._all_equal(summaries[0], points, tally, ranks):
                    return wrong
            else:
                self.differ.add(id(tally))
        self._start(form, points, brief=False)
        for point in points:
            outputs = self.old.output(), self.new.output()
            if wrong >= _ENOUGH:
                continue
            before = tally.beyond + tally.nonfinite
            if self._count(*outputs, form, tally, self._where(point)) and ranks is not None:
                ranks.add(int(point[0].name[0]))
            wrong += tally.beyond + tally.nonfinite > before
        return wrong

    def _start(self, form: CallForm, points: list[Point], *, brief: bool) -> None:
        for peer, call in ((self.old, form.old), (self.new, form.new)):
            peer.run(form, call, points, brief=brief)

    def _where(self, point: Point) -> str:
        layout, rows, kind = point
        return f"{layout.name}, {rows} rows of {self.size}, {kind}, eps {self.eps:g}"

    def _all_equal(
        self, summary: dict[str, Any], points: list[Point], tally: Tally, ranks: set[int] | None
    ) -> bool:
        """Count outputs that came from both sides alike; False: there is more to say of one."""
        entries = summary.get("outputs")
        if not isinstance(entries, list) or len(entries) != len(points):
            raise FailedError("its process answered something that cannot be read")
        outputs = [self.old.read(entry, None) for entry in entries]
        floating = [[part for part in output.parts if part.floating] for output in outputs]
        if any(
            not parts and out.refused is None for parts, out in zip(floating, outputs, strict=True)
        ):
            return False
        for point, output, parts in zip(points, outputs, floating, strict=True):
            if output.refused is not None:
                tally.skip(self._where(point), output.refused)
                continue
            tally.add_equal(sum(math.prod(part.shape) for part in parts))
            if ranks is not None:
                ranks.add(int(point[0].name[0]))
        return True

    def _count(self, old: Output, new: Output, form: CallForm, tally: Tally, where: str) -> bool:
        """Compare one output of each; False when the old norm does not take the input."""
        if old.refused is not None:
            tally.skip(where, old.refused)
            return False
        if new.refused is not None:
            error = new.refused.partition(": ")[2]
            raise MismatchError(f"only the new norm fails, on {where}: {error}")
        if old.kind != new.kind:
            raise MismatchError(f"the results differ in kind: {old.kind} (old), {new.kind} (new)")
        shapes, kinds = zip(*(_described(output) for output in (old, new)), strict=True)
        if shapes[0] != shapes[1]:
            raise MismatchError(f"the shapes differ on {where}: {shapes[0]}, {shapes[1]}")
        if kinds[0] != kinds[1]:
            raise MismatchError(f"the dtypes differ on {where}: {kinds[0]} (old), {kinds[1]} (new)")
        if old.written.keys() != new.written.keys() or not all(
            _same_bits(left, new.written[name]) for name, left in old.written.items()
        ):
            raise MismatchError(
                f"the norms do not leave their input alike; one writes to it ({where})"
            )
        compared = 0
        for one, other in zip(old.parts, new.parts, strict=True):
            if one.values is None or other.values is None:
                continue
            dtype = self.inputs.name if form.dtype is None else one.kind
            bound = compare.BASE_BOUND.get(dtype, 0)
            tally.add(one.values, other.values, self.factor, bound, where)
            compared += 1
        if not compared:
            what = f"{old.kind}, not a tensor" if old.kind != "Tensor" else old.parts[0].kind
            raise FailedError(f"the norms return {what}")
        tally.inputs -= compared - 1
        return True


def _described(output: Output) -> tuple[str, str]:
    """Shapes and dtypes of an output, to compare and to print."""
    shapes = ", ".join(str(list(part.shape)) for part in output.parts)
    return shapes, ", ".join(part.kind for part in output.parts)


def _check_keys(
    old: dict[str, tuple[str, tuple[int, ...]]],
    new: dict[str, tuple[str, tuple[int, ...]]],
    weight: str,
) -> bool:
    """Both take the same keys from a checkpoint, in the same shapes; whether in unlike dtypes."""
    if old.keys() != new.keys():
        names = [", ".join(state) or "no parameter" for state in (old, new)]
        raise MismatchError(f"the checkpoint keys differ: {names[0]} (old), {names[1]} (new)")
    if set(old) != ({"weight"} if weight != "none" else set()):
        raise FailedError(f"the norms have {', '.join(old) or 'no'} parameter, not weight {weight}")
    for key in old:
        if old[key][1] != new[key][1]:
            shapes = f"{list(old[key][1])} (old), {list(new[key][1])} (new)"
            raise MismatchError(f"the shapes of {key} differ: {shapes}")
    return any(old[key][0] != new[key][0] for key in old)


def _same_bits(one: Part, other: Part) -> bool:
    if one.values is None or other.values is None or one.kind != other.kind:
        return False
    bits = compare.BITS[one.values.element_size()]
    return torch.equal(one.values.view(bits), other.values.view(bits))


def judge(tallies: dict[str, Tally]) -> Verdict:
    """The status that the numbers give, and the sentence for it (None if bit-equal)."""
    wrong = [name for name, tally in tallies.items() if tally.beyond or tally.nonfinite]
    if wrong:
        name = max(wrong, key=lambda name: tallies[name].max_ulp)
        tally = tallies[name]
        if tally.max_ulp:
            return "different", f"in {name} up to {tally.max_ulp} ulp apart ({tally.worst})"
        return "different", f"in {name} infinities or NaNs stand at other places"
    parts = [
        f"{name} up to {_span(tally)} in {_share(tally)} elements"
        for name, tally in tallies.items()
        if tally.differing
    ]
    if parts:
        return "bounded", "equal but for rounding: " + ", ".join(parts)
    signs = [name for name, tally in tallies.items() if tally.zero_signs]
    if signs:
        return "bounded", f"equal but for the sign of zeros in {', '.join(signs)}"
    return "equal", None


def _span(tally: Tally) -> str:
    if tally.max_ulp == tally.max_ulp_normal:
        return f"{tally.max_ulp} ulp"
    return f"{tally.max_ulp_normal} ulp ({tally.max_ulp} where the normalized value is subnormal)"


def _share(tally: Tally) -> str:
    share = tally.differing / tally.elements
    return f"{share:.1%} of" if share >= 0.001 else f"{tally.differing} of {tally.elements}"
