"""Several brokers in this process over one real Redis or Valkey, as several gateways are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.broker import Broker
from gateway.config import Config
from metadata.catalog import ANYBODY, Group, Queue
from metadata.redis.database import found_catalog
from push.errors import Refused
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard
from storage.redis.target import parse
from tests.histories.house import House, eventually, never
from tests.memory import in_memory
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node

INCARNATION = "incarnation-1"


@contextmanager
def a_server() -> Iterator[Node]:
    """One whose files need outlive nothing: kill -9 and power loss are not for its tests."""
    with in_memory() as folder, single(binaries()[0], folder) as started:
        yield started


async def emptied(node: Node) -> str:
    """The URL of this server, without replicas, as when it was new."""
    node.ask("FLUSHALL")
    url = f"redis://{node.address}:{node.port}"
    (part,) = await parse(url).parts()
    await provision(part.settings, INCARNATION, 0)
    shard = await RedisShard.open(part.settings, Marks(INCARNATION))
    await found_catalog(shard)
    await shard.close()
    return url


class Gateway(House):
    """One of them, which can be stopped and opened again. It shares nothing with the others but the
    store; `folder` is its own."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, "redis")
        self._config = Config(data_dir=folder, storage=url, encryption=False)

    async def open(self) -> None:
        """Start it."""
        self.broker = await Broker.open(self._config, on_fatal=never)

    async def restart(self) -> None:
        """Stop it in an orderly way, and start it."""
        await self.stop()
        await self.open()

    async def learn(self, name: str = "orders", group: str = "billing") -> tuple[Queue, Group]:
        """A queue and a group that another one has made, as soon as they are known here."""

        def known() -> bool:
            try:
                self.broker.metadata.find_group(ANYBODY, self.find(name), group)
            except Refused:
                return False
            return True

        await eventually(known)
        queue = self.find(name)
        return queue, self.broker.metadata.find_group(ANYBODY, queue, group)
