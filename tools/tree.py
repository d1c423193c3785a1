"""What the steps of the main job pass to each other: a tree of sources, and changes to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SIGN_OFF = ("Signed-off-by", "NAME <EMAIL>")
"""Placeholder trailer of every patch: only who submits it can sign it off."""


@dataclass(frozen=True)
class SourceTree:
    """A vLLM source tree on disk.

    root: the folder that holds ``vllm/`` (a checkout's top folder, a site-packages folder or
        an unpacked wheel). Paths of changes are relative to it, with ``/``.
    version: vLLM's version, e.g. ``0.29.0``; None when it could not be told.
    origin: how the user named it, for messages, e.g. ``vllm==0.29.0``.
    git: True when ``root`` is the top of a git work tree.
    writable: False for a release in the cache, which is never changed.
    wheel_sha256: of the wheel that a release was unpacked from; None for anything else.
    """

    root: Path
    version: str | None
    origin: str
    git: bool
    writable: bool
    wheel_sha256: str | None = None


@dataclass(frozen=True)
class FileChange:
    """One file before and after; ``before`` is None for a new file."""

    path: str
    before: bytes | None
    after: bytes


@dataclass(frozen=True)
class Patch:
    """One patch of a series, before it is written.

    name: short file-name stem, e.g. ``xpu-gemma-rms-norm-dispatch``; the series numbers it.
    subject: the commit subject, without ``[PATCH]``.
    why: the commit body's paragraphs.
    trailers: ``(key, value)`` pairs, e.g. ``("Proof-bfloat16", "max 0 ulp over 168 cases")``.
    changes: the files it changes, each against the tree as the patches before it leave it.
    droppable: when this patch is no longer needed, in one sentence.
    """

    name: str
    subject: str
    why: str
    trailers: tuple[tuple[str, str], ...]
    changes: tuple[FileChange, ...]
    droppable: str
