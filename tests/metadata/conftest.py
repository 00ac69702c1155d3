"""The catalogs that the tests of metadata/ work on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from metadata.catalog_service import CatalogService
from tests.memory import in_memory, tmp_path
from tests.metadata.keepers import Keeper, LayoutKeeper, ServiceKeeper, SqliteKeeper
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node
from tests.storage.standing import Kind, Pool, kinds

__all__ = ["tmp_path"]


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A server of its own, for all tests of metadata/."""
    with in_memory() as folder, single(binaries()[0], folder) as started:
        yield started


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the catalog promises over a file, over the servers that `kinds` says, and over a
    metadata service in front of either."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "keeper" in metafunc.fixturenames and "keeper" not in own:
        selected = metafunc.definition.get_closest_marker("layouts") is not None
        each: list[str | Kind] = ["sqlite", *kinds(selected), "service", "service-servers"]
        metafunc.parametrize("keeper", each, ids=str, indirect=True)


@pytest.fixture
async def keeper(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Pool
) -> AsyncIterator[Keeper]:
    """Whoever keeps the rows; each promise holds with all of them."""
    made: Keeper
    if isinstance(request.param, Kind):
        made = LayoutKeeper(servers.of(request.param))
        await made.empty()
    elif request.param != "sqlite":
        standing = servers.of(kinds(False)[0]) if request.param == "service-servers" else None
        made = ServiceKeeper(tmp_path, standing)
        await made.empty()
    else:
        made = SqliteKeeper(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def catalog(keeper: Keeper) -> AsyncIterator[CatalogService]:
    """A new catalog."""
    opened = await keeper.open()
    yield opened
    await opened.close()
