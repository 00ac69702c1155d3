"""Count the messages that an act removes. The act is refused unless its caller agreed to that many.

A message is removed when every group has settled it and its retention has passed. So a group that
skips messages, or is deleted, removes those that it alone had not settled. A queue without
retention keeps everything for its first group; if that group starts later, the messages before its
start are removed. Messages that other groups or the retention keep are not counted.

A message stays while a group has not settled it. A message in a side line, or on its way to the
dead letters, is passed and not settled.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from gateway.catalog.reconcile import starts_of
from metadata.catalog import Group, GroupStart, Principal, Queue
from metadata.port import Metadata
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.ranges import RangeSet
from push.storage_port import Cursor, PartitionState, Start, Storage
from runtime.loop.fairness import TimeSlices


def settled_of(cursor: Cursor, aside: Iterable[int]) -> RangeSet:
    """Return the offsets that a group has settled. `aside` are the offsets in its side lines."""
    settled = RangeSet(cursor.passed)
    if cursor.floor:
        settled.add(0, cursor.floor - 1)
    for offset in aside:
        settled.remove(offset, offset)
    for dead in cursor.dead:
        settled.remove(dead.first, dead.last)
    return settled


def kept_alone(own: RangeSet, others: Sequence[RangeSet], first: int, end: int) -> int:
    """Count the offsets first..end-1 that are in the settled offsets of all `others`, and not in
    `own`, those of one group."""
    alone = RangeSet(own.gaps(first, end - 1))
    for other in others:
        for low, high in other.gaps(first, end - 1):
            alone.remove(low, high)
    return alone.size()


SIDE_OFFSETS: Final = 10_000
"""Number of offsets of a side line that are read at a time."""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of messages that an act removes."""

    deleted: int = 0
    """Messages that nobody gets any more."""
    dead_lettered: int = 0
    """Messages that move to the dead letters."""

    @property
    def messages(self) -> int:
        """Number of deleted and dead-lettered messages together."""
        return self.deleted + self.dead_lettered

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(
            deleted=self.deleted + other.deleted,
            dead_lettered=self.dead_lettered + other.dead_lettered,
        )


Begin = Callable[[Removed], Awaitable[None]]
"""Callback that is awaited before messages are removed, with what is to be removed. If it raises,
nothing is removed."""


def check_agreed(what: str, removed: Removed, deletes_max: int, advice: str = "") -> None:
    """Raise Refused(would_delete) if an act removes more than `deletes_max` messages. `what` names
    the act, `advice` says what else the caller can do."""
    if removed.messages > deletes_max:
        parts = [
            f"delete {removed.deleted:,} messages" if removed.deleted else "",
            f"move {removed.dead_lettered:,} messages to the dead letters"
            if removed.dead_lettered
            else "",
        ]
        raise Refused(
            "would_delete",
            f"{what} would {' and '.join(filter(None, parts))}: to agree, send "
            f"deletes_max={removed.messages}{advice}",
            more={"deleted": removed.deleted, "dead_lettered": removed.dead_lettered},
        )


class RemovalCounter:
    """Counts the messages that an act on a group removes."""

    def __init__(self, storage: Storage, metadata: Metadata) -> None:
        self._storage = storage
        self._metadata = metadata

    async def count_seek(
        self, principal: Principal, queue: Queue, group: Group, starts: Sequence[Start]
    ) -> tuple[Removed, Sequence[Start]]:
        """Count what a seek of the group removes, and return its starts, with an offset in place of
        `latest`. So messages published from now on are not skipped."""
        states = {one.partition.number: one for one in await self._states(queue)}
        places = [
            states[number].certified if start == "latest" and number in states else start
            for number, start in zip(queue.members, starts, strict=True)
        ]
        if all(place == "earliest" for place in places):
            return Removed(), places
        ends = {
            number: place
            for number, place in zip(queue.members, places, strict=True)
            if isinstance(place, int)
        }
        others = self._other_groups(principal, queue, group)
        return Removed(deleted=await self._count_alone(queue, group, others, ends)), places

    async def count_group(
        self, principal: Principal, queue: Queue, group: Group, *, any_age: bool = False
    ) -> Removed:
        """Count what the deletion of a group removes. If it is the last group of a queue without
        retention, everything stays for the next group. `any_age`: also count what the retention
        still keeps."""
        others = self._other_groups(principal, queue, group)
        if not others and not queue.settings.retention_s:
            return Removed()
        return Removed(deleted=await self._count_alone(queue, group, others, any_age=any_age))

    async def count_beginning(
        self, principal: Principal, queue: Queue, start: GroupStart
    ) -> Removed:
        """Count what a new group with this start removes."""
        groups = self._metadata.list_groups(principal, queue)
        if start == "earliest" or groups or queue.settings.retention_s:
            return Removed()
        states = await self._states(queue)
        starts = await starts_of(self._storage, queue, start)
        places = dict(zip(queue.members, starts, strict=True))
        return Removed(deleted=sum(_before(one, places[one.partition.number]) for one in states))

    def _other_groups(self, principal: Principal, queue: Queue, group: Group) -> list[Group]:
        groups = self._metadata.list_groups(principal, queue)
        return [one for one in groups if one.group_id != group.group_id]

    async def _states(self, queue: Queue) -> list[PartitionState]:
        states = await self._storage.partitions(queue.queue_id)
        return [one for one in states if one.partition.number in queue.members]

    async def _count_alone(
        self,
        queue: Queue,
        group: Group,
        others: Sequence[Group],
        ends: dict[int, int] | None = None,
        *,
        any_age: bool = False,
    ) -> int:
        """Count the messages that the group alone has not settled, and that the retention does not
        keep. `ends`: count only messages below these offsets, by partition."""
        messages, slices = 0, TimeSlices()
        for state in await self._states(queue):
            await slices.yield_if_over()
            partition = state.partition
            end = state.certified
            if ends is not None:
                end = min(end, ends.get(partition.number, 0))
            own = await self._settled_offsets(group, partition)
            if own is None or end <= state.start or own.covers(state.start, end - 1):
                continue
            if queue.settings.retention_s and not any_age:
                due = int((time.time() - queue.settings.retention_s) * 1000)
                end = min(end, await self._storage.offset_at(partition, max(0, due + 1)))
            settled = [await self._settled_offsets(one, partition) for one in others]
            known = [one for one in settled if one is not None]
            messages += kept_alone(own, known, state.start, end)
        return messages

    async def _settled_offsets(self, group: Group, partition: Partition) -> RangeSet | None:
        """Return the offsets that a group has settled; None if the storage does not know it."""
        place = CursorPlace(group.group_id, partition)
        cursor = await self._storage.cursor(place)
        if cursor is None:
            return None
        return settled_of(cursor, await self._read_aside(place, (key for key, _ in cursor.lines)))

    async def _read_aside(self, place: CursorPlace, keys: Iterable[int]) -> list[int]:
        aside: list[int] = []
        for key in keys:
            after = -1
            while found := await self._storage.read_side(place, key, after, SIDE_OFFSETS):
                aside += found
                after = found[-1]
        return aside


def _before(state: PartitionState, start: Start) -> int:
    """Count the messages of a partition before a start."""
    if not isinstance(start, int):
        return state.messages if start == "latest" else 0
    return max(0, min(state.messages, start - state.start))
