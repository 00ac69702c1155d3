"""`store` is every storage in turn: a test of the contract runs over each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from push.ports import Storage
from tests.contract.stores import Clock, memory_store, sqlite_store


@pytest.fixture
def clock() -> Clock:
    """The storage's wall clock."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[Storage]:
    """An empty storage."""
    opening = memory_store if request.param == "memory" else sqlite_store
    async with opening(tmp_path, clock) as opened:
        yield opened
