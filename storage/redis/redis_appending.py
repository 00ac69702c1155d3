"""How records are appended on Redis or Valkey: sealed, judged by the store, and certified behind
the copies that were counted (R10)."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from push.errors import Refused, TocsinError, Unknown
from push.places import Partition
from push.ports import Append, Appended, Lane
from push.record import Header
from push.sealing import PLAIN, Sealer
from storage.redis.redis_keys import queue_key
from storage.redis.redis_ports import Arg, Shard
from storage.redis.redis_records import Placed, all_placed, append_args, placed

COUNTED_WITHIN_S: Final = 0.05
"""So long an append waits for copies that its own level does not ask for."""


class RedisAppending:
    """See the module. `tell` is called with each certified end that was reached."""

    def __init__(
        self,
        shard: Shard,
        sealer: Sealer,
        wall_unix_ms: Callable[[], int],
        tell: Callable[[Partition, int], None],
    ) -> None:
        self._shard = shard
        self._sealer = sealer
        self._wall_unix_ms = wall_unix_ms
        self._tell = tell
        self._sealing = ThreadPoolExecutor(1, thread_name_prefix="sealing")
        self._counting: dict[Partition, asyncio.Task[int]] = {}
        """Where copies of what is not certified are being counted, and up to where."""
        self._ends: dict[Partition, int] = {}
        self._late: set[Partition] = set()
        """Where that was not done in time the last time."""

    def forget(self, queue_id: str) -> None:
        """The queue is gone."""
        self._late = {partition for partition in self._late if partition.queue_id != queue_id}

    async def close(self) -> None:
        """Seal no more, and count no more."""
        for task in self._counting.values():
            task.cancel()
        await asyncio.gather(*self._counting.values(), return_exceptions=True)
        self._sealing.shutdown()

    async def append(
        self, appends: Sequence[Append], headers: Sequence[Header], lane: Lane | None
    ) -> list[Appended]:
        """As Storage.append, of records with these headers."""
        sealed = await self._seal(appends, headers)
        wall = self._wall_unix_ms()
        args = [
            append_args(append, header, blob, wall_unix_ms=wall)
            for append, header, blob in zip(appends, headers, sealed, strict=True)
        ]
        works = [
            self._append_one(append, header, each, lane)
            for append, header, each in zip(appends, headers, args, strict=True)
        ]
        results = await asyncio.gather(*works, return_exceptions=True)
        answers = all_placed(results)
        try:
            return await self._certified(appends, answers)
        except Refused as refused:  # the records are there, and whoever looks certifies them (P2)
            raise Unknown(f"stored, and not certified: {refused.detail}") from refused

    async def _seal(self, appends: Sequence[Append], headers: Sequence[Header]) -> list[bytes]:
        """The payloads as they are stored, sealed in a thread: a key may have to be waited for."""
        if self._sealer is PLAIN:
            return [append.payload for append in appends]

        def seal() -> list[bytes]:
            return [
                self._sealer.seal(append.partition, append.header, append.payload, header.count)
                for append, header in zip(appends, headers, strict=True)
            ]

        return await asyncio.get_running_loop().run_in_executor(self._sealing, seal)

    async def _append_one(
        self, append: Append, header: Header, args: list[Arg], lane: Lane | None
    ) -> Placed:
        """A record's place.

        Raises:
            Refused: the store did not judge it, and remembers nothing of it.
        """
        key, level = queue_key(append.partition.queue_id), append.durability
        if self._shard.has_room(key):
            try:
                answer = await self._shard.act("append", [key], args, level=level, lane=lane)
                return placed(answer, header.count)
            except Refused as refused:
                if refused.code.name != "storage_full":
                    raise
                lane = None  # what was asked behind it is refused by now, and this stores nothing
        args[7] = "storage_full"  # duplicates are answered, and the order is kept (R7)
        answer = await self._shard.act("append_refused", [key], args, level=level, lane=lane)
        return placed(answer, header.count)

    async def _certify(self, partition: Partition, end: int) -> int:
        """The certified end, where the copies of everything below `end` were counted."""
        key, number = queue_key(partition.queue_id), partition.number
        certified: int
        certified, _ = await self._shard.act("certify", [key], [number, end], level="local")
        return certified

    async def _behind(self, partition: Partition, end: int) -> int:
        """As `_certify`, of what is stored at the level `local` behind records of a higher one
        whose copies nobody has counted. 0: that takes longer, for a replica may be away, and who
        publishes here does not wait for it; it is told of as soon as they are certified."""
        self._ends[partition] = end
        task = self._counting.get(partition)
        if task is None:
            task = asyncio.create_task(self._count(partition), name=f"certify {partition}")
            self._counting[partition] = task
        if partition not in self._late:
            await asyncio.wait((task,), timeout=COUNTED_WITHIN_S)
        if not task.done():
            self._late.add(partition)
            return 0
        return task.result()

    async def _count(self, partition: Partition) -> int:
        """The certified end, once it is that of all that was asked for; 0: it cannot be."""
        key, certified, done = queue_key(partition.queue_id), 0, -1
        try:
            while done != (end := self._ends[partition]):
                _, counted = await self._shard.act(
                    "certify", [key], [partition.number, 0], level="all"
                )
                # The primary that has answered the append may have had more than this one had then.
                certified = await self._certify(partition, min(end, counted))
                self._tell(partition, certified)
                done = end
            self._late.discard(partition)
            return certified
        except TocsinError:  # the next append tries again, or who looks at the ends does
            self._late.add(partition)
            return 0
        finally:
            del self._counting[partition], self._ends[partition]

    async def _certified(
        self, appends: Sequence[Append], answers: Sequence[Placed]
    ) -> list[Appended]:
        """The answers, once what they name may be given to anybody."""
        ends: dict[Partition, int] = {}
        local: set[Partition] = set()
        for append, answer in zip(appends, answers, strict=True):
            if answer.next_offset > answer.appended.certified:
                ends[append.partition] = answer.next_offset
                if append.durability == "local":
                    local.add(append.partition)
        grown = {
            append.partition: answer.appended.certified
            for append, answer in zip(appends, answers, strict=True)
            if answer.appended.count
        }

        async def one(partition: Partition) -> int:
            certify = self._behind if partition in local else self._certify
            return await certify(partition, ends[partition])

        found = await asyncio.gather(*map(one, ends))
        reached = dict(zip(ends, found, strict=True))
        for partition, end in (grown | reached).items():
            self._tell(partition, end)
        return [
            Appended(
                each.first,
                each.count,
                max(each.certified, reached.get(append.partition, 0)),
                each.generation,
                each.outcomes,
                each.skips,
            )
            for append, each in zip(appends, (answer.appended for answer in answers), strict=True)
        ]
