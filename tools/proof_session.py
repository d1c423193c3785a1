"""One case of the proof: both norms are run in every run dtype on the whole grid, and compared.

The norms run in processes of their own (``proof_side``); here nothing of them is executed, only
what they gave is looked at. So code that prints, exits or changes torch ends its own case, and a
result counts as equal only when the numbers that came from both sides are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from normport.codemods.model import CallForm, ProofCase
from normport.tools import proof_compare as compare
from normport.tools.proof_compare import Inputs, Tally
from normport.tools.proof_pair import ENOUGH, MismatchError, Pair
from normport.tools.proof_peer import FailedError, Peer
from normport.tools.proof_side import layer_names, new_names, old_names

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
        if case.layers:
            self.eps = self.eps[:1]  # each norm of the layer has a multiple of its own
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
            loads = partial(old_names, self.case.module), partial(new_names, self.root)
            if self.case.layers:
                loads = (partial(layer_names, self.case.module, self.root),) * 2
            for expression, load in zip((self.case.old, self.case.new), loads, strict=True):
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
                self._dtype(Pair(old, new, Inputs(name, self.pool)))
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

    def _dtype(self, pair: Pair) -> None:
        name = pair.inputs.name
        tally = self.tallies[name] = Tally()
        wrong = 0
        grid = compare.grid(self.eps)
        if self.case.layers:
            grid = (point for point in grid if point[2] in compare.ROW_MAJOR)
        for (eps, size), group in groupby(grid, lambda point: (point[0], point[1])):
            points = [(layout, rows, kind) for _, _, layout, rows, kind in group]
            pair.build(self.case.weight, size, eps)
            wrong = pair.compare(self.base, points, tally, wrong, self.ranks)
            if wrong >= ENOUGH:
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
