"""The patch series of one release: written as a whole, compared with a checkout, applied to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from normport.tools import git, transaction, workspace
from normport.tools.definitions import definitions
from normport.tools.errors import UserError
from normport.tools.locks import locked
from normport.tools.mailbox import format_patch
from normport.tools.manifest import (
    NAME,
    OPTIONAL,
    PROBES,
    Manifest,
    Obsolete,
    PatchedFile,
    PatchEntry,
)
from normport.tools.manifest import load as load_manifest
from normport.tools.replay import PatchStatus, apply_series, status
from normport.tools.transaction import Step, digest
from normport.tools.tree import FileChange, Patch, SourceTree

__all__ = [
    "Manifest",
    "Obsolete",
    "PatchStatus",
    "apply_series",
    "load_manifest",
    "status",
    "update_manifest",
    "write_series",
]


def write_series(
    out: Path,
    tree: SourceTree,
    patches: Sequence[Patch],
    optional: Sequence[Patch] = (),
    evidence: Mapping[str, Any] | None = None,
    *,
    obsolete: Sequence[Obsolete] = (),
) -> Manifest:
    """Write the series and its manifest into ``out``, and take away what a former one left there.

    patches: numbered, each against what those before it leave.
    optional: into ``optional/``, unnumbered, each on top of all ``patches``.
    evidence: by patch name; under any other key it stands in the manifest for the whole series.
        JSON values and dataclasses of them.
    obsolete: patches that this release does not need, for the manifest.

    Everything appears at once or nothing does; other files in ``out`` stay, and so does what probes
    of devices found, as long as the release is the same. The same arguments give the same bytes.

    Raises:
        UserError: ``out`` holds a patch that is not ours or was edited, or cannot be written.
        ValueError: the patches do not follow from each other.
    """
    _check_chain(patches, optional)
    base = _base_commit(tree, patches)
    evidence = evidence or {}
    files: dict[str, bytes] = {}
    entries: tuple[list[PatchEntry], list[PatchEntry]] = ([], [])
    for number, patch in enumerate(patches, 1):
        name = f"{number:04d}-{_slug(patch.name)}.patch"
        mail = format_patch(
            patch,
            number=number,
            total=len(patches),
            extra_trailers=() if base else _base_hashes(patch),
            base_commit=base if number == 1 else None,
        )
        files[name] = mail
        entries[0].append(_entry(name, number, patch, mail, evidence))
    for patch in optional:
        name = f"{OPTIONAL}/{_slug(patch.name)}.patch"
        mail = format_patch(patch, extra_trailers=() if base else _base_hashes(patch))
        files[name] = mail
        entries[1].append(_entry(name, None, patch, mail, evidence))
    if len(files) != len(patches) + len(optional):
        raise ValueError("two patches have the same name")
    names = {patch.name for patch in (*patches, *optional)}
    of_series = {key: value for key, value in evidence.items() if key not in names}
    if probes := _former_probes(out, tree):
        of_series[PROBES] = probes
    manifest = Manifest(
        tree.version,
        tree.wheel_sha256,
        base,
        tuple(entries[0]),
        tuple(entries[1]),
        tuple(obsolete),
        of_series,
    )
    _replace(out, {**files, NAME: manifest.to_json()})
    return manifest


def update_manifest(series: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write what ``change`` makes of the manifest in ``series``, and return it.

    UserError: there is none, or it cannot be written.
    """
    load_manifest(series)  # says what is missing before anything is locked
    root = Path(os.path.realpath(series))
    try:
        with locked(root):
            transaction.recover(root, workspace.journal_path(root))
            former = load_manifest(series)
            before, manifest = (root / NAME).read_bytes(), change(former)
            after = manifest.to_json()
            if after != before:
                steps = [Step(NAME, before, after)]
                transaction.commit(root, steps, workspace.journal_path(root))
    except OSError as error:
        raise UserError(
            f"{series / NAME} cannot be written ({error.strerror or error}): check its permissions."
        ) from error
    return manifest


def _former_probes(out: Path, tree: SourceTree) -> list[Any]:
    """What devices showed of the series that stands in ``out``, if it is of this release."""
    if not (out / NAME).exists():
        return []
    former = load_manifest(out)
    probes = former.evidence.get(PROBES, [])
    return list(probes) if former.release == tree.version else []


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:60]


def _check_chain(patches: Sequence[Patch], optional: Sequence[Patch]) -> None:
    state: dict[str, bytes] = {}

    def follow(patch: Patch, state: dict[str, bytes]) -> None:
        for change in patch.changes:
            if state.get(change.path, change.before) != change.before:
                raise ValueError(f"{patch.name} does not follow from the patches before it")
            state[change.path] = change.after

    for patch in patches:
        follow(patch, state)
    for patch in optional:
        follow(patch, dict(state))


def _base_commit(tree: SourceTree, patches: Sequence[Patch]) -> str | None:
    """HEAD, when it holds every file just as the series starts from it."""
    head = git.head_commit(tree.root) if tree.git else None
    if head is None:
        return None
    seen: set[str] = set()
    for change in (change for patch in patches for change in patch.changes):
        if change.path in seen:
            continue
        seen.add(change.path)
        blob = None if change.before is None else git.blob_hash(change.before)
        if git.committed_blob(tree.root, change.path) != blob:
            return None
    return head


def _base_hashes(patch: Patch) -> list[tuple[str, str]]:
    return [
        ("Base-sha256", f"{change.path} {digest(change.before)}")
        for change in patch.changes
        if change.before is not None
    ]


def _entry(
    file: str, order: int | None, patch: Patch, mail: bytes, evidence: Mapping[str, Any]
) -> PatchEntry:
    return PatchEntry(
        file,
        order,
        patch.subject,
        patch.why,
        patch.droppable,
        str(digest(mail)),
        tuple(map(_patched_file, patch.changes)),
        evidence.get(patch.name),
    )


def _patched_file(change: FileChange) -> PatchedFile:
    before, after = definitions(change.before or b""), definitions(change.after)
    if change.before is None or not change.path.endswith(".py"):
        before = after = set()
    return PatchedFile(
        change.path,
        digest(change.before),
        str(digest(change.after)),
        tuple(sorted(after - before)),
        tuple(sorted(before - after)),
    )


def _replace(out: Path, files: Mapping[str, bytes]) -> None:
    made = _make(out)
    try:
        root = Path(os.path.realpath(out))
        with locked(root):
            transaction.recover(root, workspace.journal_path(root))
            held = _own_files(root, out)
            steps = [
                Step(path, held.get(path), files.get(path))
                for path in sorted({*held, *files})
                if held.get(path) != files.get(path)
            ]
            if steps:
                transaction.commit(root, steps, workspace.journal_path(root))
        with suppress(OSError):  # Only an empty folder goes.
            os.rmdir(root / OPTIONAL)
    finally:
        for folder in made:
            with suppress(OSError):  # Only an empty one goes: nothing was written.
                os.rmdir(folder)


def _make(out: Path) -> list[Path]:
    """Make the folder ``out``; returns those that were missing, innermost first."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The folder {out} cannot be made ({error.strerror or error}): name another."
        ) from error
    return missing


def _own_files(root: Path, shown: Path) -> dict[str, bytes]:
    """What a former series of ours left in ``root``.

    Raises:
        UserError: there are patches of somebody else's among it.
    """
    known: dict[str, str] = {}
    found: dict[str, bytes] = {}
    try:
        if (root / NAME).exists():
            former = load_manifest(root)
            known = {entry.file: entry.sha256 for entry in (*former.patches, *former.optional)}
            found[NAME] = (root / NAME).read_bytes()
        for path in [*root.glob("*.patch"), *root.glob(f"{OPTIONAL}/*.patch")]:
            name = path.relative_to(root).as_posix()
            content = path.read_bytes()
            if known.get(name) != digest(content):
                origin = "was edited since normport wrote it" if name in known else "is not ours"
                raise UserError(
                    f"{shown} holds {name}, which {origin}: move it away or name another folder."
                )
            found[name] = content
    except OSError as error:
        raise UserError(
            f"{shown} cannot be read ({error.strerror or error}): name another folder."
        ) from error
    return found
