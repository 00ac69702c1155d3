"""`store` is every storage in turn: a test of the contract runs over each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from push.ports import Storage
from push.sealing import PLAIN
from tests.contract.redis_single import redis_store
from tests.contract.stores import Clock, memory_store, sealing, sqlite_store


@pytest.fixture
def clock() -> Clock:
    """The storage's wall clock."""
    return Clock()


OPENINGS: dict[str, Callable[..., AbstractAsyncContextManager[Storage]]] = {
    "memory": memory_store,
    "sqlite": sqlite_store,
    "redis": redis_store,
}


@pytest.fixture(params=[*OPENINGS, *(f"sealed {name}" for name in OPENINGS)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[Storage]:
    """An empty storage."""
    opening = OPENINGS[request.param.rpartition(" ")[2]]
    sealer = sealing() if request.param.startswith("sealed") else PLAIN
    async with opening(tmp_path, clock, sealer=sealer) as opened:
        yield opened
