"""A series on other releases, from the cache alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from review_series import COMMITTED

from normport.tools.manifest import load
from normport.tools.review.releases import on_releases
from normport.tools.tree import SourceTree


@pytest.mark.release
def test_the_series_of_0_29_where_releases_are_cached(
    release: Callable[[str], SourceTree],
) -> None:
    for version in ("0.28.0", "0.29.0", "0.30.0"):
        release(version)
    told: list[str] = []
    found = {one.name: one for one in on_releases(COMMITTED, "0.29.0", [], told.append)}
    states = {
        name: [state.status for state in one.states] for name, one in found.items() if one.states
    }
    series = load(COMMITTED)
    everything = len(series.patches) + len(series.optional)
    assert states["vllm==0.28.0"] == ["clean"] * everything
    assert states["vllm==0.29.0"] == ["clean"] * everything
    assert states["vllm==0.30.0"][0] == "obsolete"
    assert [name for name, one in found.items() if one.own] == ["vllm==0.29.0"]
    assert told == []
    again = on_releases(COMMITTED, "0.29.0", ["vllm==0.30.0"], told.append)
    assert [one.name for one in again] == list(found)
