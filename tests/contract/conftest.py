"""`store` is every storage in turn: a test of the contract runs over each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from push.ports import Storage
from push.sealing import PLAIN
from tests.contract.stores import Clock, memory_store, sealing, sqlite_store


@pytest.fixture
def clock() -> Clock:
    """The storage's wall clock."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "sealed memory", "sealed sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[Storage]:
    """An empty storage."""
    opening = memory_store if request.param.endswith("memory") else sqlite_store
    sealer = sealing() if request.param.startswith("sealed") else PLAIN
    async with opening(tmp_path, clock, sealer=sealer) as opened:
        yield opened
