"""A house whose messages are at two storage clusters, each of which stalls and fails by itself, in
virtual time."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from gateway.broker import Broker
from gateway.config import Config
from metadata.catalog_service import CatalogService
from push.errors import Refused
from push.storage_port import Storage
from storage.memory import MemoryStorage
from storage.sharded import ClusterMap, ShardedStorage
from tests.catalogs import open_catalog
from tests.conformance.virtual import run
from tests.histories.house import House
from tests.mad import MadStorage


class Servers(ShardedStorage):
    """A storage over clusters in memory, which can outlive this broker."""

    stays = False

    async def close(self) -> None:
        """Close the clusters, unless they stay."""
        if not self.stays:
            await super().close()


class ClustersHouse(House):
    """A house whose clusters hold a queue's partitions alternately, unless `cycle` says
    otherwise."""

    a: MadStorage
    b: MadStorage
    cycle: tuple[str, ...] = ("a", "b")
    metadata: CatalogService

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "memory")
        self.a, self.b = MadStorage(self.memory), MadStorage(MemoryStorage())

    async def open(self) -> None:
        """Open the broker over the clusters."""
        self.metadata = metadata = await open_catalog(self.folder)
        metadata.place_queues(lambda _queue_id, _settings: self.cycle)

        def placed(queue_id: str) -> tuple[str, ...] | None:
            queue = metadata.queue_by_id(queue_id)
            return queue.clusters if queue is not None else None

        clusters = {"a": cast(Storage, self.a), "b": cast(Storage, self.b)}
        places = ClusterMap(clusters, MemoryStorage(), placed)
        self.storage = storage = Servers(places)
        config = Config(data_dir=self.folder)
        self.broker = Broker(config, metadata, storage, may_be_away=True)
        await self.broker.start()

    def outlive(self) -> None:
        """Keep its clusters after it is stopped, as servers would be."""
        self.storage.stays = True


def away(of: MadStorage, *only: str) -> None:
    """Make a cluster refuse at once, for these calls, or for all."""

    def fail(name: str) -> Exception | None:
        is_meant = name in only if only else name not in {"on_certified", "close", "lane", "copies"}
        return Refused("storage_unavailable", "it does not answer") if is_meant else None

    of.fail = fail


def at_clusters(
    history: Callable[[ClustersHouse], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """Make a test in virtual time from a history, which gets a house."""

    def test(tmp_path: Path) -> None:
        async def live() -> None:
            house = ClustersHouse(tmp_path)
            await house.open()
            try:
                await history(house)
            finally:
                house.a.well()
                house.b.well()
                await house.stop()

        run(live())

    test.__name__, test.__doc__ = history.__name__, history.__doc__
    test.__module__ = history.__module__
    return test
