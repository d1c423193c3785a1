"""How a series fares on a checkout: each patch in turn, on a disposable copy of what it touches."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from normport.tools import git, transaction, workspace
from normport.tools.definitions import definitions
from normport.tools.errors import UserError
from normport.tools.mailbox import diff_of
from normport.tools.manifest import PatchEntry, load
from normport.tools.transaction import digest
from normport.tools.tree import FileChange

Status = Literal["clean", "obsolete", "no-op", "conflict"]

_FAILED_AT = re.compile(r"error: patch failed: (?P<path>.+):(?P<line>\d+)")


@dataclass(frozen=True)
class PatchStatus:
    """What one patch does on a checkout that has the patches before it.

    status: ``clean`` it applies; ``obsolete`` what it does is there already; ``no-op`` it applies
        and changes nothing; ``conflict`` it does not apply.
    reason: one sentence; for a conflict it names the file and, where git does, the hunk.
    path, hunk: of a conflict; ``hunk`` is its ``@@`` line.
    """

    file: str
    order: int | None
    subject: str
    status: Status
    reason: str
    path: str | None = None
    hunk: str | None = None


def status(checkout: Path, series: Path) -> list[PatchStatus]:
    """The status of each patch of ``series`` on ``checkout``, which is only read.

    The numbered patches are tried one on top of the other, each opt-in patch alone on top of all
    of them. A patch for a file that is in the way, or that has uncommitted changes, conflicts:
    neither ``git am`` nor ``series apply`` would apply it.

    Raises:
        UserError: the series or a file of the checkout cannot be read, a patch was edited since
            it was written, or git is missing.
    """
    return _replay(checkout, series, allow_dirty=False)[0]


def apply_series(checkout: Path, series: Path, *, allow_dirty: bool = False) -> list[PatchStatus]:
    """Apply the numbered patches to ``checkout``, all or none; obsolete ones are left out.

    An installed vLLM gets no ``tests/``.

    Raises:
        UserError: as ``status`` and ``apply_changes`` do, and when a patch does not apply.
    """
    workspace.recover(checkout)
    statuses, changes = _replay(checkout, series, allow_dirty=True)  # the next step looks itself
    for patch in statuses:
        if patch.order is not None and patch.status == "conflict":
            raise UserError(f"{patch.file} does not apply: {patch.reason} No file was changed.")
    workspace.apply_changes(checkout, changes, allow_dirty=allow_dirty)
    return statuses


def _replay(
    checkout: Path, series: Path, *, allow_dirty: bool
) -> tuple[list[PatchStatus], list[FileChange]]:
    manifest = load(series)
    skipped = ("--exclude=tests/*",) if workspace.takes_no_tests(checkout) else ()
    if skipped:
        manifest = replace(
            manifest,
            patches=tuple(map(_without_tests, manifest.patches)),
            optional=tuple(map(_without_tests, manifest.optional)),
        )
    entries = [*manifest.patches, *manifest.optional]
    paths = sorted({transaction.checked_path(f.path) for entry in entries for f in entry.files})
    diffs = {entry.file: _diff(series, entry) for entry in entries}
    found = {path: workspace.obstacle(checkout, path) for path in paths}
    obstacles = {path: f"{reason}." for path, reason in found.items() if reason is not None}
    readable = [path for path in paths if path not in obstacles or (checkout / path).is_file()]
    with _copy(checkout, readable) as copy:
        before = _contents(copy, paths)
        statuses = [_try(copy, entry, diffs[entry.file], skipped) for entry in manifest.patches]
        after = _contents(copy, paths)
        for entry in manifest.optional:
            statuses.append(_try(copy, entry, diffs[entry.file], skipped))
            _restore(copy, after)
        if any(patch.status == "conflict" for patch in statuses):
            _restore(copy, before)
            there = _below_others(copy, entries, diffs, skipped)
            statuses = [_obsolete(p) if p.file in there else p for p in statuses]
    touched = {entry.file: [file.path for file in entry.files] for entry in entries}
    statuses = [_unless(patch, obstacles, touched[patch.file]) for patch in statuses]
    if not allow_dirty:
        clean = {path for p in statuses if p.status == "clean" for path in touched[p.file]}
        dirty = _uncommitted(checkout, sorted(clean))
        statuses = [_unless(patch, dirty, touched[patch.file]) for patch in statuses]
    changes = [
        FileChange(path, before[path], content)
        for path, content in after.items()
        if content is not None and content != before[path]
    ]
    return statuses, changes


def _unless(patch: PatchStatus, obstacles: Mapping[str, str], paths: Sequence[str]) -> PatchStatus:
    """A conflict where one of the patch's files is among the obstacles.

    What is there already needs no file to be changed, so it stays as it is.
    """
    met = next((path for path in paths if path in obstacles), None)
    if met is None or patch.status in ("obsolete", "no-op"):
        return patch
    return replace(patch, status="conflict", reason=obstacles[met], path=met, hunk=None)


def _uncommitted(checkout: Path, paths: Sequence[str]) -> dict[str, str]:
    """Those of ``paths`` with uncommitted changes, each with the sentence that says so."""
    what = "has uncommitted changes: commit or stash them, or `series apply --allow-dirty`."
    found = {}
    for path in paths:
        try:
            if git.uncommitted(checkout, [path]):
                found[path] = f"{path} {what}"
        except UserError as error:  # it cannot be told, so `series apply` refuses as well
            found[path] = str(error)
    return found


def _diff(series: Path, entry: PatchEntry) -> bytes:
    path = series / entry.file
    try:
        mail = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): write the series again."
        ) from error
    if digest(mail) != entry.sha256:
        raise UserError(f"{path} was edited since normport wrote it: write the series again.")
    return diff_of(mail)


@contextmanager
def _copy(checkout: Path, paths: Sequence[str]) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="normport-") as folder:
            copy = Path(folder)
            # Its own repository: git would otherwise look for one above the temporary folder.
            made = git.run_git(copy, "init", "--quiet", "--template=", isolated=True)
            if made.returncode != 0:
                raise UserError(f"git cannot work in {copy}: {git.complaint(made)}.")
            _restore(copy, {path: _read(checkout, path) for path in paths})
            yield copy
    except OSError as error:
        raise UserError(
            f"A temporary copy cannot be made ({error.strerror or error}): make room in "
            f"{tempfile.gettempdir()} or name another folder in TMPDIR."
        ) from error


def _read(checkout: Path, path: str) -> bytes | None:
    try:
        return (checkout / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check the checkout."
        ) from error


def _contents(copy: Path, paths: Sequence[str]) -> dict[str, bytes | None]:
    return {path: _read(copy, path) for path in paths}


def _restore(copy: Path, contents: dict[str, bytes | None]) -> None:
    for path, content in contents.items():
        target = copy / path
        if content is None:
            target.unlink(missing_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _without_tests(entry: PatchEntry) -> PatchEntry:
    files = tuple(file for file in entry.files if not workspace.is_test(file.path))
    return replace(entry, files=files)


def _below_others(
    copy: Path, entries: Sequence[PatchEntry], diffs: dict[str, bytes], skipped: Sequence[str]
) -> set[str]:
    """The patches that are there below later ones: they come off once those have come off."""
    found = set()
    for entry in reversed(entries):
        if diffs[entry.file] and _apply(copy, diffs[entry.file], *skipped, "--reverse") is None:
            found.add(entry.file)
    return found


def _obsolete(patch: PatchStatus) -> PatchStatus:
    if patch.status != "conflict":
        return patch
    reason = "Its changes are already there, with those of a later patch on top."
    return replace(patch, status="obsolete", reason=reason, path=None, hunk=None)


def _try(copy: Path, entry: PatchEntry, diff: bytes, skipped: Sequence[str]) -> PatchStatus:
    def verdict(
        status: Status, reason: str, path: str | None = None, hunk: str | None = None
    ) -> PatchStatus:
        return PatchStatus(entry.file, entry.order, entry.subject, status, reason, path, hunk)

    if not diff or not entry.files:
        return verdict("no-op", "The patch holds no change.")
    paths = [file.path for file in entry.files]
    before = _contents(copy, paths)
    if all(digest(before[file.path]) == file.after for file in entry.files):
        return verdict("obsolete", "Every file is already as the patch leaves it.")
    if _apply(copy, diff, *skipped, "--check", "--reverse") is None:
        return verdict("obsolete", "Its changes are already there.")
    there = _already_defined(entry, before)
    if there is not None:
        return verdict("obsolete", f"The checkout already has its own {there}.")
    failure = _apply(copy, diff, *skipped)
    if failure is None:
        if _contents(copy, paths) == before:
            return verdict("no-op", "It applies and changes nothing.")
        exact = all(digest(before[file.path]) == file.before for file in entry.files)
        on = "It applies on top of the series" if entry.order is None else "It applies"
        how = f"{on}." if exact else f"{on}, though not to the files it was made from."
        return verdict("clean", how)
    path, hunk = _where(failure, diff)
    return verdict("conflict", _conflict(entry, before, path, hunk, failure), path, hunk)


def _apply(copy: Path, diff: bytes, *options: str) -> str | None:
    """None when git applies ``diff``, else what it says; it changes all files or none."""
    result = git.run_git(
        copy,
        *("-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", *options, "-"),
        stdin=diff,
        isolated=True,
    )
    return result.stderr.decode("utf-8", "replace") if result.returncode else None


def _already_defined(entry: PatchEntry, before: dict[str, bytes | None]) -> str | None:
    """What the patch brings and the checkout has in a form of its own; git might add it twice.

    What counts in a file are the methods that the patch gives to classes which were there (its
    helpers may be named as they like), or everything when there are no such methods.
    """
    for file in entry.files:
        methods = {name for name in file.adds if name.rpartition(".")[0] not in ("", *file.adds)}
        telling = methods or set(file.adds)
        if not telling or digest(before[file.path]) == file.after:
            continue
        if telling <= definitions(before[file.path] or b""):
            return f"{min(telling)} in {file.path}"
    return None


def _where(failure: str, diff: bytes) -> tuple[str | None, str | None]:
    """The file that git stumbled over, and the ``@@`` line of the hunk when it names one."""
    if found := _FAILED_AT.search(failure):
        path, line = found["path"], found["line"]
        section = diff.partition(f"\n+++ b/{path}\n".encode())[2]
        for header in re.finditer(rb"^@@ -(\d+)(?:,\d+)? .*$", section, re.MULTILINE):
            if header[1].decode() == line:
                return path, header[0].decode("utf-8", "replace")
        return path, None
    found = re.search(r"error: (.+): (?:No such file|already exists|does not exist)", failure)
    return (found[1], None) if found else (None, None)


def _conflict(
    entry: PatchEntry,
    before: dict[str, bytes | None],
    path: str | None,
    hunk: str | None,
    failure: str,
) -> str:
    done = [file.path for file in entry.files if digest(before[file.path]) == file.after]
    if done:
        left = next(file.path for file in entry.files if file.path not in done)
        return (
            f"Half applied: {done[0]} is as the patch leaves it, {left} is not; put back "
            f"{done[0]} as the release has it and apply the series again."
        )
    if path is None:
        return f"git says: {failure.strip().splitlines()[0].removeprefix('error: ')}."
    if before.get(path) is None:
        return f"The checkout has no {path}."
    file = next((file for file in entry.files if file.path == path), None)
    if file is not None and file.before is None:
        return f"{path} exists already, with another content."
    at = f" at {hunk[: hunk.index(' @@') + 3]}" if hunk else ""
    gone = set(file.removes if file else ()) - definitions(before[path] or b"")
    if gone:
        return f"{path} differs{at}: it no longer defines {sorted(gone)[0]}."
    return f"{path} differs{at}."
