"""How a series fares on other releases, as far as their sources are at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from normport.tools.releases import PINNED, cached
from normport.tools.replay import PatchStatus, status
from normport.tools.sources import resolve

EARLIEST = Version("0.28.0")
"""The first release that a series is written for."""


@dataclass(frozen=True)
class OnRelease:
    """states: what each patch does there; None when that is unknown, and then ``problem`` says why.

    own: it is the release that the series was made from.
    """

    name: str
    states: tuple[PatchStatus, ...] | None
    problem: str | None = None
    own: bool = False


def on_releases(
    series: Path, own: str | None, against: Sequence[str], note: Callable[[str], None]
) -> list[OnRelease]:
    """The series on each release that normport knows, and on what ``against`` names.

    Releases are looked at where they are cached; ``against`` (checkouts or releases, as SOURCE of
    the command line) is fetched if need be.

    Raises:
        UserError: one of ``against`` cannot be had, or a patch was edited.
    """
    found = []
    named = {}
    for spec in against:
        tree = resolve(spec, note=note)
        states = tuple(status(tree.root, series))
        one = OnRelease(spec, states, own=own is not None and tree.version == own)
        if not tree.writable and tree.version in PINNED:
            named[tree.version] = one
        else:
            found.append(one)
    for version in sorted((v for v in PINNED if Version(v) >= EARLIEST), key=Version):
        if version in named:
            found.append(named[version])
            continue
        root = cached(Version(version))
        if root is None:
            command = f"--against vllm=={version}"
            problem = f"Unknown: its sources are not at hand; {command} fetches and tries them."
            found.append(OnRelease(f"vllm=={version}", None, problem, own=version == own))
        else:
            states = tuple(status(root, series))
            found.append(OnRelease(f"vllm=={version}", states, own=version == own))
    return found
