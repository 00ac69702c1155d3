"""Reading partitions on Redis, and polling their ends.

Records are checked and opened, and damaged ones quarantined (R30).

Ends of partitions are polled slowly, in addition to the notices of them (R10), because two things
get lost. A wake-up is lost when a connection breaks. The second act of an append is lost when its
gateway dies between the WAIT that counted the copies and the act that certifies them. The poller
wakes up the readers and certifies, but only after a WAIT of its own, at the level of the records.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from push import limits
from push.errors import TocsinError
from push.places import Durability, Partition
from push.record import Record
from push.storage_port import PLAIN, Damage, PartitionState, Read, Sealer
from storage.redis.append import decode_damage, decode_row
from storage.redis.keys import queue_key
from storage.redis.port import Shard

T = TypeVar("T")
_OPENERS: Final = 2


class RedisReader:
    """Reads partitions of one shard."""

    def __init__(self, shard: Shard, sealer: Sealer) -> None:
        self._shard = shard
        self._sealer = sealer
        self._openers = ThreadPoolExecutor(_OPENERS, thread_name_prefix="unsealing")

    def close(self) -> None:
        """End the threads."""
        self._openers.shutdown()

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, until: int | None
    ) -> Read:
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
                await self._quarantine(damage)
            if not damaged or ends >= min(certified, end):
                break
            at = ends  # damage left room
        top = min(ends, end) if records or found else end
        known = {damage.first: damage for damage in [*found, *decode_damage(partition, bad)]}
        damages = [
            known[first]
            for first in sorted(known)
            if first < top and first + known[first].count > offset
        ]
        return Read(tuple(records), start, certified, tuple(damages))

    async def _open(self, partition: Partition, rows: Sequence[Any]) -> list[Record | Damage]:
        """Open records in their order."""

        def opened() -> list[Record | Damage]:
            return [decode_row(partition, raw).open(partition, self._sealer) for raw in rows]

        return await self.open_all(opened) if rows else []

    async def open_all(self, opened: Callable[[], list[T]]) -> list[T]:
        """Return what `opened` returns, which opens payloads; in a thread if keys may have to be
        waited for."""
        if self._sealer is PLAIN:
            return opened()
        return await asyncio.get_running_loop().run_in_executor(self._openers, opened)

    async def _quarantine(self, damage: Damage) -> None:
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
                await self._quarantine(one)
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
        found: int = await self._shard.look(
            "offset_at", [queue_key(partition.queue_id)], [partition.number, unix_ms]
        )
        return found

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        async def one(partition: Partition, offset: int) -> int | None:
            at = min(max(offset, 0), limits.OFFSET_MAX + 1)
            args = [partition.number, at]
            found: int = await self._shard.look("published", [queue_key(partition.queue_id)], args)
            return found if found >= 0 else None

        return list(await asyncio.gather(*(one(*place) for place in places)))

    async def partitions(self, queue_id: str) -> list[PartitionState]:
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


PERIOD_S: Final = 1.0
LOOKS: Final = 50
"""Number of queues whose ends are polled in one period, in turns, because polling an idle store
must cost next to nothing. With 500 queues each is polled every 10 s. Queues with ends that are not
certified are polled in each period, in addition."""
_LOG: Final = logging.getLogger("storage.redis_tails")


class TailPoller:
    """Poller of partitions' ends. `tell` is given (partition, certified end), again and again the
    same."""

    def __init__(
        self, shard: Shard, tell: Callable[[Partition, int], None], *, period_s: float = PERIOD_S
    ) -> None:
        self._shard = shard
        self._tell = tell
        self._period_s = period_s
        self._queues: OrderedDict[str, set[int]] = OrderedDict()
        """Queue → partitions; the one whose last look is longest ago comes first."""
        self._uncertified: dict[Partition, int] = {}
        """Partition → end that was not certified when the poller saw it. The append may still be
        about to certify it, so the poller does so only at its next look."""
        self._polls: dict[str, asyncio.Task[None]] = {}
        """Queue → task that polls it now. A queue whose primary is down holds up no other."""
        self._task = asyncio.create_task(self._run(), name="tails")

    def watch(self, partition: Partition) -> None:
        """Poll the end of a partition from now on, because this gateway waits for its messages."""
        numbers = self._queues.get(partition.queue_id)
        if numbers is None:
            numbers = self._queues[partition.queue_id] = set()
        numbers.add(partition.number)

    def forget(self, queue_id: str) -> None:
        """Forget a queue that was deleted."""
        self._queues.pop(queue_id, None)
        for partition in [one for one in self._uncertified if one.queue_id == queue_id]:
            del self._uncertified[partition]

    async def close(self) -> None:
        """Stop looking."""
        tasks = [self._task, *self._polls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            due = {partition.queue_id for partition in self._uncertified}
            for queue_id in list(self._queues)[:LOOKS]:
                due.add(queue_id)
                self._queues.move_to_end(queue_id)
            for queue_id in due - self._polls.keys():
                self._polls[queue_id] = asyncio.create_task(self._poll(queue_id), name="tails")

    async def _poll(self, queue_id: str) -> None:
        try:
            await self._poll_ends(queue_id)
        except TocsinError:  # the store is away, or too few copies are there; next time
            pass
        except Exception:  # whatever a server may say, the polling goes on
            _LOG.exception("the ends of queue %s could not be looked at", queue_id)
        finally:
            del self._polls[queue_id]

    # enforces: R10
    async def _poll_ends(self, queue_id: str) -> None:
        numbers = sorted(self._queues.get(queue_id, ()))
        if not numbers:
            return
        flat = await self._shard.look("tails", [queue_key(queue_id)], numbers)
        if not flat:
            self.forget(queue_id)
            return
        for number, told, end, level in zip(
            numbers, flat[::3], flat[1::3], flat[2::3], strict=True
        ):
            partition = Partition(queue_id, number)
            certified, seen = told, self._uncertified.get(partition)
            if seen is not None and certified < seen:
                certified = await self._certify(partition, seen, level.decode())
            if end > certified:
                self._uncertified[partition] = end
            else:
                self._uncertified.pop(partition, None)
            if certified:
                self._tell(partition, certified)

    # enforces: R10
    async def _certify(self, partition: Partition, end: int, level: Durability) -> int:
        """Return the certified end, once the copies of everything below `end` were counted. Raises
        TocsinError."""
        key, number = queue_key(partition.queue_id), partition.number
        _, counted = await self._shard.act("certify", [key], [number, 0], level=level)
        # An end seen at an earlier primary may be beyond what this one had then.
        known = min(end, counted)
        certified: int
        certified, _ = await self._shard.act("certify", [key], [number, known], level="local")
        return certified
