"""Unified diffs in git's dialect, byte for byte, for ``git apply``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from normport.tools.tree import FileChange


def git_diff(changes: Iterable[FileChange]) -> bytes:
    """One diff over all ``changes``, in their order; empty when nothing differs.

    Lines end at ``\\n`` alone, as for git, so that CRLF files and form feeds survive.
    """
    return b"".join(_one(change) for change in changes if change.before != change.after)


def _one(change: FileChange) -> bytes:
    old, new = _name("a/" + change.path), _name("b/" + change.path)
    header = [f"diff --git {old} {new}"]
    if change.before is None:
        header.append("new file mode 100644")
        old = "/dev/null"
    body = difflib.unified_diff(_lines(change.before or b""), _lines(change.after), n=3)
    text = [f"{line}\n" for line in header]
    for line in body:
        if line.startswith("--- ") and len(text) == len(header):
            text.append(f"--- {_tabbed(old)}\n")
        elif line.startswith("+++ ") and len(text) == len(header) + 1:
            text.append(f"+++ {_tabbed(new)}\n")
        elif line.endswith("\n"):
            text.append(line)
        else:
            text.append(f"{line}\n\\ No newline at end of file\n")
    return "".join(text).encode("utf-8", "surrogateescape")


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def _name(path: str) -> str:
    """``path`` as git writes it: in double quotes when it holds a quote, backslash or control."""
    special = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    quoted = "".join(
        special.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in path
    )
    return path if quoted == path else f'"{quoted}"'


def _tabbed(name: str) -> str:
    """git marks the end of a file name that holds a space with a tab."""
    return f"{name}\t" if " " in name else name
