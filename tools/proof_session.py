"""One case of the proof: build both norms in every run dtype and compare them on the whole grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normport.tools import proof_compare as compare
from normport.tools.proof_compare import Inputs, Tally
from normport.tools.source_norms import MissingPartError


class MismatchError(Exception):
    """The norms differ in something that is not a number: keys, shapes, dtypes, side effects."""


class UnusableError(Exception):
    """The case cannot be run as it is described."""


# A dtype in which so many inputs lie beyond the bound is decided and not run further.
_ENOUGH = 50

# What a norm raises for an input that it does not take.
_REFUSALS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)


class Session:
    """Runs one old and one new expression; see ``ProofCase`` for what they may use."""

    def __init__(
        self,
        old: str,
        old_names: dict[str, Any],
        new: str,
        new_names: dict[str, Any],
        weight: str,
        eps: float | None,
    ) -> None:
        self.old, self.old_names = old, old_names
        self.new, self.new_names = new, new_names
        self.weight = weight
        self.eps = compare.EPS if eps is None else (eps,)
        self.pool = compare.noise(compare.POOL)

    def run(self) -> dict[str, Any]:
        """The answer that the parent reads: status, results per dtype and the reason."""
        tallies: dict[str, Tally] = {}
        checkpoint: dict[str, Tally] = {}
        try:
            for name in compare.DTYPES:
                tallies[name] = Tally()
                self._dtype(Inputs(name, self.pool), tallies[name], checkpoint)
        except MismatchError as mismatch:
            return self._answer("different", str(mismatch), tallies, checkpoint)
        for name, tally in tallies.items():
            if not tally.inputs:
                raise UnusableError(f"the old norm accepts no {name} input ({tally.skipped[0]})")
        status, reason = judge(tallies)
        return self._answer(status, reason, tallies, checkpoint)

    def _answer(
        self, status: str, reason: str | None, tallies: dict[str, Tally], notes: dict[str, Tally]
    ) -> dict[str, Any]:
        return {
            "status": status,
            "reason": reason,
            "results": {name: tally.to_json() for name, tally in tallies.items()},
            "float32_checkpoint": {name: tally.to_json() for name, tally in notes.items()},
        }

    def _dtype(self, inputs: Inputs, tally: Tally, checkpoint: dict[str, Tally]) -> None:
        pairs: dict[tuple[float, int], _Pair] = {}
        wrong = 0
        for eps, size, layout, rows, kind in compare.grid(self.eps):
            if (eps, size) not in pairs:
                pairs[eps, size] = self._pair(inputs, size, eps)
            pair = pairs[eps, size]
            where = f"{layout.name}, {rows} rows of {size}, {kind}, eps {eps:g}"

            def make() -> Tensor:
                return compare.make_input(inputs, eps, size, layout, rows, kind)  # noqa: B023

            before = tally.beyond + tally.nonfinite
            pair.compare(make, tally, where)
            wrong += tally.beyond + tally.nonfinite > before
            if wrong == _ENOUGH:
                return
            if pair.splits_checkpoint and layout is compare.LAYOUTS[0]:
                note = checkpoint.setdefault(inputs.name, Tally())
                pair.load(inputs.weight(size, self.weight).float())
                pair.compare(make, note, where)
                pair.load(inputs.weight(size, self.weight).to(inputs.dtype))

    def _pair(self, inputs: Inputs, size: int, eps: float) -> _Pair:
        before = torch.get_default_dtype()
        torch.set_default_dtype(inputs.dtype)
        try:
            old = eval(self.old, {**self.old_names, "SIZE": size, "EPS": eps})
            new = eval(self.new, {**self.new_names, "SIZE": size, "EPS": eps})
        finally:
            torch.set_default_dtype(before)
        pair = _Pair(_module(old), _module(new), inputs, size)
        pair.check_keys(self.weight)
        if self.weight != "none":
            pair.factor = inputs.weight(size, self.weight).abs().float()
            if self.weight == "offset":
                pair.factor += 1.0
            pair.load(inputs.weight(size, self.weight).to(inputs.dtype))
        return pair


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

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class _Pair:
    """The old and the new norm for one size, eps and run dtype."""

    def __init__(self, old: nn.Module, new: nn.Module, inputs: Inputs, size: int) -> None:
        self.old, self.new = old, new
        self.base = compare.BASE_BOUND[inputs.name]
        self.factor = torch.ones(size)
        self.splits_checkpoint = False

    def check_keys(self, weight: str) -> None:
        """Both take the same keys from a checkpoint, in the same shapes."""
        old, new = self.old.state_dict(), self.new.state_dict()
        if old.keys() != new.keys():
            names = [", ".join(state) or "no parameter" for state in (old, new)]
            raise MismatchError(f"the checkpoint keys differ: {names[0]} (old), {names[1]} (new)")
        if set(old) != ({"weight"} if weight != "none" else set()):
            raise UnusableError(
                f"the norms have {', '.join(old) or 'no'} parameter, not weight {weight}"
            )
        for key in old:
            if old[key].shape != new[key].shape:
                shapes = f"{list(old[key].shape)} (old), {list(new[key].shape)} (new)"
                raise MismatchError(f"the shapes of {key} differ: {shapes}")
            self.splits_checkpoint = old[key].dtype != new[key].dtype

    def load(self, weight: Tensor) -> None:
        """Copy a checkpoint's weight into both, as vLLM does: cast to the parameter's dtype."""
        for norm in (self.old, self.new):
            norm.get_parameter("weight").data.copy_(weight)

    def compare(self, make: Callable[[], Tensor], tally: Tally, where: str) -> None:
        mine, theirs = make(), make()
        try:
            old = self.old(mine)
        except _REFUSALS as error:
            tally.skip(where, error)
            return
        try:
            new = self.new(theirs)
        except MissingPartError:
            raise
        except _REFUSALS as error:
            raise MismatchError(f"only the new norm fails, on {where}: {error}") from error
        kinds = type(old).__name__, type(new).__name__
        if not isinstance(old, Tensor) or not isinstance(new, Tensor):
            if kinds[0] != kinds[1]:
                raise MismatchError(
                    f"the results differ in kind: {kinds[0]} (old), {kinds[1]} (new)"
                )
            raise UnusableError(f"the norms return {kinds[0]}, not a tensor")
        if old.shape != new.shape:
            raise MismatchError(
                f"the shapes differ on {where}: {list(old.shape)}, {list(new.shape)}"
            )
        if old.dtype != new.dtype:
            raise MismatchError(
                f"the dtypes differ on {where}: {old.dtype} (old), {new.dtype} (new)"
            )
        if not old.is_floating_point():
            raise UnusableError(f"the norms return {old.dtype}")
        bits = torch.int32 if mine.element_size() == 4 else torch.int16
        if not torch.equal(mine.view(bits), theirs.view(bits)):
            raise MismatchError(
                f"the norms do not leave their input alike; one writes to it ({where})"
            )
        tally.add(old, new, self.factor, self.base, where)


def judge(tallies: dict[str, Tally]) -> tuple[str, str | None]:
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
