"""What the storage has of queues and groups, as it is described; remembered until it changes.

A console asks for every queue once a second, and most of a thousand queues have not changed: these
cost no look into the storage. Whatever is appended, settled, trimmed, sought or purged through this
gateway says so, and the next look is a fresh one. Where several gateways work on the storage, what
others settle, trim and purge is not told: then what is not empty is believed for BELIEVED_S. Of
what is empty nothing can change but by an append, which is told to all.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from metadata.catalog import Group, Queue
from push.places import Partition
from push.ports import CursorState, PartitionState, Storage
from runtime.loop.slices import Slices

KEPT_MAX: Final = 200_000
"""Partitions and cursors remembered, some 300 bytes each."""
BELIEVED_S: Final = 2.0
"""How old a figure may be of what another gateway has done. [A console shows a lag for hours that
was settled at another gateway at once.]"""


def age_s(oldest_unix_ms: int | None) -> float:
    """How old what was published then is by this gateway's clock; None: 0."""
    return 0.0 if oldest_unix_ms is None else max(0.0, time.time() - oldest_unix_ms / 1000)


@dataclass(slots=True)
class GroupStock:
    """Where a group stands, durably. What it acked a moment ago may still count as unsettled."""

    cursors: dict[int, CursorState]
    lags: dict[int, int]
    """By partition: messages it has not settled."""
    firsts: dict[int, int]
    """By partition: the first one that it has not settled; absent: there is none."""
    oldest_unix_ms: int | None = None
    """When the oldest of these was published; None: there is none. Where the first message of a
    partition was lost to damage, it is that of the next retained one."""

    @property
    def lag(self) -> int:
        """Messages it has not settled."""
        return sum(self.lags.values())

    @property
    def aside(self) -> int:
        """Messages in side lines."""
        return sum(cursor.aside for cursor in self.cursors.values())

    @property
    def parked(self) -> int:
        """Parked keys."""
        return sum(cursor.parked for cursor in self.cursors.values())


@dataclass(slots=True)
class QueueStock:
    """What a queue retains."""

    states: list[PartitionState]
    described: list[dict[str, object]]
    """Each partition, as it is shown."""
    groups: dict[str, GroupStock] = field(default_factory=dict)
    oldest_unix_ms: int | None = None
    """When the oldest retained message was published; None: the queue is empty."""
    looked_at: float = 0.0
    """By the loop's clock."""

    @property
    def is_empty(self) -> bool:
        """Nothing is retained, and nothing to be settled."""
        has_messages = any(state.messages for state in self.states)
        return not has_messages and not any(group.lag for group in self.groups.values())

    @property
    def size(self) -> int:
        """Entries that it takes in memory."""
        return len(self.states) * (1 + len(self.groups))


class Stock:
    """See the module."""

    def __init__(self, storage: Storage, *, is_shared: bool) -> None:
        """`is_shared`: other gateways work on the storage, too."""
        self._storage = storage
        self._is_shared = is_shared
        self._known: OrderedDict[str, QueueStock] = OrderedDict()
        self._reading: dict[str, object] = {}
        """Queue id → the latest look that is under way, while nothing has changed since."""
        self._size = 0

    def changed(self, queue_id: str) -> None:
        """Something of this queue is not as it was. Called per record: it costs two look-ups."""
        known = self._known.pop(queue_id, None)
        if known is not None:
            self._size -= known.size
        if self._reading:
            self._reading.pop(queue_id, None)

    async def of(self, queue: Queue, groups: Sequence[Group]) -> QueueStock:
        """What a queue has, and where these of its groups stand."""
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

    def _is_old(self, known: QueueStock, now: float) -> bool:
        return self._is_shared and now - known.looked_at > BELIEVED_S and not known.is_empty

    def _keep(self, queue_id: str, found: QueueStock) -> None:
        if found.size > KEPT_MAX or any(
            len(group.cursors) < len(found.states) for group in found.groups.values()
        ):
            return  # too large, or being made still
        self.changed(queue_id)
        self._known[queue_id] = found
        self._size += found.size
        while self._size > KEPT_MAX:
            self.changed(next(iter(self._known)))

    async def _look(
        self, queue: Queue, known: QueueStock | None, groups: Sequence[Group]
    ) -> QueueStock:
        """`groups` are those that are not `known`."""
        if known is None:
            states = await self._storage.partitions(queue.queue_id)
            looked_at = asyncio.get_running_loop().time()
            found = QueueStock(states, [_described(state) for state in states], looked_at=looked_at)
        else:
            states = known.states
            groups_known = dict(known.groups)
            found = QueueStock(states, known.described, groups_known, looked_at=known.looked_at)
        places = [(state.partition, state.start) for state in states if state.messages]
        ends, slices = [("", len(places))], Slices()
        for group in groups:
            await slices.turn()
            cursors = await self._storage.cursors(queue.queue_id, group.group_id)
            stock = found.groups[group.group_id] = _group_stock(states, cursors)
            places += [(Partition(queue.queue_id, n), at) for n, at in stock.firsts.items()]
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


def _group_stock(states: Sequence[PartitionState], cursors: Sequence[CursorState]) -> GroupStock:
    ends = {state.partition: state.certified for state in states}
    stock = GroupStock({}, {}, {})
    for cursor in cursors:
        number = cursor.place.partition.number
        end = ends.get(cursor.place.partition, cursor.floor)
        ahead = max(0, end - cursor.floor - cursor.settled_above)
        stock.cursors[number] = cursor
        stock.lags[number] = ahead + cursor.aside
        firsts = [cursor.floor] if ahead else []
        if cursor.aside_first is not None:
            firsts.append(cursor.aside_first)
        if firsts:
            stock.firsts[number] = min(firsts)
    return stock


def _described(state: PartitionState) -> dict[str, object]:
    return {
        "partition": state.partition.number,
        "start": state.start,
        "end": state.end,
        "certified": state.certified,
        "generation": state.generation,
        "messages": state.messages,
        "bytes": state.bytes,
    }
