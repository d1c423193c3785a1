"""Text of a patch as a page can show it: nothing in it is invisible, and nothing is markup."""

from __future__ import annotations

import re

# Control characters, and those that reorder or hide what stands beside them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def shown(text: str) -> str:
    """``text`` with every unseen character spelled out, as ``⟦U+202E⟧``.

    Tabs and line feeds stay. A byte that was no UTF-8 came in as a lone surrogate
    (``surrogateescape``) and becomes ``⟦byte FF⟧``.
    """
    return _UNSEEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:
        return f"⟦byte {number - 0xDC00:02X}⟧"
    return f"⟦U+{number:04X}⟧"
