"""Text of somebody else's, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` on one line, with a mark for whatever cannot be shown."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
