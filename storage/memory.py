"""The storage in memory: the verified fake of `push.storage_port.Storage`.

It keeps every promise of the port but durability, in the plainest way, and passes the contract
suite that the real storages pass. Other tests that use it rely on the port's semantics alone.
It has no inbox of its own.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from push import limits
from push.due import TICKET, DueMessage, DuePlace, DueRead, DueState, fate_mark, place_in_order
from push.errors import Refused, Unknown
from push.places import CursorPlace, Durability, ParkedLine, Partition
from push.record import Header, Record, RecordDamaged
from push.storage_port import (
    ONE_LANE,
    PLAIN,
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    Damage,
    Lane,
    MessageStatus,
    NotStored,
    Outcome,
    Owned,
    PartitionState,
    Read,
    Sealer,
    Start,
    StorageState,
    Stored,
    WakeUp,
    Written,
)
from storage.rules import due as due_rules
from storage.rules.append import (
    Dropped,
    Effect,
    IdBuckets,
    PartitionLog,
    ProducerLine,
    QueueTotal,
    append_record,
    id_bucket,
    known_outcome,
    line_bucket,
    nowhere,
    open_header,
)
from storage.rules.cursor import GroupCursor, check_write, count_dead, start_floor


@dataclass(slots=True)
class StoredRecord:
    """A record as it is kept, with its stored header and sealed payload, and what trimming
    needs."""

    record: Record
    """The record; without its payload if the storage seals payloads."""
    published_unix_ms: int
    size: int
    header: bytes
    sealed: bytes
    skips: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of its offsets."""
        return self.record.last - self.record.first + 1


@dataclass(frozen=True, slots=True)
class StoredDue:
    """A message of a due store as it is kept: its payload is in the stored form. `size`: its size
    as JSON."""

    message: DueMessage
    size: int


@dataclass(slots=True)
class MemoryPartition:
    """A partition: its log, its producers, its cursors."""

    log: PartitionLog
    records: list[StoredRecord] = field(default_factory=list)
    lines: dict[bytes, ProducerLine] = field(default_factory=dict)
    buckets: IdBuckets = field(default_factory=IdBuckets)
    ids: dict[int, dict[bytes, int]] = field(default_factory=dict)
    """Bucket of time → digest → offset."""
    cursors: dict[str, GroupCursor] = field(default_factory=dict)
    aside: dict[str, dict[int, int]] = field(default_factory=dict)
    """Group → offset → key hash: the side lines."""
    damage: list[Damage] = field(default_factory=list)
    """Records that could not be opened, and were quarantined (R30)."""
    due: dict[int, StoredDue] = field(default_factory=dict)
    """Number → message in the due store."""
    sealer: Sealer = PLAIN

    def find_ids(self, wall_unix_ms: int, digests: list[bytes]) -> dict[bytes, int]:
        """Return digest → place of those of these ids that are remembered."""
        waiting = {one.message.digest: TICKET + number for number, one in self.due.items()}
        live = [waiting, *(self.ids[until] for until in self.buckets.live(wall_unix_ms))]
        return {digest: ids[digest] for ids in live for digest in digests if digest in ids}

    def remember(self, ids: Sequence[tuple[bytes, int]], until: int, wall_unix_ms: int) -> None:
        """Remember (digest, place) until this time, and forget what is due to be forgotten."""
        if ids:
            self.buckets.add(until)
            self.ids.setdefault(until, {}).update(ids)
        for passed in self.buckets.passed(wall_unix_ms):
            self.buckets.remove(passed)
            del self.ids[passed]

    def keep_due(self, message: DueMessage) -> None:
        """Put a message into the due store, or exchange the one of this number."""
        sealed = self.sealer.seal(self.log.partition, message.header(), message.payload, 1)
        self.due[message.number] = StoredDue(replace(message, payload=sealed), len(message.payload))

    def open_due(self, stored: Sequence[StoredDue]) -> tuple[list[DueMessage], tuple[int, ...]]:
        """Return these messages with their payloads, and the numbers of those that are damaged,
        which leave the due store."""
        opened: list[DueMessage] = []
        damaged: list[int] = []
        for one in stored:
            message = one.message
            try:
                plain = self.sealer.unseal(self.log.partition, message.header(), message.payload)
            except RecordDamaged:
                damaged.append(message.number)
                del self.due[message.number]
                self.log.leave_due(1, one.size)
            else:
                opened.append(replace(message, payload=plain))
        return opened, tuple(damaged)

    def in_order(self) -> list[StoredDue]:
        """Return all messages of the due store, in their order."""
        return sorted(self.due.values(), key=lambda one: place_in_order(one.message))

    def first_due(self) -> int | None:
        """Return when the first message is due; None: there is none."""
        return min((one.message.due_unix_ms for one in self.due.values()), default=None)

    def append(self, stored: StoredRecord) -> None:
        """Keep a record. If payloads are sealed, the plain payload is not kept."""
        if self.sealer is not PLAIN:
            stored.record.payload = b""
        self.records.append(stored)

    def read(self, offset: int, bytes_max: int, until: int | None) -> Read:
        """Answer `Storage.read`."""
        records: list[Record] = []
        size, end = 0, self.log.next_offset if until is None else until + 1
        for stored in list(self.records):
            if stored.record.last < offset:
                continue
            if stored.record.first >= end:
                break
            record = self._open(stored)
            if record is None:
                continue
            if records and size + record.memory_bytes > bytes_max:
                end = record.first
                break
            records.append(record)
            size += record.memory_bytes
        damage = sorted(
            (one for one in self.damage if one.first < end and one.first + one.count > offset),
            key=lambda one: one.first,
        )
        return Read(tuple(records), self.log.start, self.log.next_offset, tuple(damage))

    def _open(self, stored: StoredRecord) -> Record | None:
        """Return the record with its payload; None: it is damaged, and is quarantined now."""
        if self.sealer is PLAIN:
            return stored.record
        partition, first = self.log.partition, stored.record.first
        try:
            payload = self.sealer.unseal(partition, stored.header, stored.sealed)
            return Record.load(first, stored.header, payload, stored.skips)
        except RecordDamaged as damage:
            self.damage.append(Damage(partition, first, stored.count, str(damage)))
            self.records.remove(stored)
            self.log.remove(stored.count, stored.size)
            return None

    def replace(self, group_id: str, floor: int) -> None:
        """Put a fresh cursor at `floor`, under a raised epoch."""
        self.cursors[group_id] = self.cursors[group_id].fresh(floor)
        self.aside[group_id] = {}

    def drop_all(self) -> None:
        """Retain nothing below the end."""
        self.records = []
        self.damage = []
        self.due = {}
        self.log.drop_all()

    def _may_go(self, stored: StoredRecord, due_unix_ms: int) -> bool:
        first, last = stored.record.first, stored.record.last
        return stored.published_unix_ms <= due_unix_ms and all(
            (last < cursor.floor or cursor.passed.covers(max(first, cursor.floor), last))
            and not any(first <= offset <= last for offset in self.aside[group_id])
            and not any(low <= last and first <= high for low, high in cursor.dead.ranges())
            for group_id, cursor in self.cursors.items()
        )

    def trimmable(self, due_unix_ms: int, after: int) -> int:
        """Return how many messages `trim` would delete in records that begin at `after` or
        above."""
        records = (one for one in self.records if one.record.first >= after)
        return sum(one.count for one in records if self._may_go(one, due_unix_ms))

    def trim(self, due_unix_ms: int) -> int:
        """Delete every record published at `due_unix_ms` or before that every group has settled.
        Returns the bytes of their messages."""
        gone = [stored for stored in self.records if self._may_go(stored, due_unix_ms)]
        self.records = [x for x in self.records if not self._may_go(x, due_unix_ms)]
        log = self.log
        log.start = self.records[0].record.first if self.records else log.next_offset
        size = sum(stored.size for stored in gone)
        log.remove(sum(stored.count for stored in gone), size)
        return size

    def published(self, offset: int) -> int | None:
        """Return when the record was published that holds the offset or is the first one after it;
        None: there is none."""
        behind = (x.published_unix_ms for x in self.records if x.record.last >= offset)
        return next(behind, None)

    def standings(self, group_id: str, first: int, last: int) -> list[MessageStatus]:
        """Return the status of each of the offsets for a group that exists."""
        cursor, aside = self.cursors[group_id], self.aside[group_id]
        return [cursor.standing(offset, aside.get(offset)) for offset in range(first, last + 1)]

    def parked(self, group_id: str) -> list[ParkedLine]:
        """Return the parked keys of a group that exists, by hash."""
        cursor, aside = self.cursors[group_id], self.aside[group_id]
        lines: list[ParkedLine] = []
        for mark in cursor.snapshot().parked:
            line = [offset for offset, key_hash in aside.items() if key_hash == mark.key_hash]
            head = min(line, default=None)
            retry = cursor.retries.get(head) if head is not None else None
            tried = (retry.attempts, retry.nack) if retry is not None else (0, None)
            lines.append(
                ParkedLine(mark.key_hash, mark.reason, mark.since_unix_ms, len(line), head, *tried)
            )
        return lines


class MemoryStorage:
    """`push.storage_port.Storage` without a disk. `wall` is the unix clock, in seconds."""

    inbox = None

    def __init__(self, *, wall: Callable[[], float] = time.time, sealer: Sealer = PLAIN) -> None:
        self._wall = wall
        self._sealer = sealer
        self.queues: dict[str, list[MemoryPartition]] = {}
        """Queue id → its partitions."""
        self._dropped = Dropped()
        self._incarnation = uuid.uuid4().hex
        self._wake_up: WakeUp | None = None
        self._closed = False
        self._lost_answers: list[bool] = []
        self.due = MemoryDueStore(self)
        self.publishable = True
        """Whether new messages are taken. False: they are answered `storage_full`, as if free space
        were below the reserve."""
        self.clock: Callable[[], int | None] = lambda: None
        """The clock of its own that it tells, in unix milliseconds; None: it has none."""

    def lose_next_answer(self, *, applied: bool) -> None:
        """Let the next append or write_cursors raise Unknown. `applied`: whether its change is made
        nevertheless. Several calls count for as many acts, in order."""
        self._lost_answers.append(applied)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("storage_unavailable", "the storage is closed")

    def _wall_unix_ms(self) -> int:
        return int(self._wall() * 1000)

    def _queue(self, queue_id: str) -> list[MemoryPartition]:
        if queue_id not in self.queues:
            raise Refused("queue_not_found", f"the storage has no queue {queue_id}")
        return self.queues[queue_id]

    def find(self, partition: Partition) -> MemoryPartition | None:
        """Return a partition; None: there is none."""
        queue = self.queues.get(partition.queue_id, [])
        return queue[partition.number] if 0 <= partition.number < len(queue) else None

    async def incarnation(self) -> str:
        self._check_open()
        return self._incarnation

    # --- What the due stores need ----------------------------------------------------------------

    def enter(self) -> int:
        """Begin an act. Returns the wall time in unix milliseconds. Raises Refused: closed."""
        self._check_open()
        return self._wall_unix_ms()

    def take_lost_answer(self) -> bool | None:
        """Return whether the act that now begins is made though its answer is lost; None: it is
        answered."""
        return self._lost_answers.pop(0) if self._lost_answers else None

    def on_growth(self, partition: Partition, end: int) -> None:
        """Tell that a partition is certified up to `end`."""
        if self._wake_up is not None:
            self._wake_up(partition, end)

    # --- Queues ------------------------------------------------------------------------------

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        self._check_open()
        self._dropped.check_queue(queue_id)
        queue = self.queues.setdefault(queue_id, [])
        total = queue[0].log.total if queue else QueueTotal()
        for number in range(len(queue), partitions):
            log = PartitionLog(Partition(queue_id, number), row_id=0, total=total)
            queue.append(MemoryPartition(log, sealer=self._sealer))

    async def drop_queue(self, queue_id: str) -> None:
        self._check_open()
        self.queues.pop(queue_id, None)
        self._dropped.add(queue_id)

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        self._check_open()
        places = self._with_starts(queue_id, starts)
        self._dropped.check_group(group_id)
        for at, start in places:
            if group_id not in at.cursors:
                at.cursors[group_id] = GroupCursor(start_floor(start, at.log))
                at.aside[group_id] = {}

    def _with_starts(
        self, queue_id: str, starts: Sequence[Start]
    ) -> list[tuple[MemoryPartition, Start]]:
        queue = self._queue(queue_id)
        if len(starts) != len(queue):
            raise Refused("invalid_request", f"{len(starts)} starts for {len(queue)} partitions")
        return list(zip(queue, starts, strict=True))

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        self._check_open()
        for at in self.queues.get(queue_id, []):
            at.cursors.pop(group_id, None)
            at.aside.pop(group_id, None)
        self._dropped.add(group_id)

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        self._check_open()
        places = self._with_starts(queue_id, starts)
        if any(group_id not in at.cursors for at, _ in places):
            raise Refused("group_not_found", f"the storage has no group {group_id}")
        for at, start in places:
            at.replace(group_id, start_floor(start, at.log))

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        self._check_open()
        queue = self._queue(queue_id)
        if group_id is not None and any(group_id not in at.cursors for at in queue):
            raise Refused("group_not_found", f"the storage has no group {group_id}")
        count = 0
        for at in queue:
            end = at.log.next_offset
            waiting = at.log.messages + at.log.due_messages
            count += waiting if group_id is None else at.cursors[group_id].unsettled(end)
            for name in at.cursors if group_id is None else (group_id,):
                at.replace(name, end)
            if group_id is None:
                at.drop_all()
        await asyncio.sleep(0)
        return count

    def lane(self, partition: Partition, level: Durability) -> Lane:
        return ONE_LANE

    def copies(self, partition: Partition, level: Durability) -> int:
        return 1

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        self._check_open()
        headers = [open_header(append) for append in appends]
        sealed = [
            self._sealer.seal(append.partition, append.header, append.payload, header.count)
            for append, header in zip(appends, headers, strict=True)
        ]
        applied = self.take_lost_answer()
        if applied is False:
            raise Unknown("the answer of the storage was lost")
        answers: list[Appended] = []
        certified: dict[Partition, int] = {}
        for append, header, blob in zip(appends, headers, sealed, strict=True):
            at = self.find(append.partition)
            if at is None:
                answers.append(nowhere(header.count))
                continue
            effect = self._append(at, append, header, blob)
            answers.append(effect.appended)
            if effect.appended.count:
                certified[append.partition] = at.log.next_offset
            if effect.due:
                self.due.notice(append.partition)
        for partition, end in certified.items():
            self.on_growth(partition, end)
        await asyncio.sleep(0)  # overlapping calls meet here, as they do with a disk
        if applied:
            raise Unknown("the answer of the storage was lost")
        return answers

    def _append(self, at: MemoryPartition, append: Append, header: Header, sealed: bytes) -> Effect:
        wall = self._wall_unix_ms()

        def line_of(producer: bytes) -> ProducerLine:
            line = at.lines.setdefault(producer, ProducerLine(line_bucket(wall)))
            line.wake(line_bucket(wall))
            return line

        effect = append_record(
            at.log,
            append,
            header,
            line_of=line_of,
            find_ids=partial(at.find_ids, wall),
            refuse=None if self.publishable else "storage_full",
        )
        at.remember(effect.ids, id_bucket(wall, append.dedup_window_s), wall)
        for message in due_rules.due_messages(append, header, effect.due):
            at.keep_due(message)
        appended = effect.appended
        if appended.count:
            raw, skips = append.header, appended.skips
            record = Record.load(appended.first, raw, append.payload, skips)
            published = min(header.published_unix_ms, wall)
            at.append(StoredRecord(record, published, effect.size, raw, sealed, skips))
        return effect

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        self._check_open()
        at = self.find(partition)
        if at is None:
            return Read((), 0, 0)
        answer = at.read(offset, bytes_max, until)
        await asyncio.sleep(0)
        return answer

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        found: list[Record | None] = []
        record: Record | None = None
        size = 0
        for offset in offsets:
            if record is None or not record.first <= offset <= record.last:
                records = (await self.read(partition, offset, 1, until=offset)).records
                record = records[0] if records else None
                size += record.memory_bytes if record is not None else 0
                if found and size > bytes_max:
                    break
            found.append(record if record is not None and record.last >= offset else None)
        return tuple(found)

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        self._check_open()
        at = self.find(partition)
        if at is None:
            raise Refused("queue_not_found", "the storage has no such partition")
        for stored in at.records:
            if stored.published_unix_ms >= unix_ms:
                return stored.record.first
        return at.log.next_offset

    def _cursor(self, place: CursorPlace) -> tuple[MemoryPartition, GroupCursor] | None:
        at = self.find(place.partition)
        if at is None or place.group_id not in at.cursors:
            return None
        return at, at.cursors[place.group_id]

    def epoch_of(self, place: CursorPlace) -> int | None:
        """Return the newest epoch of a place; None: it does not exist. For `MemoryInbox`."""
        at = self.find(place.partition)
        cursor = at.cursors.get(place.group_id) if at is not None else None
        return cursor.epoch if cursor is not None else None

    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        self._check_open()
        found = self._cursor(place)
        if found is None:
            raise Refused("group_not_found", f"the storage has no group {place.group_id} here")
        at, cursor = found
        previous = cursor.own(token=token, assignment=assignment, epoch_seen=epoch_seen)
        owned = Owned(
            cursor.epoch, cursor.snapshot(), at.log.next_offset, at.log.generation, previous
        )
        await asyncio.sleep(0)
        return owned

    async def write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        self._check_open()
        applied = self.take_lost_answer()
        if applied is False:
            raise Unknown("the answer of the storage was lost")
        found = [self._cursor(write.place) for write in writes]
        for write, owned in zip(writes, found, strict=True):
            if owned is not None:
                at, _ = owned
                check_write(write, at.log.next_offset)
        answers: list[Written] = []
        for write, owned in zip(writes, found, strict=True):
            if owned is None:
                answers.append(Written(fenced=True))
                continue
            at, cursor = owned
            aside = at.aside[write.place.group_id]
            change = cursor.apply(
                write,
                lambda first, last, aside=aside: [  # type: ignore[misc]
                    (offset, key) for offset, key in aside.items() if first <= offset <= last
                ],
            )
            for offset in change.aside_gone:
                del aside[offset]
            aside.update(change.aside)
            answers.append(change.written)
        await asyncio.sleep(0)
        if applied:
            raise Unknown("the answer of the storage was lost")
        return answers

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        self._check_open()
        at = self.find(place.partition)
        aside = at.aside.get(place.group_id, {}) if at is not None else {}
        line = sorted(offset for offset, key in aside.items() if key == key_hash)
        return tuple([offset for offset in line if offset > after][:count_max])

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        self._check_open()
        at = self.find(partition)
        if at is None or (keep_all and not at.cursors):
            return 0
        return at.trim(self._wall_unix_ms() - int(retention_s * 1000))

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        self._check_open()
        at = self.find(partition)
        if at is None or (keep_all and not at.cursors):
            return 0, None
        return at.trimmable(self._wall_unix_ms() - int(retention_s * 1000), after), None

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        self._check_open()
        at = self.find(partition)
        if at is None:
            raise Refused("queue_not_found", "the storage has no such partition")
        if at.log.sealed_at is None:
            due_rules.check_sealable(at.log)
            at.log.sealed_at = at.log.next_offset
            at.log.successors = tuple(successors)
        return at.log.sealed_at

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        self._check_open()
        return [at.log.state() for at in self.queues.get(queue_id, [])]

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        self._check_open()
        states: list[CursorState] = []
        for at in self.queues.get(queue_id, []):
            cursor = at.cursors.get(group_id)
            if cursor is None:
                continue
            dead, dead_passed, dead_first = count_dead(cursor.dead, cursor.passed, cursor.floor)
            states.append(
                CursorState(
                    place=CursorPlace(group_id, at.log.partition),
                    epoch=cursor.epoch,
                    floor=cursor.floor,
                    settled_above=cursor.passed.size(),
                    aside=sum(cursor.lines.values()),
                    parked=len(cursor.parked),
                    dead=dead,
                    dead_passed=dead_passed,
                    dead_first=dead_first,
                    aside_first=min(at.aside[group_id], default=None),
                )
            )
        return states

    async def cursor(self, place: CursorPlace) -> Cursor | None:
        self._check_open()
        found = self._cursor(place)
        if found is None:
            return None
        _, cursor = found
        return cursor.snapshot()

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        self._check_open()
        return [
            at.published(offset) if (at := self.find(partition)) is not None else None
            for partition, offset in places
        ]

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        self._check_open()
        found = self._cursor(place)
        if found is None:
            return []
        at, _ = found
        return at.parked(place.group_id)

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        self._check_open()
        found = self._cursor(place)
        if found is None:
            return []
        at, _ = found
        return at.standings(place.group_id, first, last)

    def on_certified(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up

    async def state(self) -> StorageState:
        if self._closed:
            return StorageState(False, False, ("the storage is closed",))
        if not self.publishable:
            return StorageState(True, False, ("free space is below the reserve",))
        return StorageState(True, True)

    async def close(self) -> None:
        self._closed = True


class MemoryDueStore:
    """`push.storage_port.DueStore` of a storage in memory."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._noticed: Callable[[Partition, int], None] | None = None

    def on_due(self, noticed: Callable[[Partition, int], None]) -> None:
        self._noticed = noticed

    def notice(self, partition: Partition) -> None:
        """Tell when the first message of a partition is due."""
        at = self._storage.find(partition)
        due_unix_ms = at.first_due() if at is not None else None
        if self._noticed is not None and due_unix_ms is not None:
            self._noticed(partition, due_unix_ms)

    async def first(
        self, partition: Partition, until_unix_ms: int, *, count_max: int, bytes_max: int
    ) -> DueRead:
        at = self._enter(partition)
        if at is None:
            return DueRead(())
        fitting = at.in_order()
        due = [one for one in fitting if one.message.due_unix_ms <= until_unix_ms]
        return self._read(at, fitting, min(len(due), count_max), bytes_max)

    def _enter(self, partition: Partition) -> MemoryPartition | None:
        self._storage.enter()
        return self._storage.find(partition)

    def _read(
        self, at: MemoryPartition, fitting: Sequence[StoredDue], count: int, bytes_max: int
    ) -> DueRead:
        sizes = accumulate(one.size for one in fitting[:count])
        count = max(sum(size <= bytes_max for size in sizes), min(count, 1))
        opened, damaged = at.open_due(fitting[:count])
        rest = fitting[count:]
        next_unix_ms = rest[0].message.due_unix_ms if rest else None
        told = self._storage.clock()
        return DueRead(tuple(opened), next_unix_ms, damaged, at.log.generation, told)

    async def move(self, messages: Sequence[DueMessage], append: Append) -> Appended | None:
        wall, header = self._storage.enter(), open_header(append)
        due_rules.check_moved(messages, header)
        at, applied = self._storage.find(append.partition), self._storage.take_lost_answer()
        if applied is False:
            raise Unknown("the answer of the storage was lost")
        waiting = {} if at is None else {number: one.message for number, one in at.due.items()}
        if at is None or not due_rules.are_there(messages, waiting):
            return None
        marks = due_rules.marks_of_moved(messages, at.log.next_offset)
        window_s = append.dedup_window_s
        appended, size = due_rules.append_moved(at.log, messages, header)
        at.remember(marks, due_rules.marks_bucket(wall, window_s), wall)
        at.remember(due_rules.ids_of_moved(messages, window_s), id_bucket(wall, window_s), wall)
        for message in messages:
            del at.due[message.number]
        sealed = at.sealer.seal(append.partition, append.header, append.payload, header.count)
        record = Record.load(appended.first, append.header, append.payload, ())
        published = min(header.published_unix_ms, wall)
        at.append(StoredRecord(record, published, size, append.header, sealed, ()))
        self._storage.on_growth(append.partition, at.log.next_offset)
        await asyncio.sleep(0)
        if applied:
            raise Unknown("the answer of the storage was lost")
        return appended

    async def find(self, partition: Partition, numbers: Sequence[int]) -> list[DueMessage]:
        at = self._enter(partition)
        if at is None:
            return []
        opened, _ = at.open_due([at.due[number] for number in numbers if number in at.due])
        return opened

    async def look(
        self,
        partition: Partition,
        *,
        key_hash: int | None = None,
        id_hash: int | None = None,
        after: DuePlace | None = None,
        count_max: int = 100,
        bytes_max: int = limits.LOOK_BYTES_MAX,
    ) -> DueRead:
        at = self._enter(partition)
        if at is None:
            return DueRead(())
        fitting = [
            one
            for one in at.in_order()
            if key_hash in (None, one.message.key_hash)
            and id_hash in (None, one.message.id_hash)
            and (after is None or place_in_order(one.message) > after)
        ]
        return self._read(at, fitting, count_max, bytes_max)

    async def cancel(self, partition: Partition, number: int, *, remember_s: float) -> bool:
        wall = self._storage.enter()
        at = self._storage.find(partition)
        if at is None or number not in at.due:
            return False
        waiting = at.due.pop(number)
        at.remember(due_rules.ids_of_cancelled(waiting.message), id_bucket(wall, remember_s), wall)
        at.log.leave_due(1, waiting.size)
        await asyncio.sleep(0)
        return True

    async def change(
        self, message: DueMessage, *, bytes_max: int = 0, due_bytes_max: int = 0
    ) -> bool:
        at = self._enter(message.partition)
        before = at.due.get(message.number) if at is not None else None
        if at is None or before is None or before.message.version != message.version:
            return False
        more = len(message.payload) - before.size
        has_room = self._storage.publishable
        due_rules.check_growth(at.log, more, bytes_max, due_bytes_max, has_room=has_room)
        at.log.resize_due(more)
        at.keep_due(due_rules.changed(before.message, message))
        self.notice(message.partition)
        await asyncio.sleep(0)
        return True

    async def fate(self, partition: Partition, number: int) -> Stored | NotStored | None:
        wall, at, mark = self._storage.enter(), self._enter(partition), fate_mark(number)
        return due_rules.fate_of(at.find_ids(wall, [mark]).get(mark)) if at is not None else None

    async def known(self, partition: Partition, digest: bytes) -> Outcome | None:
        wall, at = self._storage.enter(), self._enter(partition)
        place = at.find_ids(wall, [digest]).get(digest) if at is not None else None
        if at is None or place is None:
            return None
        return known_outcome(place, partial(at.find_ids, wall))

    async def states(self, queue_id: str) -> list[DueState]:
        self._storage.enter()
        queue = self._storage.queues.get(queue_id, [])
        told = self._storage.clock()
        return [due_rules.due_state(at.log, at.first_due(), told) for at in queue]
