"""Looks at source text before it is parsed: what a scan does to every file there is."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Each goes on from a plain part that other patterns ask for too: a part more is a look at all text.
RMS_NORM = r"rms_?norm(?:\s*\(|['\"]\)\(|(?<=F\.rms_norm)\b|(?<=functional\.rms_norm)\b)"
"""A function of that name that is called, by ``getattr`` too, or torch's as a value."""

LENGTHS = {
    "norm(": (
        r"norm\((?:(?<=vector_norm\()|(?<=linalg\.norm\()|(?<=torch\.norm\()"
        r"|(?<=\.norm\()\s*(?:2\b|[^)\n]*\b(?:dim|p)\s*=))"
    ),
    "normalize": (
        r"normalize(?:(?<=F\.normalize)|(?<=functional\.normalize)|(?<=import normalize))\b"
    ),
}
"""How the length of a vector is written, for a ``Hint``."""

MEANS = {
    "mean": r"mean(?:(?<=\bmean)|(?<=nanmean))\s*\(",
    "sum": r"sum(?:(?<=\bsum)|(?<=nansum)|(?<=einsum))\s*\(",
    "vecdot": "",
    **LENGTHS,
}
"""How a mean of squares is written, likewise."""


class Hint:
    """Whether a text holds one of several patterns.

    patterns: by a plain part that each pattern's matches have; "" where that part is all. Looking
        for a plain part is many times faster than for a pattern, and most texts lack it.

    A pattern is best begun with plain characters, which are then looked for in the same way: put
    ``\\bmean`` as ``mean(?<=\\bmean)``.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._text = [(part, re.compile(pattern)) for part, pattern in patterns.items()]
        self._bytes = [
            (part.encode(), re.compile(pattern.encode())) for part, pattern in patterns.items()
        ]

    def found_in(self, source: str | bytes) -> bool:
        """Whether it does; in bytes words are those of ASCII."""
        if isinstance(source, bytes):
            return any(part in source and pattern.search(source) for part, pattern in self._bytes)
        return any(part in source and pattern.search(source) for part, pattern in self._text)


def has_word(text: bytes, word: bytes) -> bool:
    """Whether ``word`` stands in ``text`` with no letter, digit or underscore beside it."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (_joins(text[start - 1 : start]) or _joins(text[end : end + 1])):
            return True
        start = text.find(word, start + 1)
    return False


def _joins(character: bytes) -> bool:
    return character.isalnum() or character == b"_"
