"""The catalogs that the tests of metadata/ work on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from metadata.inprocess import InProcessMetadata
from tests.metadata.keepers import Keeper, RedisKeeper, SqliteKeeper
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A server of its own, for all tests of metadata/."""
    with single(binaries()[0], tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(params=["sqlite", "redis"])
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Keeper]:
    """Whoever keeps the rows; each promise holds with both."""
    made: Keeper
    if request.param == "sqlite":
        made = SqliteKeeper(tmp_path)
    else:
        made = RedisKeeper(request.getfixturevalue("node"))
        await made.empty()
    yield made
    await made.close()


@pytest.fixture
async def catalog(keeper: Keeper) -> AsyncIterator[InProcessMetadata]:
    """A new catalog."""
    opened = await keeper.open()
    yield opened
    await opened.close()
