"""Session fixtures of the engine tests: what vLLM does as released, and with the series."""

from __future__ import annotations

import os

import pytest
from engine_trees import Seen, missing, run_all


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Skip where vLLM cannot run; in CI that fails, because nothing would have been shown."""
    reason = missing()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"the engine tests must run in CI: {reason}", pytrace=False)
    pytest.skip(f"engine tests: {reason}")


@pytest.fixture(scope="session")
def seen(engine: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    return run_all(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="session")
def released(seen: dict[str, Seen]) -> Seen:
    return seen["released"]


@pytest.fixture(scope="session")
def chained(seen: dict[str, Seen]) -> Seen:
    return seen["chained"]


@pytest.fixture(scope="session")
def ported(seen: dict[str, Seen]) -> Seen:
    return seen["ported"]
