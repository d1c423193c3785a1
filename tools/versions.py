"""Which versions of packages are installed, without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(*names: str) -> str | None:
    """The version of the first of ``names`` that is installed, or None."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
