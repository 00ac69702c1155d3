"""Catalogs to test, whoever keeps their rows: a SQLite file, a Redis or Valkey server, or the nodes
of a metadata service in front of one of the two."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from metadata.catalog_service import CatalogService
from metadata.redis.database import RedisDatabase, found_catalog
from metadata.row_store import RowStore
from metadata.service.client import NoNodeAnswers
from metadata.sqlite.database import FILE, SqliteDatabase
from storage.redis.connection import Address, Reach
from storage.redis.discovery import fixed
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from tests.catalogs import open_catalog
from tests.metadata.nodes import Service
from tests.servers.node import Node
from tests.storage.standing import Standing

MARKS = Marks("history-1")
WAIT_S = 20.0


class SqliteKeeper:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> CatalogService:
        """Return what the folder holds; by one at a time."""
        return await open_catalog(self._folder, on_fatal=on_fatal)

    async def close(self) -> None:
        """Nothing is left open."""


class RedisKeeper:
    """A server, which is emptied first, and this many replicas of it."""

    def __init__(self, node: Node, *, replicas: int = 0) -> None:
        self.node = node
        self._replicas = replicas
        self.settings = Settings(
            fixed(Address(node.address, node.port)), Reach(connect_s=2.0), silence_s=10.0
        )
        self._shards = AsyncExitStack()

    async def empty(self) -> None:
        """As when it was new."""
        self.node.ask("FLUSHALL")
        await provision(self.settings, MARKS.incarnation, self._replicas)

    async def shard(self) -> RedisShard:
        """A gateway's connections; the keeper closes them."""
        shard = await RedisShard.open(self.settings, MARKS)
        self._shards.push_async_callback(shard.close)
        return shard

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> CatalogService:
        """Return what the server holds, as one more gateway sees it; the first one makes it."""
        shard = await self.shard()
        await found_catalog(shard)
        opened = await RowStore.open(RedisDatabase(shard), on_fatal=on_fatal)
        await shard.wait_subscribed()
        return CatalogService(*opened)

    async def close(self) -> None:
        """Close all connections."""
        await self._shards.aclose()


class LayoutKeeper:
    """Servers that stand for many tests, in one layout; emptied first."""

    def __init__(self, servers: Standing) -> None:
        self._servers = servers
        self._shards = AsyncExitStack()

    async def empty(self) -> None:
        """As when they were new."""
        await self._servers.empty(MARKS.incarnation)

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> CatalogService:
        """Return what they hold, as one more gateway sees it; the first one makes it."""
        shard = await self._servers.open(MARKS.incarnation)
        self._shards.push_async_callback(shard.close)
        await found_catalog(shard)
        opened = await RowStore.open(RedisDatabase(shard), on_fatal=on_fatal)
        await shard.wait_subscribed()
        return CatalogService(*opened)

    async def close(self) -> None:
        """Close all connections."""
        await self._shards.aclose()


class ServiceKeeper:
    """Three nodes of a metadata service, which find each other's shards by the ring, over a file or
    over servers, which are emptied first."""

    def __init__(self, folder: Path, servers: Standing | None) -> None:
        self._folder = folder
        self._servers = servers
        self._opened = AsyncExitStack()
        self._service: Service | None = None

    async def empty(self) -> None:
        """As when all was new."""
        if self._servers is not None:
            await self._servers.empty(MARKS.incarnation)

    async def _start(self) -> Service:
        if self._servers is None:
            service = Service(await SqliteDatabase.open(self._folder / FILE), "ring")
            self._opened.push_async_callback(service.database.close)
        else:
            shard = await self._servers.open(MARKS.incarnation)
            self._opened.push_async_callback(shard.close)
            await found_catalog(shard)
            service = Service(RedisDatabase(shard), "ring")
        self._opened.push_async_callback(service.close)
        for name in ("n1", "n2", "n3"):
            await service.start(name)
        return service

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> CatalogService:
        """Return what it has, as one more gateway sees it."""
        if self._service is None:
            self._service = await self._start()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await self._service.gateway(on_fatal=on_fatal)
                except (
                    NoNodeAnswers
                ):  # the machine stood still: each node says so until it has read again
                    await asyncio.sleep(0.1)

    async def close(self) -> None:
        """The nodes, and what they stand in front of."""
        await self._opened.aclose()


Keeper = SqliteKeeper | LayoutKeeper | ServiceKeeper
