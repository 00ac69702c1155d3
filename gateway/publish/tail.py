"""The tail: this gateway's knowledge of each partition's log, without reading the storage.

It has the certified end of every partition that is followed, and the most recent records in memory,
shared by all followers. A follower that keeps up never reads the disk, and a record is parsed once.

Reads of the backlog go to the storage; equal ones that overlap are made once. A few at a time are
made for followers that are far behind, so that others never wait behind them. Each lane
(`push.storage_port.Lane`) has its own, so that none waits for a server that is down. A read without
an answer in time is refused.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

from gateway.counters import HitRate
from gateway.deliverylog.log import CommitTimes
from push import limits
from push.errors import Refused
from push.places import Partition
from push.record import Record
from push.storage_port import Read, Storage
from runtime.loop.end_of_turn import EndOfTurn, call_guarded

Follower = Callable[[Partition], None]


def _semaphores(count: int) -> defaultdict[int, asyncio.Semaphore]:
    return defaultdict(lambda: asyncio.Semaphore(count))


class Tail:
    """The tails of all partitions. Everything happens on one event loop."""

    def __init__(self, storage: Storage, *, bytes_max: int = limits.TAIL_CACHE_BYTES_MAX) -> None:
        self._storage = storage
        self._bytes_max = bytes_max
        self._bytes = 0
        self._records: dict[Partition, dict[int, tuple[Record, CommitTimes]]] = {}
        self._order: deque[tuple[Partition, int]] = deque()
        self._followers: dict[Partition, list[Follower]] = {}
        self._watchers: list[Follower] = []
        self._expected: dict[Partition, int] = {}
        """Partition to which a record of this gateway is on its way → the certified end that the
        storage notified meanwhile; 0: none."""
        self._reads: dict[tuple[Partition, int, int], asyncio.Task[Read]] = {}
        self._live = _semaphores(limits.READS_LIVE_MAX)
        self._behind = _semaphores(limits.READS_BEHIND_MAX)
        self._ends_read: dict[Partition, int] = {}
        """Certified ends that the last reads of followed partitions returned."""
        self.ends: dict[Partition, int] = {}
        """Certified ends of the partitions that were appended to here, or whose ends the storage
        notified."""
        self.hit_rate = HitRate()
        """Rate of look-ups in which the next record was in memory."""
        self.end_of_turn = EndOfTurn()
        """Work to run at the end of the current callback of the event loop, such as what an
        answered commit causes."""
        self.ahead_bytes = 0
        """Bytes that owned partitions have read ahead, or are reading, and have not given out
        yet."""

    def on_append(
        self, partition: Partition, record: Record, stages: CommitTimes, end: int
    ) -> None:
        """Notify followers of a record of this gateway that was certified at its place, and of the
        certified end `end`. The record is remembered if its partition has followers."""
        if partition in self._followers:
            self._records.setdefault(partition, {})[record.first] = (record, stages)
            self._order.append((partition, record.first))
            self._bytes += record.memory_bytes
            while self._bytes > self._bytes_max:
                self._evict()
        self.on_certified(partition, end)

    def expect(self, partition: Partition) -> None:
        """Note that a record of this gateway is on its way to a partition that has none on its way
        yet. What the storage notifies meanwhile waits for `on_answer`, because the answer brings
        the record, which followers would otherwise read."""
        self._expected[partition] = 0

    def on_answer(self, partition: Partition) -> None:
        """Pass on what was notified since `expect`, if the answer has not brought it."""
        end = self._expected.pop(partition)
        if end > self.ends.get(partition, 0):
            self.on_certified(partition, end)

    def on_notified(self, partition: Partition, end: int) -> None:
        """Note that the storage says that a partition is certified up to `end`."""
        before = self._expected.get(partition)
        if before is None:
            self.on_certified(partition, end)
        else:
            self._expected[partition] = max(before, end)

    def _evict(self) -> None:
        partition, first = self._order.popleft()
        records = self._records[partition]
        record, _ = records.pop(first)
        self._bytes -= record.memory_bytes
        if not records:
            del self._records[partition]

    def on_certified(self, partition: Partition, end: int) -> None:
        """Note that the partition is certified up to `end`, and notify its followers and all
        watchers. A bug in one of them is reported, and keeps nothing from the others."""
        self.ends[partition] = max(end, self.ends.get(partition, 0))
        for watcher in self._watchers:
            call_guarded(watcher, partition)
        for follower in self._followers.get(partition, ()):
            call_guarded(follower, partition)

    def watch(self, watcher: Follower) -> None:
        """Call `watcher` whenever the certified end of any partition may have moved."""
        self._watchers.append(watcher)

    def follow(self, partition: Partition, follower: Follower) -> None:
        """Call `follower` whenever the partition's certified end may have moved."""
        self._followers.setdefault(partition, []).append(follower)

    def unfollow(self, partition: Partition, follower: Follower) -> None:
        """Stop calling `follower`. After the last follower of a partition its records stay in
        memory until later ones need their room."""
        followers = self._followers.get(partition, [])
        followers.remove(follower)
        if not followers:
            del self._followers[partition]
            self._ends_read.pop(partition, None)

    def forget(self, partition: Partition) -> None:
        """Forget the certified ends of a partition that is deleted."""
        self.ends.pop(partition, None)
        self._ends_read.pop(partition, None)

    def get(self, partition: Partition, offset: int) -> tuple[Record, CommitTimes] | None:
        """Return the record that begins at `offset` and the times of its commit; None if it is not
        in memory."""
        records = self._records.get(partition)
        found = records.get(offset) if records else None
        if found is not None:
            self.hit_rate.hits += 1
        elif offset < self.ends.get(partition, 0):  # there is one, and it is not here
            self.hit_rate.misses += 1
        return found

    async def read(
        self, partition: Partition, offset: int, bytes_max: int = limits.READ_BYTES_MAX
    ) -> Read:
        """Read records from the storage, about `bytes_max` bytes. The first is the one that holds
        `offset`, or the next one if none does.

        Raises:
            Refused: storage_unavailable: there was no answer within READ_DEADLINE_S. The read goes
                on, and the next call waits for the same one.
        """
        key = (partition, offset, bytes_max)
        task = self._reads.get(key)
        if task is None:
            task = asyncio.create_task(self._read(*key), name=f"read {key}")
            self._reads[key] = task
            task.add_done_callback(lambda task: self._on_read_done(key, task))
        await asyncio.wait((task,), timeout=limits.READ_DEADLINE_S)
        if not task.done():
            raise Refused("storage_unavailable", "the storage does not answer a read", 1.0)
        return task.result()

    async def _read(self, partition: Partition, offset: int, bytes_max: int) -> Read:
        end = max(self.ends.get(partition, 0), self._ends_read.get(partition, 0))
        is_behind = end - offset >= limits.BEHIND_MESSAGES
        place = self._storage.lane(partition, "local").number
        async with (self._behind if is_behind else self._live)[place]:
            read = await self._storage.read(partition, offset, bytes_max)
        if partition in self._followers:
            self._ends_read[partition] = read.certified
        return read

    def _on_read_done(self, key: tuple[Partition, int, int], task: asyncio.Task[Read]) -> None:
        del self._reads[key]
        if not task.cancelled():
            task.exception()  # perhaps nobody waits for it any more
