"""``manifest.json``: what a patch series holds, for people and for ``normport series``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from normport.tools.errors import UserError

NAME = "manifest.json"
SCHEMA = 1
OPTIONAL = "optional"
PROBES = "probes"
"""The key of the evidence that holds what ``normport series evidence`` took in."""


@dataclass(frozen=True)
class PatchedFile:
    """One file of a patch with its sha256 before (None: the patch creates it) and after.

    adds, removes: the classes and functions that the patch brings into or takes out of a file
    that was there, as ``GemmaRMSNorm.forward_xpu``.
    """

    path: str
    before: str | None
    after: str
    adds: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PatchEntry:
    """One patch of the series; ``order`` counts from 1 and is None for an opt-in patch."""

    file: str
    order: int | None
    subject: str
    reason: str
    droppable: str
    sha256: str
    files: tuple[PatchedFile, ...]
    evidence: Any = None


@dataclass(frozen=True)
class Obsolete:
    """A patch that this release does not need, and why not."""

    name: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """The whole series.

    release: the vLLM version; None when it could not be told.
    wheel_sha256: of the wheel the sources came from; None for a checkout.
    base_commit: HEAD of the checkout whose files the series starts from, when they were committed.
    patches: applied one after the other. optional: each on top of all of them, on request.
    evidence: what was not about one patch.
    """

    release: str | None
    wheel_sha256: str | None
    base_commit: str | None
    patches: tuple[PatchEntry, ...]
    optional: tuple[PatchEntry, ...] = ()
    obsolete: tuple[Obsolete, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The same bytes for the same series; a dataclass in the evidence becomes an object."""
        text = json.dumps(
            {"schema": SCHEMA, **asdict(self)},
            default=_plain,
            indent=2,
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
        )
        # A byte of a file name that is no UTF-8 becomes JSON's own escape.
        return text.encode(errors="backslashreplace") + b"\n"


def load(series: Path) -> Manifest:
    """The manifest in the folder ``series``.

    Raises:
        UserError: there is none, or it is not one that this normport understands.
    """
    path = series / NAME
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no plain file: restore it, or name another series.")
        content = json.loads(path.read_bytes())
        if content["schema"] != SCHEMA:
            raise UserError(
                f"{path} has schema {content['schema']} where this normport knows {SCHEMA}: use "
                "the normport that wrote it, or write the series again."
            )
        return Manifest(
            content["release"],
            content["wheel_sha256"],
            content["base_commit"],
            tuple(map(_entry, content["patches"])),
            tuple(map(_entry, content["optional"])),
            tuple(Obsolete(o["name"], o["reason"]) for o in content["obsolete"]),
            content["evidence"],
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"{series} holds no {NAME}: name a folder that `normport port` wrote."
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a manifest that normport wrote: restore it, or write the series into "
            "a new folder."
        ) from error


def _entry(content: Mapping[str, Any]) -> PatchEntry:
    parts = PurePosixPath(content["file"]).parts
    if not (len(parts) == 1 or (len(parts) == 2 and parts[0] == OPTIONAL)) or ".." in parts:
        raise ValueError(content["file"])
    files = tuple(
        PatchedFile(f["path"], f["before"], f["after"], tuple(f["adds"]), tuple(f["removes"]))
        for f in content["files"]
    )
    return PatchEntry(
        "/".join(parts),
        content["order"],
        content["subject"],
        content["reason"],
        content["droppable"],
        content["sha256"],
        files,
        content["evidence"],
    )


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} cannot be written to {NAME}")
