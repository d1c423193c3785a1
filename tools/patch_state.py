"""Whether a vLLM package holds a patch series, told by the digests in the series' manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from normport.tools.manifest import load

PACKAGE = "vllm"


def patch_state(package: Path, series: Path) -> dict[str, Any]:
    """What the files of ``package`` (a ``vllm`` folder) are to the series.

    state: ``applied``, ``absent`` (as released), ``partial`` (some files each way) or ``other``
    (a file is neither). Files outside the package, as tests, are not looked at. UserError where
    ``series`` has no manifest that can be read.
    """
    manifest = load(series)
    before: dict[str, str | None] = {}
    after: dict[str, str] = {}
    for patch in manifest.patches:
        for file in patch.files:
            if file.path.startswith(f"{PACKAGE}/"):
                before.setdefault(file.path, file.before)
                after[file.path] = file.after
    found = {path: _digest(package.parent / path, package) for path in after}
    kinds = {
        path: "applied" if have == after[path] else "absent" if have == before[path] else "other"
        for path, have in found.items()
    }
    return {
        "state": _overall(set(kinds.values())),
        "release": manifest.release,
        "patches": [patch.file for patch in manifest.patches],
        "files": kinds,
    }


def _overall(kinds: set[str]) -> str:
    if "other" in kinds:
        return "other"
    return kinds.pop() if len(kinds) == 1 else "partial"


def _digest(path: Path, package: Path) -> str | None:
    real = package / path.relative_to(package.parent / PACKAGE)
    return hashlib.sha256(real.read_bytes()).hexdigest() if real.is_file() else None
