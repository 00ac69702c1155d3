"""The storage's figures of queues and groups, for operators.

`QueueStatsCache` remembers the storage's figures until they change. A console requests every queue
once a second. Most of a thousand queues have not changed, and cost no read of the storage. Every
append, settlement, trim, seek and purge through this gateway is notified (`on_change`), and what is
scheduled or cancelled, so that the next description reads anew. If several gateways work on the
storage, nobody notifies this one when others settle, trim or purge. So figures of a queue that is
not empty are then used for BELIEVED_S only. An empty queue, in which nothing is scheduled, can only
change by an append, and every gateway is notified of appends.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.models import ScheduledFigures
from metadata.catalog import Group, Queue
from push.due import DueState
from push.places import Partition
from push.storage_port import CursorState, PartitionState, Storage
from runtime.loop.fairness import TimeSlices

KEPT_MAX: Final = 200_000
"""Largest number of partitions and cursors remembered, some 300 bytes each."""
BELIEVED_S: Final = 2.0
"""Seconds for which figures that another gateway can change are used. [A console shows for hours a
lag that another gateway settled long ago.]"""


def age_s(oldest_unix_ms: int | None) -> float:
    """Return the age in seconds of a message published at that time, by this gateway's clock; 0 for
    None."""
    return 0.0 if oldest_unix_ms is None else max(0.0, time.time() - oldest_unix_ms / 1000)


@dataclass(slots=True)
class GroupStats:
    """A group's durable position. Messages acked a moment ago may still count as unsettled."""

    cursors: dict[int, CursorState]
    lags: dict[int, int]
    """Number of messages that it has not settled, by partition."""
    firsts: dict[int, int]
    """First offset that it has not settled, by partition. Partitions without one are left out."""
    oldest_unix_ms: int | None = None
    """Publish time of the oldest message that the group has not settled; None if it has settled
    all. If the first such message of a partition was lost to damage, that of the next retained
    one."""

    @property
    def lag(self) -> int:
        """Number of messages that it has not settled."""
        return sum(self.lags.values())

    @property
    def aside(self) -> int:
        """Number of messages in side lines."""
        return sum(cursor.aside for cursor in self.cursors.values())

    @property
    def parked(self) -> int:
        """Number of parked keys."""
        return sum(cursor.parked for cursor in self.cursors.values())


@dataclass(slots=True)
class QueueStats:
    """Figures of what a queue retains."""

    states: list[PartitionState]
    descriptions: list[dict[str, object]]
    """Fields of each partition, as the description of the queue shows them."""
    scheduled: ScheduledFigures
    """Messages that wait until they are due. The queue does not retain them yet."""
    groups: dict[str, GroupStats] = field(default_factory=dict)
    oldest_unix_ms: int | None = None
    """Publish time of the oldest retained message; None if the queue is empty."""
    read_at: float = 0.0
    """Time at which `states` was read, by the loop's clock."""

    @property
    def is_empty(self) -> bool:
        """Whether the queue retains nothing, nothing is scheduled, and none of `groups` has
        anything to settle."""
        has_messages = self.scheduled.messages or any(state.messages for state in self.states)
        return not has_messages and not any(group.lag for group in self.groups.values())

    @property
    def size(self) -> int:
        """Number of entries that it takes in memory."""
        return len(self.states) * (1 + len(self.groups))


class QueueStatsCache:
    """Figures of queues and groups in the storage, remembered until they change."""

    def __init__(self, storage: Storage, *, is_shared: bool) -> None:
        """`is_shared`: other gateways work on the storage, too."""
        self._storage = storage
        self._is_shared = is_shared
        self._known: OrderedDict[str, QueueStats] = OrderedDict()
        self._reading: dict[str, object] = {}
        """Latest read that is under way while nothing has changed since, by queue id."""
        self._size = 0

    def on_change(self, queue_id: str) -> None:
        """Forget the figures of a queue that has changed. Called for each record: it costs two
        look-ups."""
        known = self._known.pop(queue_id, None)
        if known is not None:
            self._size -= known.size
        if self._reading:
            self._reading.pop(queue_id, None)

    async def stats(self, queue: Queue, groups: Sequence[Group]) -> QueueStats:
        """Return the figures of a queue and of these of its groups."""
        known, now = self._known.get(queue.queue_id), asyncio.get_running_loop().time()
        if known is not None and self._is_old(known, now):
            known = None
        missing = [g for g in groups if known is None or g.group_id not in known.groups]
        if known is not None and not missing:
            return known
        look = self._reading[queue.queue_id] = object()
        try:
            found = await self._look(queue, known, missing)
        finally:
            is_fresh = self._reading.get(queue.queue_id) is look
            if is_fresh:
                del self._reading[queue.queue_id]
        if is_fresh and found.states:
            self._keep(queue.queue_id, found)
        return found

    def _is_old(self, known: QueueStats, now: float) -> bool:
        return self._is_shared and now - known.read_at > BELIEVED_S and not known.is_empty

    def _keep(self, queue_id: str, found: QueueStats) -> None:
        if found.size > KEPT_MAX or any(
            len(group.cursors) < len(found.states) for group in found.groups.values()
        ):
            return  # too large, or being made still
        self.on_change(queue_id)
        self._known[queue_id] = found
        self._size += found.size
        while self._size > KEPT_MAX:
            self.on_change(next(iter(self._known)))

    async def _look(
        self, queue: Queue, known: QueueStats | None, groups: Sequence[Group]
    ) -> QueueStats:
        """`groups` are those that are not `known`."""
        if known is None:
            # In this order, so that a message that is moved meanwhile is counted.
            scheduled = _scheduled(await self._storage.due.states(queue.queue_id))
            states = await self._storage.partitions(queue.queue_id)
            read_at = asyncio.get_running_loop().time()
            found = QueueStats(
                states, [_partition_fields(state) for state in states], scheduled, read_at=read_at
            )
        else:
            states = known.states
            groups_known = dict(known.groups)
            found = QueueStats(
                states, known.descriptions, known.scheduled, groups_known, read_at=known.read_at
            )
        places = [(state.partition, state.start) for state in states if state.messages]
        ends, slices = [("", len(places))], TimeSlices()
        for group in groups:
            await slices.yield_if_over()
            cursors = await self._storage.cursors(queue.queue_id, group.group_id)
            stats = found.groups[group.group_id] = _group_stats(states, cursors)
            places += [(Partition(queue.queue_id, n), at) for n, at in stats.firsts.items()]
            ends.append((group.group_id, len(places)))
        times = await self._storage.published(places) if places else []
        begin = 0
        for group_id, end in ends:
            found_at = [at for at in times[begin:end] if at is not None]
            begin, oldest = end, min(found_at, default=None)
            if group_id:
                found.groups[group_id].oldest_unix_ms = oldest
            else:
                found.oldest_unix_ms = oldest
        return found


def _group_stats(states: Sequence[PartitionState], cursors: Sequence[CursorState]) -> GroupStats:
    ends = {state.partition: state.certified for state in states}
    stats = GroupStats({}, {}, {})
    for cursor in cursors:
        partition = cursor.place.partition
        number, end = partition.number, ends.get(partition, cursor.floor)
        ahead = max(0, end - cursor.floor - cursor.settled_above)
        stats.cursors[number] = cursor
        stats.lags[number] = ahead + cursor.aside + cursor.dead_passed
        firsts = [cursor.floor] if ahead else []
        firsts += [one for one in (cursor.aside_first, cursor.dead_first) if one is not None]
        if firsts:
            stats.firsts[number] = min(firsts)
    return stats


def _scheduled(states: Sequence[DueState]) -> ScheduledFigures:
    times = [state.first_unix_ms for state in states if state.first_unix_ms is not None]
    return ScheduledFigures(
        messages=sum(state.messages for state in states),
        bytes=sum(state.bytes for state in states),
        next_unix_ms=min(times, default=None),
    )


def _partition_fields(state: PartitionState) -> dict[str, object]:
    return {
        "partition": state.partition.number,
        "start": state.start,
        "end": state.end,
        "certified": state.certified,
        "generation": state.generation,
        "messages": state.messages,
        "bytes": state.bytes,
    }
