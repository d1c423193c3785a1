"""Several files changed as one: all of them or none, also when the process is killed.

A journal is written first. It names every file with the sha256 of what it holds before and after.
Then each new content is written beside its file (``.NAME.normport-new``) and each old one kept by
a link (``.NAME.normport-old``), then the renames happen, then the journal goes. Whoever finds a
journal can tell from the hashes how far its run came, and finish the work or take it back.

The files may lie below several roots with a journal each. Every journal names the others: all are
complete before the first file changes, and none goes before the last file is as it shall be. So a
journal that is missing beside another one of the same run was never written, if the files still
are as before, and is done with, if they are not.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from normport.tools.errors import UserError
from normport.tools.journal import (
    Entry,
    Journal,
    Place,
    Step,
    checked_path,
    digest,
    from_json,
    record,
    to_json,
)
from normport.tools.locks import folders_locked
from normport.tools.staging import (
    changed,
    check_place,
    forget,
    held,
    new_path,
    old_path,
    put_back,
    remove,
    stage,
    staged,
    sync_folder,
    write,
)

__all__ = ["Step", "Work", "checked_path", "commit", "commit_all", "companions", "digest"]

_NOTHING_CHANGED = "no file was changed"
_UNTIDY = "mend that and run normport again, which completes the change"


@dataclass(frozen=True)
class Work:
    """The steps to carry out below ``root`` and where their journal lies."""

    root: Path
    steps: Sequence[Step]
    journal: Path


@dataclass(frozen=True)
class _Part:
    """One root of a run. begun: the paths that this process has changed, or was about to."""

    place: Place
    record: Journal
    begun: set[str] = field(default_factory=set)

    @property
    def targets(self) -> Iterator[tuple[Path, Entry]]:
        for entry in self.record.entries:
            yield self.place.root / entry.path, entry

    @property
    def swapped(self) -> Iterator[tuple[Path, Entry]]:
        """Those that this process has changed."""
        for target, entry in self.targets:
            moved = target if entry.after is None else new_path(target)
            if entry.path in self.begun and not os.path.lexists(moved):
                yield target, entry


def commit(root: Path, steps: Sequence[Step], journal: Path) -> None:
    """Carry out all ``steps`` below ``root`` or none of them; see ``commit_all``."""
    commit_all([Work(root, steps, journal)])


def commit_all(work: Sequence[Work]) -> None:
    """Carry out all steps of all ``work`` or none of them, also when the process is killed: then
    whatever ``recover`` does in one root it does in all.

    The files must hold what the steps say they hold before; one that somebody changes meanwhile
    is left as it then is, and so are all others. A file keeps its mode and, where the process may,
    its owner.

    Raises:
        UserError: a file cannot be written, or another run is at work on it; every file is as it
            was.
    """
    places = [Place(part.root, part.journal) for part in work]
    run = secrets.token_hex(16)
    parts = [
        _Part(place, record(place, part.steps, run, [p for p in places if p != place]))
        for place, part in zip(places, work, strict=True)
    ]
    with folders_locked(_folders(parts)):
        try:
            for part, wanted in zip(parts, work, strict=True):
                _prepare(part, wanted.steps)
            for part in parts:
                _swap_all(part, _NOTHING_CHANGED)
            for part in parts:
                _check_kept(part)
        except BaseException:
            _undo(parts)
            raise
        _tidy_all(parts)


def _prepare(part: _Part, steps: Sequence[Step]) -> None:
    """Write the journal and all new contents, and keep the old ones."""
    root, journal = part.place.root, part.place.journal
    with _naming(f"The journal in {journal.parent}", _NOTHING_CHANGED):
        write(new_path(journal), to_json(part.record), None)
        os.replace(new_path(journal), journal)
        sync_folder(journal.parent)
    for folder in part.record.folders:
        with _naming(str(root / folder), _NOTHING_CHANGED):
            os.mkdir(root / folder)
    for step in steps:
        with _naming(f"{step.path} in {root}", _NOTHING_CHANGED):
            stage(root, step)


def companions(place: Place) -> list[Place]:
    """The other roots of the run whose journal lies at ``place``, as far as theirs are there too.

    Raises:
        UserError: one of the journals is damaged or cannot be read.
    """
    with _naming(f"The journal in {place.journal.parent}", _UNTIDY):
        if not os.path.lexists(place.journal):
            return []
        journal = from_json(place.journal)
        return [
            other
            for other in journal.others
            if os.path.lexists(other.journal) and from_json(other.journal).run == journal.run
        ]


def recover(root: Path, journal: Path) -> Literal["completed", "taken back"] | None:
    """Finish what an interrupted run left, or take it back when its new contents are incomplete;
    in all roots of that run (``companions``), which the caller keeps locked.

    Returns None when no run was interrupted.

    Raises:
        UserError: a file is neither as that run found it nor as it wanted it; nothing is touched.
    """
    place = Place(root, journal)
    found = [place, *companions(place)]
    with _naming(f"The journal in {journal.parent}", _UNTIDY):
        if not os.path.lexists(journal):
            forget(new_path(journal))
            return None
        parts = [_Part(there, from_json(there.journal)) for there in found]
        with folders_locked(_folders(parts)):
            if _can_complete(parts):
                for part in parts:
                    _swap_all(part, _UNTIDY)
                _tidy_all(parts)
                return "completed"
            _take_back(parts)
            return "taken back"


@contextmanager
def _naming(path: str, outcome: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): {outcome}."
        ) from error


def _folders(parts: Iterable[_Part]) -> set[Path]:
    return {target.parent for part in parts for target, _ in part.targets}


def _swap_all(part: _Part, outcome: str) -> None:
    root = part.place.root
    for target, entry in part.targets:
        with _naming(f"{entry.path} in {root}", outcome):
            now = held(target)
            if now == entry.after:
                continue
            check_place(root, entry.path)
            if now != entry.before:
                raise changed(root, entry.path)
            part.begun.add(entry.path)
            if entry.after is None:
                os.replace(target, old_path(target))
            else:
                os.replace(new_path(target), target)
    _sync_parents(part)


def _check_kept(part: _Part) -> None:
    """Whether somebody who had an old file open wrote into it after it was looked at."""
    for target, entry in part.swapped:
        if held(old_path(target)) not in (entry.before, None):
            raise changed(part.place.root, entry.path)


def _tidy_all(parts: Sequence[_Part]) -> None:
    for part in parts:
        with _naming(f"The journal in {part.place.journal.parent}", _UNTIDY):
            _tidy(part)


def _tidy(part: _Part) -> None:
    """Remove our own files; the journal goes last, so that it names them while they are there."""
    for target, _ in part.targets:
        remove(new_path(target))
        remove(old_path(target))
    remove(part.place.journal)
    sync_folder(part.place.journal.parent)


def _undo(parts: Sequence[_Part]) -> None:
    """Put back what this process has changed; what it has not is nobody's business but others'.

    Raises:
        UserError: a file cannot be put back; the journal stays for another try.
    """
    with _naming("The tree", "an interrupted change is only partly undone, so run normport again"):
        for part in parts:
            for target, entry in part.swapped:
                if held(target) not in (entry.before, entry.after):
                    raise _meddled(part, entry)
        for part in parts:
            for target, entry in part.swapped:
                if held(target) != entry.before:
                    put_back(target, entry)
        _forget_all(parts)


def _take_back(parts: Sequence[_Part]) -> None:
    """Put every file back as it was before the run.

    Raises:
        UserError: a file cannot be put back; the journal stays for another try.
    """
    for part in parts:
        for _, entry in part.targets:
            if not _restorable(part.place.root, entry):
                raise _meddled(part, entry)
    with _naming("The tree", "an interrupted change is only partly undone, so run normport again"):
        for part in parts:
            for target, entry in part.targets:
                if held(target) != entry.before:
                    put_back(target, entry)
        _forget_all(parts)


def _forget_all(parts: Sequence[_Part]) -> None:
    """Remove everything that was made for a change that is taken back, when all of it is."""
    for part in parts:
        _sync_parents(part)
    for part in parts:
        forget(new_path(part.place.journal))
        for target, _ in part.targets:
            remove(new_path(target))
        for folder in reversed(part.record.folders):
            with suppress(OSError):  # Somebody put something else there, or it was never made.
                os.rmdir(part.place.root / folder)
        _tidy(part)


def _meddled(part: _Part, entry: Entry) -> UserError:
    return UserError(
        f"{entry.path} was changed by somebody else while or after a normport run was "
        f"interrupted: restore it, or remove {part.place.journal} to keep all files as they are, "
        "then run again."
    )


def _can_complete(parts: Sequence[_Part]) -> bool:
    """Whether all that the run wanted can be had; see the module for a journal that is missing."""
    known = {other for part in parts for other in part.record.others}
    whole = known <= {part.place for part in parts}
    for part in parts:
        for target, entry in part.targets:
            now = held(target)
            if now == entry.after:
                if held(old_path(target)) not in (entry.before, None):
                    raise _meddled(part, entry)
            elif not (whole and now == entry.before and staged(target, entry)):
                return False
    return True


def _restorable(root: Path, entry: Entry) -> bool:
    target = root / entry.path
    now = held(target)
    if now == entry.before:
        return True
    return now == entry.after and (entry.before is None or held(old_path(target)) == entry.before)


def _sync_parents(part: _Part) -> None:
    for folder in _folders([part]):
        sync_folder(folder)
