"""A failover under the port: appends are unknown or refused for a while and go on by themselves.
Nothing that was answered is missing (P1), also for a gateway that only reads."""

import asyncio
from dataclasses import replace
from pathlib import Path

from push.errors import Refused, Unknown
from push.storage_port import Append, Stored
from storage.redis.library import library
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import P0, append
from tests.servers.binaries import Binary
from tests.servers.layouts import guarded
from tests.storage.shards import address, sentinels, settings
from tests.waiting import becomes

PUBLISHERS = 16


class Load:
    """Publishers that send again what is unknown, until it is answered."""

    def __init__(self, store: RedisStorage) -> None:
        self._store = store
        self.receipts: dict[int, bytes] = {}
        self.unsure = 0
        self._names = 0
        self._tasks = [asyncio.create_task(self._publish()) for _ in range(PUBLISHERS)]

    async def more(self, count: int) -> None:
        """Wait for this many further receipts."""
        goal = len(self.receipts) + count
        await becomes(lambda: len(self.receipts) >= goal, within_s=60)

    async def stop(self) -> None:
        """End them in the middle of what they do."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self) -> None:
        while True:
            self._names += 1
            producer = b"producer-%07d" % self._names
            record = append(runs=[(producer, 0, [1])])
            await self._sent(replace(record, payload=b"%020d" % self._names))

    async def _sent(self, record: Append) -> None:
        while True:
            try:
                (appended,) = await self._store.append([record])
            except (Unknown, Refused):
                self.unsure += 1
                await asyncio.sleep(0.02)
                continue
            outcome = appended.outcomes[0] if appended.outcomes else Stored(appended.first)
            assert isinstance(outcome, Stored)
            assert outcome.offset not in self.receipts
            self.receipts[outcome.offset] = record.payload
            return


async def test_appends_go_on_after_a_failover_and_no_receipt_is_missing(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with guarded(redis_binary, tmp_path, replicas=2) as servers:
        given = replace(settings(sentinels(servers.sentinels), wait_s=5.0), library=library())
        await provision(given, INCARNATION, 2)
        fatal: list[str] = []
        given = replace(given, wait_s=1.0, watch_s=0.2)
        stores = []
        for _ in range(2):
            shard = await RedisShard.open(given, Marks(INCARNATION), on_fatal=fatal.append)
            stores.append(RedisStorage(shard, INCARNATION, tails_s=0.2))
        store, reader = stores
        woken: asyncio.Queue[int] = asyncio.Queue()
        reader.on_certified(lambda _, end: woken.put_nowait(end))
        await store.create_queue("q-1", 1)
        await reader.read(P0, 0, 1)
        load = Load(store)
        await load.more(300)
        lost = servers.primary
        lost.kill()
        found = await asyncio.to_thread(servers.wait_failover, lost)
        await asyncio.to_thread(lost.start)  # and follows the one that was chosen
        await load.more(300)
        await load.stop()
        assert load.unsure > 0
        async with asyncio.timeout(10):
            while await woken.get() <= max(load.receipts):
                pass
        for one in stores:
            read = await one.read(P0, 0, 1 << 30)
            there = {record.first: bytes(record.payload) for record in read.records}
            assert {at: there.get(at) for at in load.receipts} == load.receipts
            await one.close()
        assert fatal == []
        assert address(found) == await given.find()
