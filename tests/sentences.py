"""What every refusal's sentence must say."""

from __future__ import annotations

import re

from normport.codemods.advice import action

# What is told of a class besides: where else it is constructed.
_PLACES = re.compile(r" (?:Constructed in|No other file is seen) .* it counts as one site here\.$")

DOING = {
    "add", "ask", "build", "call", "choose", "construct", "convert", "copy", "correct", "declare",
    "define", "do", "drop", "expand", "give", "hand", "import", "inherit", "keep", "leave", "let",
    "look", "make", "move", "name", "normalise", "pass", "read", "remove", "rename", "return",
    "scan", "slice", "store", "take", "write",
}  # fmt: skip
"""What a maintainer may be told to do."""


def assert_actionable(sentence: str) -> None:
    """One sentence that says what is there, then what to do or that there is nothing to do."""
    assert sentence.endswith(".")
    assert "\n" not in sentence
    sentence = _PLACES.sub("", sentence)
    told = action(sentence)
    assert told is not None, f"nothing is said to do: {sentence}"
    assert told == "nothing needs doing." or told.split()[0] in DOING, told
    assert len(sentence.removesuffix(told).split()) > 2, f"it is not said what is there: {sentence}"
