"""`store` is every storage in turn, so that a test of the contract runs over each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from push.storage_port import PLAIN, Storage
from tests.contract.redis_single import redis_store
from tests.contract.stores import Clock, memory_store, placed_store, sealing, sqlite_store
from tests.memory import tmp_path
from tests.storage.standing import Kind, Pool, kinds

__all__ = ["tmp_path"]

Opening = Callable[..., AbstractAsyncContextManager[Storage]]
"""Opens an empty storage with a clock and a sealer."""
EMBEDDED: dict[str, Opening] = {
    "memory": memory_store,
    "sqlite": sqlite_store,
    "placed": placed_store,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests over each storage; on Redis and Valkey over those that `kinds` selects."""
    if "opening" in metafunc.fixturenames:
        selected = metafunc.definition.get_closest_marker("layouts") is not None
        each: list[str | Kind] = [*EMBEDDED, *kinds(selected)]
        if metafunc.definition.get_closest_marker("bounds") is not None:
            each.remove("placed")  # how clusters share a bound is tested in tests/storage
        metafunc.parametrize("opening", each, ids=str, indirect=True)
    if "is_sealed" in metafunc.fixturenames:
        metafunc.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])


@pytest.fixture
def clock() -> Clock:
    """The storage's wall clock."""
    return Clock()


@pytest.fixture
def opening(request: pytest.FixtureRequest, tmp_path: Path, servers: Pool) -> Opening:
    """The way to open one of the storages."""
    if isinstance(request.param, Kind):
        return partial(redis_store, servers.of(request.param))
    return partial(EMBEDDED[request.param], tmp_path)


@pytest.fixture
async def store(opening: Opening, clock: Clock, is_sealed: Any) -> AsyncIterator[Storage]:
    """An empty storage."""
    async with opening(clock, sealer=sealing() if is_sealed else PLAIN) as opened:
        yield opened
