"""What a consumer says it holds: sorted, and of an epoch before adopted (R22).

Whether it is still the consumer's own, the partition's slot knows, once there is one. What
`push.delivery.resuming.adopt` must know of the log is read here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.delivery.delivery_ports import DeliveryList
from gateway.delivery.slot import Slot
from gateway.publish.tail import Tail
from push.delivery.resuming import adopt, can_adopt, extent, keys_wanted, name_of, number_of
from push.places import Partition
from push.ranges import Range
from push.record import Record

Pushes = dict[int, list[Range]]
"""Push → ranges of offsets."""
Claims = dict[int, dict[int, Pushes]]
"""Partition → epoch → what is held."""


@dataclass(slots=True)
class Said:
    """What a client says it holds, sorted."""

    held: dict[int, Pushes] = field(default_factory=dict)
    """Partition → what its slot's ledger knows, by its numbers."""
    before: Claims = field(default_factory=dict)
    """What is perhaps to be adopted."""
    lost: DeliveryList = field(default_factory=list)
    """What is not the client's any more."""


def sort(
    deliveries: DeliveryList, slots: Mapping[int, Slot], is_coming: Callable[[int], bool]
) -> Said:
    """Sort a list by what the consumer's slots say. `is_coming`: whether a partition without a slot
    will have one of this consumer's."""
    said = Said()
    for partition, epochs in claims_of(deliveries).items():
        slot = slots.get(partition)
        for epoch, pushes in epochs.items():
            may_adopt = is_coming(partition) if slot is None else can_adopt(slot.delivery, epoch)
            if may_adopt:
                said.before.setdefault(partition, {})[epoch] = pushes
            elif slot is None or number_of(slot.delivery, epoch, 0) is None:
                said.lost += listed(partition, epoch, pushes)
            else:
                held = said.held.setdefault(partition, {})
                for push, ranges in pushes.items():
                    number = number_of(slot.delivery, epoch, push)
                    assert number is not None
                    held[number] = ranges
    return said


def claims_of(deliveries: DeliveryList) -> Claims:
    """A delivery list, by partition and epoch."""
    claims: Claims = {}
    for partition, epoch, push, *numbers in deliveries:
        ranges = zip(numbers[::2], numbers[1::2], strict=True)
        claims.setdefault(partition, {}).setdefault(epoch, {}).setdefault(push, []).extend(ranges)
    return claims


def offsets_in(claims: Claims) -> int:
    """How many offsets they name."""
    return sum(
        extent(ranges)
        for epochs in claims.values()
        for pushes in epochs.values()
        for ranges in pushes.values()
    )


def listed(partition: int, epoch: int, pushes: Mapping[int, Sequence[Range]]) -> DeliveryList:
    """As a delivery list."""
    return [
        [partition, epoch, push, *(number for pair in ranges for number in pair)]
        for push, ranges in pushes.items()
    ]


def named(slot: Slot, by_number: Mapping[int, Sequence[Range]]) -> DeliveryList:
    """As a delivery list, of what the slot's ledger knows by these numbers."""
    found: DeliveryList = []
    for number, ranges in by_number.items():
        epoch, push = name_of(slot.delivery, number)
        found += listed(slot.partition.number, epoch, {push: ranges})
    return found


async def adopt_in(
    tail: Tail,
    slot: Slot | None,
    number: int,
    epochs: Mapping[int, Pushes],
    room: Callable[[], int],
) -> DeliveryList:
    """Adopt what may be adopted in partition `number`, which has this slot (None: it is another
    consumer's). Returns what was not. `room`: asked when the log was read: so many messages at
    most; below 0, nobody wants to know any more.

    Raises:
        TocsinError: the log could not be read; nothing was adopted.
    """
    lost: DeliveryList = []
    for epoch, pushes in epochs.items():
        gone: Mapping[int, Sequence[Range]] = pushes
        if slot is not None and can_adopt(slot.delivery, epoch):
            wanted = keys_wanted(slot.delivery, pushes)
            keys = await read_keys(tail, slot.partition, wanted)
            left = room()
            if left >= 0 and not slot.ended and can_adopt(slot.delivery, epoch):
                now = asyncio.get_running_loop().time()
                gone = adopt(
                    slot.delivery, pushes, keys,
                    room=left, now=now, wall_unix_ms=int(time.time() * 1000),
                )  # fmt: skip
                slot.returned([], now)
        lost += listed(number, epoch, gone)
    return lost


async def read_keys(tail: Tail, partition: Partition, wanted: Sequence[Range]) -> dict[int, int]:
    """Offset → key hash of what the log has of these ranges, which ascend."""
    keys: dict[int, int] = {}
    records: deque[Record] = deque()
    for first, last in wanted:
        at = first
        while at <= last:
            while records and records[0].last < at:
                records.popleft()
            if not records:
                records.extend((await tail.read(partition, at)).records)
                if not records:
                    return keys
            record = records[0]
            for offset in range(max(at, record.first), min(last, record.last) + 1):
                keys[offset] = record.header.key_hashes[offset - record.first]
            at = record.last + 1
    return keys
