"""Messages of keys in the log, from where a group stands on; and how many of a key wait in all.

One bounded look (P9): what it does not reach is said not to be known. Explanations, lists of keys
that wait and lists of parked keys count alike, because they count here.
"""

from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass, field

from gateway.delivery.slot import Slot
from gateway.operator.heads import Budget
from push import limits
from push.dead import DeadRanges
from push.delivery.explaining import waiting_of
from push.delivery.lines import loose
from push.places import GroupPartition, Partition
from push.ports import Cursor, Storage
from push.ranges import RangeSet


@dataclass(slots=True)
class Found:
    """The messages of a key in a stretch of the log."""

    offsets: list[int] = field(default_factory=list)
    is_whole: bool = True
    """Whether the stretch reached the end."""

    def behind(self, first: int) -> list[int]:
        """Those from `first` on."""
        return self.offsets[bisect_left(self.offsets, first) :]


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages of a key wait, or at least do."""

    messages: int
    is_exact: bool


async def find(
    storage: Storage, partition: Partition, start: int, keys: Set[int], budget: Budget
) -> dict[int, Found]:
    """The messages of each of these keys (of hashes and pseudo keys) from `start` on, as far as
    the budget reaches."""
    found = {key: Found() for key in keys}
    single = {offset: key for key in keys if start <= (offset := loose(key)) <= limits.OFFSET_MAX}
    at = start
    while keys:
        if budget.left <= 0:
            return _cut(found)
        bound = min(budget.left, limits.READ_BYTES_MAX)
        read = await storage.read(partition, at, bound)
        for record in read.records:
            budget.left -= record.memory_bytes
            hashes = record.header.key_hashes
            begin = max(at - record.first, 0)
            for key in keys & set(hashes):
                place = begin
                for _ in range(hashes[begin:].count(key)):
                    place = hashes.index(key, place)
                    found[key].offsets.append(record.first + place)
                    place += 1
            for offset in [one for one in single if at <= one <= record.last]:
                if not hashes[offset - record.first]:
                    found[single[offset]].offsets.append(offset)
            at = record.last + 1
        if not read.records and read.damage:
            return _cut(found)
        if not read.records or at >= read.certified:
            break
    return found


def _cut(found: dict[int, Found]) -> dict[int, Found]:
    for one in found.values():
        one.is_whole = False
    return found


def count_owned(slot: Slot, key: int, found: Found) -> Count:
    """What waits of a key whose partition has an owner here, in its memory and in the log."""
    return Count(waiting_of(slot.delivery, key, found.offsets), found.is_whole)


def count_at_rest(cursor: Cursor, key: int, found: Found) -> Count:
    """The same where nobody owns it, as it is durable."""
    passed, dead = RangeSet(cursor.passed), DeadRanges(cursor.dead)
    behind = found.behind(cursor.floor)
    log = [offset for offset in behind if offset not in passed and offset not in dead]
    return Count(len(log) + dict(cursor.lines).get(key, 0), found.is_whole)


async def count_waiting(
    storage: Storage, place: GroupPartition, slot: Slot | None, keys: Set[int], budget: Budget
) -> dict[int, Count]:
    """For each of these keys. `slot`: the owner of the partition here."""
    if slot is not None:
        found = await find(storage, place.partition, slot.delivery.frontier, keys, budget)
        if not slot.ended:
            return {key: count_owned(slot, key, found[key]) for key in keys}
    cursor = await storage.cursor(place)
    if cursor is None:  # the group, or its queue, is being deleted
        return {key: Count(0, False) for key in keys}
    found = await find(storage, place.partition, cursor.floor, keys, budget)
    return {key: count_at_rest(cursor, key, found[key]) for key in keys}
