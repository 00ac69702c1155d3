"""Peek at messages without taking them (P9).

A look reads what is certified and retained (R10), partition by partition, up to a bound of bytes.
Then it says where to go on. With a group, it shows the state of each message for that group: the
durable state, and in addition what the owner at this gateway knows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.catalog.reconcile import UNSEEN
from gateway.delivery.groups import Groups
from gateway.models import Look, Peeked, PeekedMessage, Place
from metadata.catalog import Group, Queue
from push import limits
from push.delivery import Standings, State
from push.errors import Refused
from push.message import Message
from push.places import CursorPlace, Partition
from push.record import Record
from push.ring import Ring, key_hash
from push.storage_port import MessageStatus, PartitionState, Storage

_MESSAGE = msgspec.json.Decoder(Message)


class QueueWalk:
    """A bounded look through a queue. Afterwards `next` is the place to go on; None if the look saw
    all that was there when it began."""

    def __init__(
        self, storage: Storage, queue: Queue, look: Look, floors: Mapping[int, int] | None = None
    ) -> None:
        """`floors` are the offsets below which nothing is shown, by partition.

        Raises:
            Refused: invalid_request if there is no such partition, or if it is not the key's.
        """
        self.next: Place | None = None
        self._storage = storage
        self._queue = queue
        self._look = look
        self._floors = floors or {}
        self._hash = key_hash(look.key, queue.hash_key) if look.key is not None else None
        self._numbers = self._partitions()

    def _partitions(self) -> Sequence[int]:
        queue, wanted = self._queue, self._look.partition
        if wanted is not None and wanted not in queue.members:
            raise Refused("invalid_request", f"{queue.name} has no partition {wanted}")
        if self._hash is not None:
            number = Ring(queue.ring_epoch, queue.members).partition(self._hash)
            if wanted not in (None, number):
                raise Refused("invalid_request", f"the key's partition is {number}, not {wanted}")
            wanted = number
        if wanted is None and self._look.offset:
            raise Refused("invalid_request", "an offset needs its partition: add partition or key")
        numbers = sorted(queue.members) if wanted is None else [wanted]
        after = self._look.after
        return [number for number in numbers if after is None or number >= after.partition]

    async def messages(self) -> AsyncIterator[tuple[PartitionState, Record, int]]:
        """Yield (state of the partition, record, offset) of each message that the look covers. If
        it names a key, these are the messages whose keys have the same hash."""
        left = limits.LOOK_BYTES_MAX
        found = await self._storage.partitions(self._queue.queue_id)
        states = {state.partition.number: state for state in found}
        for number in self._numbers:
            state = states.get(number)
            if state is None:
                raise Refused("storage_unavailable", UNSEEN)
            at = self._begin(state)
            while at < state.certified:
                if left <= 0:
                    self.next = Place(number, at)
                    return
                bytes_max = min(left, limits.READ_BYTES_MAX)
                until = state.certified - 1
                read = await self._storage.read(state.partition, at, bytes_max, until=until)
                if not read.records:
                    break
                for record in read.records:
                    left -= record.memory_bytes
                    for offset in self._wanted(record, at):
                        yield state, record, offset
                    at = record.last + 1

    def stop_at(self, state: PartitionState, offset: int) -> None:
        """Have the next look go on with this message."""
        self.next = Place(state.partition.number, offset)

    def _begin(self, state: PartitionState) -> int:
        number, after = state.partition.number, self._look.after
        at = max(self._floors.get(number, 0), self._look.offset)
        return max(at, after.offset) if after and after.partition == number else at

    def _wanted(self, record: Record, at: int) -> Sequence[int]:
        offsets = range(max(at, record.first), record.last + 1)
        if self._hash is None:
            return offsets
        return [offset for offset in offsets if record.key_hash(offset) == self._hash]

    def decode(self, record: Record, offset: int) -> Message | None:
        """Return the message; None if it has another key of the same hash."""
        message = _MESSAGE.decode(record.slice(offset, offset))
        return message if self._look.key in (None, message.key) else None


def fields_of(queue: Queue, state: PartitionState, record: Record, offset: int) -> dict[str, Any]:
    """Return the fields that are not in the message: its place, its times, and an id made of its
    place."""
    return {
        "id": f"{queue.queue_id}-{state.generation}-{state.partition.number}-{offset}",
        "partition": state.partition.number,
        "offset": offset,
        "published_unix_ms": record.header.published_unix_ms,
        "expires_unix_ms": record.expires_unix_ms(offset),
    }


def content_of(message: Message) -> dict[str, Any]:
    """Return the fields that are in a message; without `id` if it has none."""
    content = {
        "key": message.key,
        "body": message.body if message.body_base64 is None else None,
        "body_base64": message.body_base64,
        "content_type": message.content_type,
        "headers": message.headers,
        "sent_unix_ms": message.sent_unix_ms,
        "deliver_at_unix_ms": message.deliver_at_unix_ms,
    }
    return content if message.id is None else {**content, "id": message.id}


class GroupView:
    """States of a queue's messages for one of its groups, read in the order of the log."""

    def __init__(self, storage: Storage, groups: Groups, group: Group) -> None:
        self._storage = storage
        self._group = group
        runtime = groups.runtimes.get(group.group_id)
        self._owned_partitions = dict(runtime.owned_partitions) if runtime is not None else {}
        self._owners: dict[int, Standings] = {}
        self._stored: tuple[Partition, int, list[MessageStatus]] | None = None

    async def floors(self, queue: Queue) -> dict[int, int]:
        """Return the offset from which on the group's messages are looked at, by partition: the
        floor of its cursor, or 0 if messages are in side lines."""
        cursors = await self._storage.cursors(queue.queue_id, self._group.group_id)
        # Messages in a side line are below the floor, and not settled. So are those that left it
        # for the dead letters and are not there yet.
        floors: dict[int, int] = {}
        for one in cursors:
            floor = one.floor if one.dead_first is None else min(one.floor, one.dead_first)
            partition = one.place.partition
            floors[partition.number] = 0 if one.aside else floor
        return floors

    async def _stored_status(self, partition: Partition, offset: int) -> MessageStatus:
        known = self._stored
        if known is None or known[0] != partition or offset >= known[1] + len(known[2]):
            # Many at a time, because records may have one message each.
            place = CursorPlace(self._group.group_id, partition)
            last = offset + limits.RECORD_MESSAGES_MAX - 1
            found = await self._storage.standings(place, offset, last)
            if not found:
                raise Refused("storage_unavailable", UNSEEN)
            known = self._stored = (partition, offset, found)
        return known[2][offset - known[1]]

    async def state(self, partition: Partition, record: Record, offset: int) -> tuple[State, int]:
        """Return (state, counted attempts) of a message for the group."""
        number = partition.number
        owned = self._owned_partitions.get(number)
        if owned is not None and number not in self._owners:
            # Before the durable state is read, so that what its owner writes meanwhile is in both.
            self._owners[number] = Standings(owned.delivery)
        stored = await self._stored_status(partition, offset)
        if owned is None:
            return stored.state, stored.attempts
        if owned.ended:  # its knowledge has been written, or does not count any more
            del self._owned_partitions[number]
            self._stored = None
            stored = await self._stored_status(partition, offset)
            return stored.state, stored.attempts
        return self._owners[number].of(offset, record.key_hash(offset), stored)


async def peek(
    storage: Storage, groups: Groups, queue: Queue, look: Look, group: Group | None
) -> Peeked:
    """Return up to `look.limit` messages; with a group those that it has not settled."""
    view = GroupView(storage, groups, group) if group is not None else None
    floors = await view.floors(queue) if view is not None else None
    walk = QueueWalk(storage, queue, look, floors)
    shown: list[PeekedMessage] = []
    size = 0
    async for state, record, offset in walk.messages():
        standing: dict[str, Any] = {}
        if view is not None:
            word, attempts = await view.state(state.partition, record, offset)
            if word == "settled":
                continue
            standing = {"state": word, "attempts": attempts}
        message = walk.decode(record, offset)
        if message is None:
            continue
        size += record.header.sizes[offset - record.first]
        if len(shown) == look.limit or (shown and size > limits.LOOK_ANSWER_BYTES_MAX):
            walk.stop_at(state, offset)
            break
        content = content_of(message)
        fields = fields_of(queue, state, record, offset)
        shown.append(PeekedMessage(**{**fields, **content, **standing}))
    return Peeked(messages=shown, next=str(walk.next) if walk.next else None)
