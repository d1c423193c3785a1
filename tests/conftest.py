"""What several test modules share."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest

from normport.tools.sources import resolve
from normport.tools.tree import SourceTree

# Syntax trees are many objects without cycles. Looking for some among them and all that torch
# brings, as often as Python does by itself, takes longer than what is tested.
gc.set_threshold(500_000, 20, 20)


@pytest.fixture(scope="session")
def release() -> Callable[[str], SourceTree]:
    """Gives the sources of a released vLLM by version, fetched once and then from the cache.

    A test that uses it is marked ``release``.
    """

    @functools.cache
    def get(version: str) -> SourceTree:
        return resolve(f"vllm=={version}", note=lambda _: None)

    return get
