"""Several brokers in this process over one real Redis or Valkey, like several gateways."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.broker import Broker
from gateway.config import Config
from metadata.catalog import ANYBODY, Group, Queue
from metadata.redis.database import found_catalog
from push.errors import Refused
from storage.redis import target
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard
from tests.histories.house import WAIT_S, House, eventually, never
from tests.memory import in_memory
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node

INCARNATION = "incarnation-1"


@contextmanager
def a_server() -> Iterator[Node]:
    """Run a server whose files need not outlive it, because its tests have no kill -9 and no power
    loss."""
    with in_memory() as folder, single(binaries()[0], folder) as started:
        yield started


async def emptied(node: Node) -> str:
    """Empty a server, and return its URL, without replicas, as if it were new."""
    node.ask("FLUSHALL")
    url = f"redis://{node.address}:{node.port}"
    (part,) = await target.parse(url).parts()
    await provision(part.settings, INCARNATION, 0)
    shard = await RedisShard.open(part.settings, Marks(INCARNATION))
    await found_catalog(shard)
    await shard.close()
    return url


class Gateway(House):
    """A gateway that can be stopped and opened again. It shares only the store with the others;
    `folder` is its own."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, "redis")
        self._config = Config(data_dir=folder, storage=url, encryption=False)

    async def open(self) -> None:
        """Start it. A server that is slow because the machine is busy is waited for, as everything
        here is: no history is about that."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, "SILENCE_S", WAIT_S)
            self.broker = await Broker.open(self._config, on_fatal=never)

    async def restart(self) -> None:
        """Stop it in an orderly way, and start it again."""
        await self.stop()
        await self.open()

    async def learn(self, name: str = "orders", group: str = "billing") -> tuple[Queue, Group]:
        """Wait until a queue and a group that another gateway has created are known here; return
        them."""

        def known() -> bool:
            try:
                self.broker.metadata.find_group(ANYBODY, self.find(name), group)
            except Refused:
                return False
            return True

        await eventually(known)
        queue = self.find(name)
        return queue, self.broker.metadata.find_group(ANYBODY, queue, group)
