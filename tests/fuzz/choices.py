"""Decisions that a seed makes, each by a name, so that a failing case can be made plainer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Draws one option for each name; the first option is the plain one.

    plain: names that get their plain option whatever the seed says. The others are not changed
        by that: every name draws from a stream of its own.
    """

    def __init__(self, seed: str, plain: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.plain = plain
        self.odd: dict[str, str] = {}

    def pick(self, name: str, options: Sequence[T]) -> T:
        """One of ``options``, all equally likely."""
        index = random.Random(f"{self.seed}/{name}").randrange(len(options))
        if name in self.plain:
            index = 0
        if index:
            self.odd[name] = str(options[index])
        return options[index]

    def rarely(self, name: str, options: Sequence[T], *, chance: float) -> T:
        """The first of ``options``, or by ``chance`` one of the others."""
        rng = random.Random(f"{self.seed}/{name}?")
        return self.pick(name, options) if rng.random() < chance else options[0]

    def flag(self, name: str, *, chance: float) -> bool:
        """True by ``chance``."""
        rng = random.Random(f"{self.seed}/{name}?")
        wanted = name not in self.plain and rng.random() < chance
        if wanted:
            self.odd[name] = "yes"
        return wanted


def plainest(seed: str, fails: Callable[[Choices], bool], odd: Sequence[str]) -> frozenset[str]:
    """The choices of a failing case that can be plain while it still fails.

    odd: the names that are not plain in it.
    """
    plain: frozenset[str] = frozenset()
    for name in odd:
        if fails(Choices(seed, plain | {name})):
            plain |= {name}
    return plain
