"""Histories of wake-ups for records that another gateway has certified. One arrives while this
gateway's own commit to that partition waits for its answer. Another is lost with its connection."""

import asyncio
from pathlib import Path
from typing import Any, cast

from gateway.broker import Broker
from gateway.config import Config
from gateway.publish.batch import (
    PendingPublish,
)
from metadata.catalog import Queue, QueueSettings
from push.places import Durability, Partition
from push.storage_port import Lane
from storage.redis.keys import CERTIFIED_CHANNELS, certified_ends, queue_key
from storage.redis.port import OnMessage, Shard
from storage.redis.store import RedisStorage
from tests.catalogs import open_catalog
from tests.conformance.virtual import run
from tests.histories.house import message
from tests.histories.redis_gateways import a_server, emptied
from tests.histories.test_gateways_on_redis import Gateway
from tests.storage.shards import QuietShard
from tests.waiting import becomes


def queue(name: str) -> Queue:
    return Queue(
        queue_id=name, name=name, tenant="", holder="", created_unix_ms=0,
        settings=QueueSettings(partitions=1, durability="local"), ring_epoch=1, members=(0,),
        hash_key=bytes(16),
    )  # fmt: skip


class TwoQueues(QuietShard):
    """Shard with two queues of the level `local`, so their appends certify. `fast` is answered at
    once. `slow`, which shares the commit, is answered 50 ms later, and meanwhile another gateway
    appends to `fast`, too."""

    def __init__(self) -> None:
        self.end = 0
        """End of fast's log, all of it certified."""

    def lane(self, key: str, level: Durability) -> Lane:
        return Lane(0, 0)

    async def act(
        self, function: str, keys: Any, args: Any, *, level: str, lane: Lane | None = None
    ) -> Any:
        if function != "append":
            return 0
        if keys[0] == queue_key("slow"):
            await asyncio.sleep(0.05)
            return [0, 1, 1, 1, 1]
        self.end += 1
        return [self.end - 1, 1, self.end, self.end, 1]

    async def look(self, function: str, keys: Any, args: Any) -> Any:
        if function == "tails" and keys[0] == queue_key("fast"):
            return [self.end, self.end, b"local"]
        return []

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        if channel_prefix == CERTIFIED_CHANNELS:
            self.heard = heard


def test_what_another_gateway_appends_during_a_commit_here_is_given_out(tmp_path: Path) -> None:
    """R10: The storage reports an end once."""

    async def main() -> None:
        shard = TwoQueues()
        storage = RedisStorage(cast(Shard, shard), "history-1")
        metadata = await open_catalog(tmp_path)
        broker = Broker(Config(data_dir=tmp_path), metadata, storage)
        storage.on_certified(broker.publisher.commits.on_certified)  # as Broker.start does
        place = Partition("fast", 0)
        ends: list[int] = []
        broker.tail.follow(
            place, lambda one: ends.append(broker.tail.ends[one])
        )  # as an owner does
        storage._tails.watch(place)  # as `own` and `read` do
        answered: list[Any] = []
        for name in ("fast", "slow"):
            broker.publisher.submit(PendingPublish(queue(name), [message(1)], answered.append))
        await asyncio.sleep(0.02)
        shard.end += 1  # another gateway's message, at offset 1
        channel = (CERTIFIED_CHANNELS + queue_key("fast")[:-5]).encode()
        assert certified_ends(channel, b"0 2") == [(place, 2)]
        shard.heard(channel, b"0 2")
        await asyncio.sleep(600)
        assert len(answered) == 2
        assert ends[-1] == 2, f"for 10 minutes nobody here knows of offset 1: {ends}"
        await metadata.close()

    run(main())


async def test_a_reader_at_the_end_gets_messages_whose_wake_up_was_lost(
    tmp_path: Path,
) -> None:
    """R10: A gateway also polls slowly, for readers that wait for a first message too."""
    with a_server() as node:
        url = await emptied(node)
        opened = []
        for name in "ab":
            (tmp_path / name).mkdir(mode=0o700)
            gateway = Gateway(tmp_path / name, url)
            await gateway.open()
            opened.append(gateway)
        one, two = opened
        queue = await one.queue(partitions=1, durability="local", retention_s=3600)
        await becomes(lambda: two.broker.metadata.inner.queue_by_id(queue.queue_id))
        session, _ = await one.read(queue, start="latest")
        await becomes(lambda: Partition(queue.queue_id, 0) in one.broker.tail._ends_read)
        node.ask("CLIENT", "KILL", "TYPE", "pubsub")
        assert await two.publish(queue, [message(1, "k")]) == [(0, 0, False)]
        await session.get(1)
        await one.stop()
        await two.stop()
