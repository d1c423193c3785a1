"""The journal of a change to several files: what it set out to do, for whoever finds it later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from normport.tools.errors import UserError


@dataclass(frozen=True)
class Step:
    """One file: ``before`` None creates it, ``after`` None removes it."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Entry:
    """A step in the journal: sha256 in place of content."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Place:
    """A root and where its journal lies."""

    root: Path
    journal: Path


@dataclass(frozen=True)
class Journal:
    """What a run set out to do below one root.

    entries: the files. folders: those that it makes for them, outermost first.
    run: a name that no other run has. others: the other roots that it changes.
    """

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    run: str = ""
    others: tuple[Place, ...] = ()


def digest(content: bytes | None) -> str | None:
    """The sha256 in hexadecimal; None for a file that is not there."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def checked_path(path: str) -> str:
    """``path`` if it is relative, stays below its root and out of git's own folder.

    Raises:
        UserError: it does not.
    """
    parts = PurePosixPath(path).parts
    clean = "/".join(parts) == path and "\0" not in path and "\\" not in path
    if not parts or not clean or path.startswith("/") or ".." in parts or parts[0] == ".git":
        raise UserError(f"{path!r} is no path of a file inside the tree: it was not touched.")
    return path


def record(place: Place, steps: Sequence[Step], run: str, others: Sequence[Place]) -> Journal:
    """The journal of ``steps`` below the root of ``place``.

    Raises:
        UserError: a path is none of a file below the root.
    """
    entries = [Entry(checked_path(s.path), digest(s.before), digest(s.after)) for s in steps]
    return Journal(tuple(entries), _missing_folders(place.root, steps), run, tuple(others))


def _missing_folders(root: Path, steps: Sequence[Step]) -> tuple[str, ...]:
    folders: dict[str, None] = {}
    for step in steps:
        for parent in reversed(PurePosixPath(step.path).parents[:-1]):
            if not (root / parent).is_dir():
                folders[str(parent)] = None
    return tuple(folders)


def to_json(journal: Journal) -> bytes:
    """The bytes of the journal's file."""
    return json.dumps({"schema": 2, **asdict(journal)}, indent=1, default=os.fspath).encode()


def from_json(path: Path) -> Journal:
    """The journal in the file ``path``; also one of the first schema, which knew no other roots.

    Raises:
        UserError: it is no journal, or names a file that is not inside the tree.
        OSError: it cannot be read.
    """
    try:
        if not path.is_file():
            raise ValueError(path)
        content = json.loads(path.read_bytes())
        if content["schema"] not in (1, 2):
            raise ValueError(content["schema"])
        entries = [Entry(e["path"], e["before"], e["after"]) for e in content["entries"]]
        folders = [checked_path(folder) for folder in content["folders"]]
        for entry in entries:
            checked_path(entry.path)
        others = [Place(Path(o["root"]), Path(o["journal"])) for o in content.get("others", ())]
        return Journal(tuple(entries), tuple(folders), str(content.get("run", "")), tuple(others))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a journal that this normport wrote: remove it if no normport run is "
            "to be completed."
        ) from error
