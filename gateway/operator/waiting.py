"""Keys that wait and deliveries in flight, as they are listed to operators.

WaitingKeys     the lists. If a partition has an owner here, its memory is listed; if not, the
                durable state. A page ends when it is full, or when reading the texts of the keys
                would read too much (P9)
find_in_log     the messages of some keys in the log, from the position of a group on: it
                reads up to a bound, and says whether it came to the end (P9)
count_waiting   how many messages of a key wait in all. Explanations, lists of waiting keys and
                lists of parked keys count alike, because they count here
MessageLookup   messages by their offsets, for showing the first message of a key
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

import msgspec

from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.encryption.sealer import NackReasons
from gateway.models import HeldKey, HeldKeys, HeldPlace, Lease, LeaseList, Place
from metadata.catalog import Group, Queue
from push import limits
from push.delivery import InFlight, Push, lease, loose, offsets_of, waiting_in, waiting_of, waits_of
from push.message import Message
from push.places import CursorPlace, Parked, Partition
from push.ranges import DeadRanges, RangeSet
from push.record import Record
from push.ring import key_hash
from push.storage_port import Cursor, Retry, Storage

_MESSAGE: Final = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """Properties of one message, from its record and its body."""

    id: str | None
    """Id that the client gave, or None."""
    key: str | None
    published_unix_ms: int
    expires_unix_ms: int


@dataclass(slots=True)
class ByteBudget:
    """Bytes that one answer may still read."""

    left: int


class MessageLookup:
    """Messages by their offsets."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def read(
        self, partition: Partition, offsets: Iterable[int], budget: ByteBudget
    ) -> dict[int, MessageFacts | None]:
        """Return the facts of each offset; None for one that is no longer retained. The highest
        offsets are missing in the answer if the budget did not reach them."""
        left = sorted(set(offsets))
        found: dict[int, MessageFacts | None] = {}
        while left and budget.left > 0:
            bound = min(budget.left, limits.READ_BYTES_MAX)
            records = await self._storage.read_each(partition, left, bound)
            for offset, record in zip(left, records, strict=False):
                found[offset] = _facts(record, offset) if record is not None else None
            held = {id(record): record.memory_bytes for record in records if record is not None}
            budget.left -= max(sum(held.values()), 1)
            left = left[len(records) :]
        return found


def _facts(record: Record, offset: int) -> MessageFacts:
    message = _MESSAGE.decode(record.slice(offset, offset))
    return MessageFacts(
        message.id, message.key, record.header.published_unix_ms, record.expires_unix_ms(offset)
    )


@dataclass(slots=True)
class KeyOffsets:
    """The messages of a key in a stretch of the log."""

    offsets: list[int] = field(default_factory=list)
    is_whole: bool = True
    """Whether the stretch reached the certified end of the log."""

    def behind(self, first: int) -> list[int]:
        """Return the offsets from `first` on."""
        return self.offsets[bisect_left(self.offsets, first) :]


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """Number of messages of a key that wait, or a lower bound of it."""

    messages: int
    is_exact: bool


async def find_in_log(
    storage: Storage, partition: Partition, start: int, keys: Set[int], budget: ByteBudget
) -> dict[int, KeyOffsets]:
    """Return the messages of each key from `start` on, as far as the budget reaches. `keys` are
    hashes of keys, and pseudo keys (`loose`) of single messages without a key."""
    found = {key: KeyOffsets() for key in keys}
    single = {offset: key for key in keys if start <= (offset := loose(key)) <= limits.OFFSET_MAX}
    at = start
    while keys:
        if budget.left <= 0:
            return _mark_partial(found)
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
            return _mark_partial(found)
        if not read.records or at >= read.certified:
            break
    return found


def _mark_partial(found: dict[int, KeyOffsets]) -> dict[int, KeyOffsets]:
    for one in found.values():
        one.is_whole = False
    return found


def count_owned(owned: OwnedPartition, key: int, found: KeyOffsets) -> WaitingCount:
    """Count the waiting messages of a key whose partition has an owner here, in its memory and in
    the log."""
    return WaitingCount(waiting_of(owned.delivery, key, found.offsets), found.is_whole)


def count_stored(cursor: Cursor, key: int, found: KeyOffsets) -> WaitingCount:
    """Count the waiting messages of a key whose partition nobody here owns, by the durable
    state."""
    passed, dead = RangeSet(cursor.passed), DeadRanges(cursor.dead)
    behind = found.behind(cursor.floor)
    log = [offset for offset in behind if offset not in passed and offset not in dead]
    return WaitingCount(len(log) + dict(cursor.lines).get(key, 0), found.is_whole)


async def count_waiting(
    storage: Storage,
    place: CursorPlace,
    owned: OwnedPartition | None,
    keys: Set[int],
    budget: ByteBudget,
) -> dict[int, WaitingCount]:
    """Count the waiting messages of each of these keys. `owned`: the partition, if it has an owner
    here."""
    if owned is not None:
        found = await find_in_log(storage, place.partition, owned.delivery.frontier, keys, budget)
        if not owned.ended:
            return {key: count_owned(owned, key, found[key]) for key in keys}
    cursor = await storage.cursor(place)
    if cursor is None:  # the group, or its queue, is being deleted
        return {key: WaitingCount(0, False) for key in keys}
    found = await find_in_log(storage, place.partition, cursor.floor, keys, budget)
    return {key: count_stored(cursor, key, found[key]) for key in keys}


@dataclass(slots=True)
class _ReadBudgets:
    """Bytes that one answer may still read: of the first messages of keys, and of the log."""

    heads: ByteBudget = field(default_factory=lambda: ByteBudget(limits.LOOK_BYTES_MAX))
    log: ByteBudget = field(default_factory=lambda: ByteBudget(limits.COUNT_BYTES_MAX))


class WaitingKeys:
    """Lists of waiting keys and of leases."""

    def __init__(self, storage: Storage, groups: Groups, reasons: NackReasons) -> None:
        self._storage = storage
        self._reasons = reasons
        self._groups = groups
        self._heads = MessageLookup(storage)

    def _owned(self, group: Group, number: int) -> OwnedPartition | None:
        runtime = self._groups.runtimes.get(group.group_id)
        owned = runtime.owned_partitions.get(number) if runtime is not None else None
        return owned if owned is not None and not owned.ended else None

    # --- Keys that wait ------------------------------------------------------------------------

    async def list_keys(
        self, queue: Queue, group: Group, limit: int, after: HeldPlace | None
    ) -> HeldKeys:
        """List up to `limit` keys with waiting messages, by partition and hash."""
        begin = after or HeldPlace(-1, -1)
        shown: list[HeldKey] = []
        left_out, looks = 0, _ReadBudgets()
        for number in sorted(queue.members):
            if number < begin.partition:
                continue
            low = begin.key if number == begin.partition else -1
            place = CursorPlace(group.group_id, Partition(queue.queue_id, number))
            owned, room = self._owned(group, number), limit - len(shown) + 1
            if owned is not None:
                keys = await self._owned_keys(owned, place, low, room, looks)
            else:
                keys, unknown = await self._stored_keys(queue, place, low, room, looks)
                left_out += unknown
            heads = await self._heads.read(place.partition, _offsets(keys), looks.heads)
            nacks = await self._nacks(place, keys)
            for key in keys:
                if len(shown) == limit or (shown and key.offset not in (None, *heads)):
                    last = HeldPlace(shown[-1].partition, int(shown[-1].key_hash, 16))
                    return HeldKeys(keys=shown, left_out=left_out, next=str(last))
                if key.offset is not None and key.offset not in heads:  # others had it all
                    heads |= await self._heads.read(place.partition, [key.offset], ByteBudget(1))
                facts = heads.get(key.offset) if key.offset is not None else None
                text = facts.key if facts is not None else None
                nack = await self._reasons.open(place.partition, nacks.get(key.offset))
                shown.append(msgspec.structs.replace(key, key=text, nack=nack))
        return HeldKeys(keys=shown, left_out=left_out)

    async def _nacks(
        self, place: CursorPlace, keys: Sequence[HeldKey]
    ) -> dict[int | None, bytes | None]:
        """Return the stored reasons of the messages that were tried, by offset."""
        if not any(key.attempts for key in keys):
            return {}
        cursor = await self._storage.cursor(place)
        return {one.offset: one.nack for one in cursor.retries} if cursor is not None else {}

    async def _owned_keys(
        self, owned: OwnedPartition, place: CursorPlace, low: int, count: int, looks: _ReadBudgets
    ) -> list[HeldKey]:
        """Return the keys with a hash above `low` that wait at the owner in this gateway."""
        lines = owned.delivery.lines
        keys = nsmallest(
            count,
            (k for k, line in lines.items() if k > low and (line.parked or waiting_in(line))),
        )
        sides: dict[int, int] = {}
        marks: dict[int, Parked] = {}
        for key in keys:
            line = lines.get(key)
            if line is not None and line.aside and not line.waiting:
                first = await self._storage.read_side(place, key, line.loaded, 1)
                sides |= {key: first[0]} if first else {}
        if any(line.parked for key in keys if (line := lines.get(key)) is not None):
            cursor = await self._storage.cursor(place)
            marks = {mark.key_hash: mark for mark in cursor.parked} if cursor is not None else {}
        in_log = await find_in_log(
            self._storage, place.partition, owned.delivery.frontier, {*keys}, looks.log
        )
        # From here on nothing is awaited, so all is of one moment.
        flights = _in_flight(owned, set(keys))
        shown: list[HeldKey] = []
        for key in keys:
            one = _owned_key(owned, key, sides.get(key), marks.get(key), flights.get(key, []))
            if one is not None:
                shown.append(_with_count(one, count_owned(owned, key, in_log[key])))
        return shown

    async def _stored_keys(
        self, queue: Queue, place: CursorPlace, low: int, count: int, looks: _ReadBudgets
    ) -> tuple[list[HeldKey], int]:
        """Return keys that wait in a partition that this gateway does not own, by the stored
        cursor.

        They are keys that are parked, have a side line, or have a message in the log with at least
        one attempt. The `count` lowest whose hash is above `low` are returned, in the order of
        their hashes. The number is that of messages with an attempt that are left out because
        finding their keys would read too much.
        """
        cursor = await self._storage.cursor(place)
        if cursor is None:
            return [], 0
        passed = RangeSet(cursor.passed)
        tried = [r for r in cursor.retries if r.attempts]
        in_log = [r for r in tried if r.offset >= cursor.floor and r.offset not in passed]
        looked = in_log[: limits.KEYS_PER_LOOK_MAX]
        facts = await self._heads.read(place.partition, [r.offset for r in looked], looks.heads)
        by_key: dict[int, list[Retry]] = {}
        for retry in looked:
            fact = facts.get(retry.offset)
            if fact is not None:
                key = key_hash(fact.key, queue.hash_key) if fact.key else loose(retry.offset)
                by_key.setdefault(key, []).append(retry)
        lines, marks = dict(cursor.lines), {mark.key_hash: mark for mark in cursor.parked}
        retries, number = {r.offset: r for r in tried}, place.partition.number
        found: list[HeldKey] = []
        keys = nsmallest(count, (key for key in {*by_key, *lines, *marks} if key > low))
        logged = await find_in_log(self._storage, place.partition, cursor.floor, {*keys}, looks.log)
        for key in keys:
            aside, own = lines.get(key, 0), by_key.get(key, [])
            side = await self._storage.read_side(place, key, -1, 1) if aside else ()
            first = min([*side, *(retry.offset for retry in own)], default=None)
            head = retries.get(first) if first is not None else None
            shown = _stored_key(number, key, head, marks.get(key))
            counted = count_stored(cursor, key, logged[key])
            counted = WaitingCount(max(counted.messages, aside + len(own)), counted.is_exact)
            found.append(_with_count(msgspec.structs.replace(shown, offset=first), counted))
        return found, len(in_log) - len(facts)

    # --- Leases --------------------------------------------------------------------------------

    async def list_leases(
        self, queue: Queue, group: Group, limit: int, after: Place | None
    ) -> LeaseList:
        """List up to `limit` deliveries in flight of owners at this gateway, from the place `after`
        on, by partition and offset."""
        begin = after or Place(0, 0)
        shown: list[Lease] = []
        budget = ByteBudget(limits.LOOK_BYTES_MAX)
        for number in sorted(queue.members):
            owned = self._owned(group, number) if number >= begin.partition else None
            if owned is None:
                continue
            low = begin.offset if number == begin.partition else 0
            found = _leases(owned, low, limit - len(shown) + 1)
            offsets = [one.offset for one in found]
            heads = await self._heads.read(owned.partition, offsets, budget)
            for one in found:
                if len(shown) == limit or (shown and one.offset not in heads):
                    return LeaseList(leases=shown, next=str(Place(number, one.offset)))
                facts = heads.get(one.offset)
                text = facts.key if facts is not None else None
                shown.append(msgspec.structs.replace(one, key=text))
        return LeaseList(leases=shown)


def _with_count(key: HeldKey, count: WaitingCount) -> HeldKey:
    return msgspec.structs.replace(key, messages=count.messages, is_exact=count.is_exact)


def _offsets(keys: Sequence[HeldKey]) -> list[int]:
    return [key.offset for key in keys if key.offset is not None]


def _open_offsets(owned: OwnedPartition) -> Iterator[tuple[int, Push]]:
    delivery = owned.delivery
    for push in delivery.pushes.values():
        for offset in offsets_of(push.open, push.first):
            yield offset, push


def in_flight(owned: OwnedPartition) -> dict[int, int]:
    """Return the attempt of each message in flight, by offset."""
    return {offset: push.attempt for offset, push in _open_offsets(owned)}


def _leases(owned: OwnedPartition, low: int, count: int) -> list[Lease]:
    consumer = getattr(owned.owner, "name", "")
    first = nsmallest(
        count,
        ((offset, push.number, push) for offset, push in _open_offsets(owned) if offset >= low),
    )
    shown = []
    for offset, _, push in first:
        one = lease(owned.delivery, push, offset)
        given, until = wall_unix_ms(one.given_at, one.until)
        shown.append(
            Lease(
                partition=owned.partition.number,
                offset=offset,
                epoch=owned.delivery.epoch,
                push=one.push,
                consumer=consumer,
                attempt=one.attempt,
                given_unix_ms=given,
                lease_until_unix_ms=until,
            )
        )
    return shown


def _in_flight(owned: OwnedPartition, keys: set[int]) -> dict[int, list[InFlight]]:
    """Return the deliveries in flight of these keys, by key."""
    found: dict[int, list[InFlight]] = {}
    for offset, push in _open_offsets(owned) if keys else ():
        key = push.hashes[offset - push.first] or loose(offset)
        if key in keys:
            found.setdefault(key, []).append(lease(owned.delivery, push, offset))
    return found


def _owned_key(
    owned: OwnedPartition,
    key: int,
    side_first: int | None,
    mark: Parked | None,
    flights: list[InFlight],
) -> HeldKey | None:
    """Describe a key of an owner here; None if nothing of it waits any more."""
    delivery, now = owned.delivery, asyncio.get_running_loop().time()
    waits = waits_of(delivery, key, now, int(time.time() * 1000), side_first)
    if not waits.messages and waits.reason != "parked":
        return None
    until = waits.until
    if waits.behind is not None:
        until = next((one.until for one in flights if one.offset == waits.behind), None)
    attempts = delivery.attempts_of(waits.first) if waits.first is not None else 0
    return HeldKey(
        partition=owned.partition.number,
        key_hash=f"{key:016x}",
        reason=waits.reason or "ready",
        messages=waits.messages,
        attempts=attempts,
        in_flight=len(flights),
        offset=waits.first,
        until_unix_ms=wall_unix_ms(until)[0] if until is not None else None,
        since_unix_ms=mark.since_unix_ms if mark is not None and waits.reason == "parked" else None,
        behind_offset=waits.behind,
    )


def _stored_key(number: int, key: int, retry: Retry | None, mark: Parked | None) -> HeldKey:
    """Describe a key that the storage knows. `retry`: that of its first message."""
    waits = retry is not None and retry.due_unix_ms > time.time() * 1000 and mark is None
    return HeldKey(
        partition=number,
        key_hash=f"{key:016x}",
        reason="parked" if mark is not None else "backoff" if waits else "ready",
        messages=0,
        attempts=retry.attempts if retry is not None else 0,
        in_flight=0,
        until_unix_ms=retry.due_unix_ms if retry is not None and waits else None,
        since_unix_ms=mark.since_unix_ms if mark is not None else None,
    )


def wall_unix_ms(*moments: float) -> list[int]:
    """Return the unix milliseconds of each of these moments of the loop's clock, as far apart as
    the moments."""
    loop = asyncio.get_running_loop()
    # A pause between the two readings makes the difference smaller, so the largest of three counts.
    ahead_s = max(time.time() - loop.time() for _ in range(3))
    return [round((at + ahead_s) * 1000) for at in moments]
