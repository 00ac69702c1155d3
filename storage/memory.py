"""The storage in memory: the verified fake.

It keeps every promise of the port but durability, in the plainest way, and passes the contract
suite that the real ones pass. What other tests run on this, they run on the port's semantics.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence

from push.errors import Refused, Unknown
from push.places import Durability, GroupPartition, ParkedLine, Partition
from push.ports import (
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    Lane,
    Owned,
    PartitionState,
    Read,
    Standing,
    Start,
    StorageState,
    WakeUp,
    Written,
    one_lane,
)
from push.record import Header, Record
from push.sealing import PLAIN, Sealer
from storage.memory_partition import MemoryPartition, StoredRecord
from storage.rules.appending import (
    Effect,
    PartitionLog,
    QueueTotal,
    append_record,
    nowhere,
    open_header,
)
from storage.rules.cursor import GroupCursor, check_write, start_floor
from storage.rules.dedup import ProducerLine, id_bucket, line_bucket
from storage.rules.dropped import Dropped


class MemoryStorage:
    """`push.ports.Storage` without a disk. `wall` is the unix clock, in seconds."""

    inbox = None
    lane = staticmethod(one_lane)

    def __init__(self, *, wall: Callable[[], float] = time.time, sealer: Sealer = PLAIN) -> None:
        self._wall = wall
        self._sealer = sealer
        self._queues: dict[str, list[MemoryPartition]] = {}
        self._dropped = Dropped()
        self._incarnation = uuid.uuid4().hex
        self._wake_up: WakeUp | None = None
        self._closed = False
        self._lost_answers: list[bool] = []
        self.publishable = True
        """False: as below the free-space reserve; new messages are answered `storage_full`."""

    def lose_next_answer(self, *, applied: bool) -> None:
        """The next append or write_cursors raises Unknown: the act happened, or it did not."""
        self._lost_answers.append(applied)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("storage_unavailable", "the storage is closed")

    def _wall_unix_ms(self) -> int:
        return int(self._wall() * 1000)

    def _queue(self, queue_id: str) -> list[MemoryPartition]:
        if queue_id not in self._queues:
            raise Refused("queue_not_found", f"the storage has no queue {queue_id}")
        return self._queues[queue_id]

    def _find(self, partition: Partition) -> MemoryPartition | None:
        queue = self._queues.get(partition.queue_id, [])
        return queue[partition.number] if 0 <= partition.number < len(queue) else None

    async def incarnation(self) -> str:
        self._check_open()
        return self._incarnation

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        self._check_open()
        self._dropped.check_queue(queue_id)
        queue = self._queues.setdefault(queue_id, [])
        total = queue[0].log.total if queue else QueueTotal()
        for number in range(len(queue), partitions):
            log = PartitionLog(Partition(queue_id, number), row_id=0, total=total)
            queue.append(MemoryPartition(log, sealer=self._sealer))

    async def drop_queue(self, queue_id: str) -> None:
        self._check_open()
        self._queues.pop(queue_id, None)
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
        for at in self._queues.get(queue_id, []):
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
            count += at.log.messages if group_id is None else at.cursors[group_id].unsettled(end)
            for name in at.cursors if group_id is None else (group_id,):
                at.replace(name, end)
            if group_id is None:
                at.drop_all()
        await asyncio.sleep(0)
        return count

    def copies(self, partition: Partition, level: Durability) -> int:
        """As Storage.copies."""
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
        applied = self._lost_answers.pop(0) if self._lost_answers else None
        if applied is False:
            raise Unknown("the answer of the storage was lost")
        answers: list[Appended] = []
        certified: dict[Partition, int] = {}
        for append, header, blob in zip(appends, headers, sealed, strict=True):
            at = self._find(append.partition)
            if at is None:
                answers.append(nowhere(header.count))
                continue
            effect = self._append(at, append, header, blob)
            answers.append(effect.appended)
            if effect.appended.count:
                certified[append.partition] = at.log.next_offset
        if self._wake_up is not None:
            for partition, end in certified.items():
                self._wake_up(partition, end)
        await asyncio.sleep(0)  # overlapping calls meet here, as they do where a disk is
        if applied:
            raise Unknown("the answer of the storage was lost")
        return answers

    def _append(self, at: MemoryPartition, append: Append, header: Header, sealed: bytes) -> Effect:
        wall = self._wall_unix_ms()

        def line_of(producer: bytes) -> ProducerLine:
            line = at.lines.setdefault(producer, ProducerLine(line_bucket(wall)))
            line.wake(line_bucket(wall))
            return line

        def find_ids(digests: list[bytes]) -> dict[bytes, int]:
            live = [at.ids[until] for until in at.buckets.live(wall)]
            return {digest: ids[digest] for ids in live for digest in digests if digest in ids}

        effect = append_record(
            at.log,
            append,
            header,
            line_of=line_of,
            find_ids=find_ids,
            refuse=None if self.publishable else "storage_full",
        )
        if effect.ids:
            until = id_bucket(wall, append.dedup_window_s)
            at.buckets.add(until)
            at.ids.setdefault(until, {}).update(effect.ids)
        for until in at.buckets.passed(wall):
            at.buckets.untils.remove(until)
            del at.ids[until]
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
        at = self._find(partition)
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
        at = self._find(partition)
        if at is None:
            raise Refused("queue_not_found", "the storage has no such partition")
        for stored in at.records:
            if stored.published_unix_ms >= unix_ms:
                return stored.record.first
        return at.log.next_offset

    def _cursor(self, place: GroupPartition) -> tuple[MemoryPartition, GroupCursor] | None:
        at = self._find(place.partition)
        if at is None or place.group_id not in at.cursors:
            return None
        return at, at.cursors[place.group_id]

    def epoch_of(self, place: GroupPartition) -> int | None:
        """The newest epoch of a place; None: there is no such place. For `MemoryInbox`."""
        found = self._cursor(place)
        return found[1].epoch if found is not None else None

    async def own(
        self, place: GroupPartition, *, token: bytes, assignment: int, epoch_seen: int = 0
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
        applied = self._lost_answers.pop(0) if self._lost_answers else None
        if applied is False:
            raise Unknown("the answer of the storage was lost")
        found = [self._cursor(write.place) for write in writes]
        for write, place in zip(writes, found, strict=True):
            if place is not None:
                check_write(write, place[0].log.next_offset)
        answers: list[Written] = []
        for write, place in zip(writes, found, strict=True):
            if place is None:
                answers.append(Written(fenced=True))
                continue
            aside = place[0].aside[write.place.group_id]
            change = place[1].apply(
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
        self, place: GroupPartition, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        self._check_open()
        at = self._find(place.partition)
        aside = at.aside.get(place.group_id, {}) if at is not None else {}
        line = sorted(offset for offset, key in aside.items() if key == key_hash)
        return tuple([offset for offset in line if offset > after][:count_max])

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        self._check_open()
        at = self._find(partition)
        if at is None or (keep_all and not at.cursors):
            return 0
        return at.trim(self._wall_unix_ms() - int(retention_s * 1000))

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        self._check_open()
        at = self._find(partition)
        if at is None or (keep_all and not at.cursors):
            return 0, None
        return at.trimmable(self._wall_unix_ms() - int(retention_s * 1000), after), None

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        self._check_open()
        at = self._find(partition)
        if at is None:
            raise Refused("queue_not_found", "the storage has no such partition")
        if at.log.sealed_at is None:
            at.log.sealed_at = at.log.next_offset
            at.log.successors = tuple(successors)
        return at.log.sealed_at

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        self._check_open()
        return [at.log.state() for at in self._queues.get(queue_id, [])]

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        self._check_open()
        return [
            CursorState(
                place=GroupPartition(group_id, at.log.partition),
                epoch=cursor.epoch,
                floor=cursor.floor,
                settled_above=cursor.passed.size(),
                aside=sum(cursor.lines.values()),
                parked=len(cursor.parked),
                dead=cursor.dead.size(),
                aside_first=min(at.aside[group_id], default=None),
            )
            for at in self._queues.get(queue_id, [])
            if (cursor := at.cursors.get(group_id)) is not None
        ]

    async def cursor(self, place: GroupPartition) -> Cursor | None:
        self._check_open()
        found = self._cursor(place)
        return found[1].snapshot() if found is not None else None

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        self._check_open()
        return [
            at.published(offset) if (at := self._find(partition)) is not None else None
            for partition, offset in places
        ]

    async def parked(self, place: GroupPartition) -> list[ParkedLine]:
        self._check_open()
        found = self._cursor(place)
        return found[0].parked(place.group_id) if found is not None else []

    async def standings(self, place: GroupPartition, first: int, last: int) -> list[Standing]:
        self._check_open()
        found = self._cursor(place)
        return found[0].standings(place.group_id, first, last) if found is not None else []

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
