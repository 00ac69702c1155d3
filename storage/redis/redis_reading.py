"""Reading a partition's log on Redis: checked, opened, and put aside where it is damaged (R30)."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from push import limits
from push.places import Partition
from push.ports import Damage, PartitionState, Read
from push.record import Record
from push.sealing import PLAIN, Sealer
from storage.redis.redis_keys import queue_key
from storage.redis.redis_ports import Shard
from storage.redis.redis_records import damage_of, row_of

_OPENERS: Final = 2


class RedisReading:
    """See the module."""

    def __init__(self, shard: Shard, sealer: Sealer) -> None:
        self._shard = shard
        self._sealer = sealer
        self._opening = ThreadPoolExecutor(_OPENERS, thread_name_prefix="unsealing")

    def close(self) -> None:
        """End the threads."""
        self._opening.shutdown()

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, until: int | None
    ) -> Read:
        """As Storage.read."""
        key = queue_key(partition.queue_id)
        begin = min(max(offset, 0), limits.OFFSET_MAX + 1)
        end = limits.OFFSET_MAX + 1 if until is None else min(until, limits.OFFSET_MAX) + 1
        records: list[Record] = []
        found: list[Damage] = []
        at, size = begin, 0
        while True:
            args = [partition.number, at, max(bytes_max - size, 0), end]
            answer = await self._shard.look("read", [key], args)
            if not answer:
                return Read((), 0, 0)
            start, certified, ends, bad, rows = answer
            opened = await self._open(partition, rows)
            damaged = [one for one in opened if isinstance(one, Damage)]
            found += damaged
            whole = [one for one in opened if isinstance(one, Record)]
            if records and whole and size + whole[0].memory_bytes > bytes_max:
                whole, ends = [], whole[0].first
                damaged = []
            records += whole
            size += sum(record.memory_bytes for record in whole)
            for damage in damaged:
                await self._put_aside(damage)
            if not damaged or ends >= min(certified, end):
                break
            at = ends  # damage left room
        top = min(ends, end) if records or found else end
        known = {damage.first: damage for damage in [*found, *damage_of(partition, bad)]}
        damages = [
            known[first]
            for first in sorted(known)
            if first < top and first + known[first].count > offset
        ]
        return Read(tuple(records), start, certified, tuple(damages))

    async def _open(self, partition: Partition, rows: Sequence[Any]) -> list[Record | Damage]:
        """In their order; in a thread where keys may have to be waited for."""

        def opened() -> list[Record | Damage]:
            return [row_of(partition, raw).open(partition, self._sealer) for raw in rows]

        if self._sealer is PLAIN or not rows:
            return opened()
        return await asyncio.get_running_loop().run_in_executor(self._opening, opened)

    async def _put_aside(self, damage: Damage) -> None:
        partition = damage.partition
        await self._shard.act(
            "quarantine",
            [queue_key(partition.queue_id)],
            [partition.number, damage.first, damage.count, damage.reason],
            level="local",
        )

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        """As Storage.read_each."""
        if not offsets:
            return ()
        args = [min(max(offset, 0), limits.OFFSET_MAX + 1) for offset in offsets]
        key = queue_key(partition.queue_id)
        count, *rows = await self._shard.look(
            "read_each", [key], [partition.number, bytes_max, *args]
        )
        if not count:
            return (None,) * len(offsets)
        records = []
        for one in await self._open(partition, [row for row in rows if row]):
            if isinstance(one, Damage):
                await self._put_aside(one)
            else:
                records.append(one)
        found: list[Record | None] = []
        at = 0
        for offset in offsets[:count]:
            while at < len(records) and records[at].last < offset:
                at += 1
            holds = at < len(records) and records[at].first <= offset
            found.append(records[at] if holds else None)
        return tuple(found)

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        """As Storage.offset_at."""
        found: int = await self._shard.look(
            "offset_at", [queue_key(partition.queue_id)], [partition.number, unix_ms]
        )
        return found

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        """As Looking.published."""

        async def one(partition: Partition, offset: int) -> int | None:
            at = min(max(offset, 0), limits.OFFSET_MAX + 1)
            args = [partition.number, at]
            found: int = await self._shard.look("published", [queue_key(partition.queue_id)], args)
            return found if found >= 0 else None

        return list(await asyncio.gather(*(one(*place) for place in places)))

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        """As Looking.partitions."""
        rows = await self._shard.look("partitions", [queue_key(queue_id)], [])
        return [_state_of(Partition(queue_id, number), row) for number, row in enumerate(rows)]


def _state_of(partition: Partition, row: Sequence[int]) -> PartitionState:
    start, end, certified, generation, messages, size, sealed = row
    return PartitionState(
        partition,
        start,
        end,
        certified,
        generation,
        messages,
        size,
        sealed if sealed >= 0 else None,
    )
