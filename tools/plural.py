"""Numbers of things, as a sentence has them."""

from __future__ import annotations


def many(number: int, what: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {what}" + ("" if number == 1 else "s")
