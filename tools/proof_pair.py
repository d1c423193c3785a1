"""The old and the new norm on the same inputs: what came out of their processes, compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from normport.codemods.model import CallForm
from normport.tools import proof_compare as compare
from normport.tools.proof_compare import Inputs, Tally
from normport.tools.proof_peer import FailedError, Output, Part, Peer, Point


class MismatchError(Exception):
    """The norms differ in something that is not a number: keys, shapes, dtypes, side effects."""


# A dtype in which so many inputs lie beyond the bound is decided and not run further.
ENOUGH = 50
# How many inputs the norms are asked to run on at a time.
_BATCH = 32


class Pair:
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
        while waiting and wrong < ENOUGH:
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
            if wrong >= ENOUGH:
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
