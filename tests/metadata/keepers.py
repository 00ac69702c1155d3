"""Catalogs to test, whoever keeps their rows: a SQLite file, or a Redis or Valkey server."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from metadata.inprocess import InProcessMetadata
from metadata.redis_store import RedisStore
from storage.redis_link import Address, Reach
from storage.redis_primary import fixed
from storage.redis_provision import provision
from storage.redis_shard import Marks, RedisShard, Settings
from tests.servers.node import Node
from tests.storage.standing import Standing

MARKS = Marks("history-1")


class SqliteKeeper:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> InProcessMetadata:
        """What the folder holds; by one at a time."""
        return await InProcessMetadata.open(self._folder, on_fatal=on_fatal)

    async def close(self) -> None:
        """Nothing is left open."""


class RedisKeeper:
    """One server, which is emptied first, and so many replicas of it."""

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

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> InProcessMetadata:
        """What the server holds, as one more gateway sees it; the first one makes it."""
        shard = await self.shard()
        opened = await RedisStore.open(shard, found=True, on_fatal=on_fatal)
        await shard.heard()
        return InProcessMetadata(*opened)

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

    async def open(self, on_fatal: Callable[[str], None] | None = None) -> InProcessMetadata:
        """What they hold, as one more gateway sees it; the first one makes it."""
        shard = await self._servers.open(MARKS.incarnation)
        self._shards.push_async_callback(shard.close)
        opened = await RedisStore.open(shard, found=True, on_fatal=on_fatal)
        await shard.heard()
        return InProcessMetadata(*opened)

    async def close(self) -> None:
        """Close all connections."""
        await self._shards.aclose()


Keeper = SqliteKeeper | LayoutKeeper
