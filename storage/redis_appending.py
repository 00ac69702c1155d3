"""How records are appended on Redis or Valkey: sealed, judged by the store, and certified behind
the copies that were counted (R10)."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from push.errors import Refused, Unknown
from push.ports import Append, Appended, Partition
from push.record import Header
from push.sealing import PLAIN, Sealer
from storage.redis_keys import queue_key
from storage.redis_ports import Arg, Shard
from storage.redis_records import Placed, all_placed, append_args, placed


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

    def close(self) -> None:
        """Seal no more."""
        self._sealing.shutdown()

    async def append(
        self, appends: Sequence[Append], headers: Sequence[Header], doubts: int | None
    ) -> list[Appended]:
        """As Storage.append, of records with these headers."""
        sealed = await self._seal(appends, headers)
        wall = self._wall_unix_ms()
        args = [
            append_args(append, header, blob, wall_unix_ms=wall)
            for append, header, blob in zip(appends, headers, sealed, strict=True)
        ]
        works = [
            self._append_one(append, header, each, doubts)
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
        self, append: Append, header: Header, args: list[Arg], doubts: int | None
    ) -> Placed:
        """A record's place.

        Raises:
            Refused: the store did not judge it, and remembers nothing of it.
        """
        key, level = queue_key(append.partition.queue_id), append.durability
        if self._shard.has_room(key):
            try:
                answer = await self._shard.act("append", [key], args, level=level, doubts=doubts)
                return placed(answer, header.count)
            except Refused as refused:
                if refused.code.name != "storage_full":
                    raise
        args[7] = "storage_full"  # duplicates are answered, and the order is kept (R7)
        answer = await self._shard.act("append_refused", [key], args, level=level, doubts=doubts)
        return placed(answer, header.count)

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
            number, queue_id = partition.number, partition.queue_id
            key, end = queue_key(queue_id), ends[partition]
            if partition in local:  # behind records of a higher level, whose copies are not counted
                await self._shard.act("certify", [key], [number, 0], level="all")
            certified: int = await self._shard.act("certify", [key], [number, end], level="local")
            return certified

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
