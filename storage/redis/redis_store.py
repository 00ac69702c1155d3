"""The storage on Redis or Valkey: `push.ports.Storage` over one shard.

What an act does is in redis/, one atomic call each; here it is asked for, at its level,
and its answer is opened. A record at a level above `local` is certified by a second act once its
copies were counted (R10): until then nobody is given it.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from push import limits
from push.errors import Refused, Unknown
from push.letters import Inbox
from push.places import Durability, GroupPartition, ParkedLine, Partition
from push.ports import (
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    Lane,
    Owned,
    PartitionState,
    Read,
    Standing,
    Start,
    StorageState,
    WakeUp,
    Written,
)
from push.record import Record
from push.sealing import PLAIN, Sealer
from storage.redis import redis_keys
from storage.redis.redis_appending import RedisAppending
from storage.redis.redis_cursors import RedisCursors
from storage.redis.redis_inbox import RedisInbox
from storage.redis.redis_keys import queue_key
from storage.redis.redis_ports import Arg, Shard
from storage.redis.redis_reading import RedisReading
from storage.redis.redis_tails import PERIOD_S, Tails
from storage.rules.appending import open_header

T = TypeVar("T")
TRIM_ENTRIES: int = 512
"""Records that one act of trimming looks at: a function holds up everybody else."""
EXAMINED_MS: int = 86_400_000
"""So long a partition remembers what trimming has looked at in it."""
PURGE_PARTITIONS: int = 64
"""Partitions that one act purges, for the same reason: 1,024 of them with ten groups took 0.6 s."""


class RedisStorage:
    """See the module. `incarnation` is that which the shard was opened with; `wall` the unix clock,
    in seconds; `level`: the copies that cursors wait for; `tails_s`: how often the ends of what is
    read here are looked at, besides what is heard of them."""

    def __init__(
        self,
        shard: Shard,
        incarnation: str,
        *,
        wall: Callable[[], float] = time.time,
        sealer: Sealer = PLAIN,
        level: Durability = "all",
        tails_s: float = PERIOD_S,
    ) -> None:
        self._shard = shard
        self._incarnation = incarnation
        self._wall = wall
        self._cursors = RedisCursors(shard, level=level)
        self._reading = RedisReading(shard, sealer)
        self.inbox: Inbox = RedisInbox(shard)
        self._wake_up: WakeUp | None = None
        self._told: dict[Partition, int] = {}
        """The certified ends that the wake-up was called with."""
        self._appending = RedisAppending(shard, sealer, self._wall_unix_ms, self._tell)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._tails = Tails(shard, self._tell, period_s=tails_s)
        shard.on_message(redis_keys.CERTIFIED_CHANNELS, self._heard)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("storage_unavailable", "the storage is closed")

    def _wall_unix_ms(self) -> int:
        return int(self._wall() * 1000)

    async def _act(self, name: str, queue_id: str, *args: Arg, level: Durability = "all") -> Any:
        self._check_open()
        work = self._shard.act(name, [queue_key(queue_id)], args, level=level)
        return await self._whole(work)

    async def _look(self, name: str, queue_id: str, *args: Arg) -> Any:
        self._check_open()
        return await self._shard.look(name, [queue_key(queue_id)], args)

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Its answer. A caller that is cancelled does not take it back."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def incarnation(self) -> str:
        """As Storage.incarnation: the shard sees to it that it is this one."""
        self._check_open()
        return self._incarnation

    # --- Queues and groups -------------------------------------------------------------------

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        """As Storage.create_queue."""
        await self._act("create_queue", queue_id, partitions)

    async def drop_queue(self, queue_id: str) -> None:
        """As Storage.drop_queue."""
        while await self._act("drop_queue", queue_id):
            pass
        self._cursors.forget(lambda place: place.partition.queue_id == queue_id)
        self._tails.forget(queue_id)
        self._appending.forget(queue_id)
        for partition in [one for one in self._told if one.queue_id == queue_id]:
            del self._told[partition]

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """As Storage.create_group."""
        await self._act("create_group", queue_id, group_id, *starts)

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        """As Storage.drop_group."""
        await self._act("drop_group", queue_id, group_id)
        self._forget(queue_id, group_id)

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """As Storage.seek."""
        await self._act("seek", queue_id, group_id, *starts)
        self._forget(queue_id, group_id)

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        """As Storage.purge."""
        count = number = 0
        while number >= 0:
            args = (group_id or "", number, PURGE_PARTITIONS)
            try:
                gone, number = await self._act("purge", queue_id, *args)
            except Refused as refused:
                if number:
                    raise Unknown(f"from partition {number} on: {refused.detail}") from refused
                raise
            count += gone
        self._forget(queue_id, group_id)
        return count

    def _forget(self, queue_id: str, group_id: str | None) -> None:
        self._cursors.forget(
            lambda place: (
                place.partition.queue_id == queue_id and group_id in (None, place.group_id)
            )
        )

    # --- Appending ---------------------------------------------------------------------------

    def copies(self, partition: Partition, level: Durability) -> int:
        """As Storage.copies."""
        return self._shard.copies(level)

    def lane(self, partition: Partition, level: Durability) -> Lane:
        """As Storage.lane: all partitions of a queue are at one primary."""
        return self._shard.lane(queue_key(partition.queue_id), level)

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        """As Storage.append."""
        self._check_open()
        headers = [open_header(append) for append in appends]
        return await self._whole(self._appending.append(appends, headers, lane))

    def _tell(self, partition: Partition, certified: int) -> None:
        if certified > self._told.get(partition, 0):
            self._told[partition] = certified
            if self._wake_up is not None:
                self._wake_up(partition, certified)

    def _heard(self, channel: bytes, message: bytes) -> None:
        partition = redis_keys.partition_of(channel)
        if partition is not None and message.isdigit() and not self._closed:
            self._tell(partition, int(message))

    def on_certified(self, wake_up: WakeUp) -> None:
        """As Storage.on_certified; also for what other gateways append."""
        self._wake_up = wake_up

    # --- Reading -----------------------------------------------------------------------------

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        """As Storage.read."""
        self._check_open()
        self._tails.watch(partition)
        return await self._reading.read(partition, offset, bytes_max, until)

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        """As Storage.read_each."""
        self._check_open()
        return await self._reading.read_each(partition, offsets, bytes_max)

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        """As Storage.offset_at."""
        self._check_open()
        return await self._reading.offset_at(partition, unix_ms)

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        """As Looking.published."""
        self._check_open()
        return await self._reading.published(places)

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        """As Looking.partitions."""
        self._check_open()
        return await self._reading.partitions(queue_id)

    # --- Cursors -----------------------------------------------------------------------------

    async def own(
        self, place: GroupPartition, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        """As Storage.own."""
        self._check_open()
        self._tails.watch(place.partition)
        return await self._whole(
            self._cursors.own(place, token=token, assignment=assignment, epoch_seen=epoch_seen)
        )

    async def write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        """As Storage.write_cursors."""
        self._check_open()
        return await self._whole(self._cursors.write(writes))

    async def read_side(
        self, place: GroupPartition, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        """As Storage.read_side."""
        self._check_open()
        return await self._cursors.read_side(place, key_hash, after, count_max)

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        """As Looking.cursors."""
        self._check_open()
        return await self._cursors.states(queue_id, group_id)

    async def cursor(self, place: GroupPartition) -> Cursor | None:
        """As Looking.cursor."""
        self._check_open()
        found = await self._cursors.load(place)
        return found[0].snapshot() if found is not None else None

    async def standings(self, place: GroupPartition, first: int, last: int) -> list[Standing]:
        """As Looking.standings."""
        self._check_open()
        return await self._cursors.standings(place, first, last)

    async def parked(self, place: GroupPartition) -> list[ParkedLine]:
        """As Looking.parked."""
        self._check_open()
        return await self._cursors.parked(place)

    # --- Upkeep ------------------------------------------------------------------------------

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        """As Storage.trim."""
        now = self._wall_unix_ms()
        offset = 0
        while offset >= 0:
            freed, offset = await self._act(
                "trim",
                partition.queue_id,
                partition.number,
                now,
                now - int(retention_s * 1000),
                int(keep_all),
                offset,
                TRIM_ENTRIES,
                limits.TRIM_BYTES_PER_COMMIT_MAX,
                EXAMINED_MS,
                level="local",
            )
            if freed:
                return int(freed)
        return 0

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        """As Looking.trimmable."""
        now = self._wall_unix_ms()
        count, offset = await self._look(
            "trimmable", partition.queue_id, partition.number, now,
            now - int(retention_s * 1000), int(keep_all), after, TRIM_ENTRIES,
        )  # fmt: skip
        return int(count), None if offset < 0 else int(offset)

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        """As Storage.seal."""
        named = json.dumps([[*successor] for successor in successors])
        sealed: int = await self._act("seal", partition.queue_id, partition.number, named)
        await self._act("certify", partition.queue_id, partition.number, sealed, level="local")
        return sealed

    async def state(self) -> StorageState:
        """As Storage.state."""
        if self._closed:
            return StorageState(False, False, ("the storage is closed",))
        standing = self._shard.standing()
        if not self._shard.has_room():
            why = "free memory is below the reserve: publishing stops, consuming goes on"
            return StorageState(
                True, False, (why, *standing.waits_for), standing.facts, standing.took
            )
        try:
            await self._look("partitions", "")
        except Refused as refused:
            return StorageState(False, False, (refused.detail,), standing.facts, standing.took)
        return StorageState(True, True, standing.waits_for, standing.facts, standing.took)

    async def close(self) -> None:
        """As Storage.close."""
        if self._closed:
            return
        self._closed = True
        await self._tails.close()
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._appending.close()
        self._reading.close()
        await self._shard.close()
