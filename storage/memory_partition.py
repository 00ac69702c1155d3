"""One partition of the storage in memory: its log, its producers, its cursors, as they stand."""

from dataclasses import dataclass, field

from push.places import ParkedLine
from push.ports import Damage, Read, Standing
from push.record import Record, RecordDamaged
from push.sealing import PLAIN, Sealer
from storage.rules.appending import IdBuckets, PartitionLog
from storage.rules.cursor import GroupCursor
from storage.rules.dedup import ProducerLine


@dataclass(slots=True)
class StoredRecord:
    """A record with what trimming asks of it."""

    record: Record
    """Without its payload where that is sealed."""
    published_unix_ms: int
    size: int
    header: bytes
    sealed: bytes
    skips: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return self.record.last - self.record.first + 1


@dataclass(slots=True)
class MemoryPartition:
    """See the module."""

    log: PartitionLog
    records: list[StoredRecord] = field(default_factory=list)
    lines: dict[bytes, ProducerLine] = field(default_factory=dict)
    buckets: IdBuckets = field(default_factory=lambda: IdBuckets([]))
    ids: dict[int, dict[bytes, int]] = field(default_factory=dict)
    """Bucket of time -> digest -> offset."""
    cursors: dict[str, GroupCursor] = field(default_factory=dict)
    aside: dict[str, dict[int, int]] = field(default_factory=dict)
    """Group -> offset -> key hash: the side lines."""
    damage: list[Damage] = field(default_factory=list)
    """What could not be opened, and was put aside (R30)."""
    sealer: Sealer = PLAIN

    def append(self, stored: StoredRecord) -> None:
        """Keep it; where payloads are sealed, the sealed one alone."""
        if self.sealer is not PLAIN:
            stored.record.payload = b""
        self.records.append(stored)

    def read(self, offset: int, bytes_max: int, until: int | None) -> Read:
        """What `Storage.read` answers."""
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
        """The record with its payload; None: it is damaged, and put aside."""
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
        """A fresh cursor at `floor`, under a raised epoch."""
        self.cursors[group_id] = self.cursors[group_id].fresh(floor)
        self.aside[group_id] = {}

    def drop_all(self) -> None:
        """Nothing below the end is retained any more."""
        self.records = []
        self.damage = []
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
        """Count the messages of the records that `trim` would delete, from an offset on."""
        records = (one for one in self.records if one.record.first >= after)
        return sum(one.count for one in records if self._may_go(one, due_unix_ms))

    def trim(self, due_unix_ms: int) -> int:
        """Delete every record published up to then that every group has settled; the bytes."""
        gone = [stored for stored in self.records if self._may_go(stored, due_unix_ms)]
        self.records = [x for x in self.records if not self._may_go(x, due_unix_ms)]
        log = self.log
        log.start = self.records[0].record.first if self.records else log.next_offset
        size = sum(stored.size for stored in gone)
        log.remove(sum(stored.count for stored in gone), size)
        return size

    def published(self, offset: int) -> int | None:
        """When the record was published that holds the offset or is the first one behind it."""
        behind = (x.published_unix_ms for x in self.records if x.record.last >= offset)
        return next(behind, None)

    def standings(self, group_id: str, first: int, last: int) -> list[Standing]:
        """Where each of the offsets stands for a group that is there."""
        cursor, aside = self.cursors[group_id], self.aside[group_id]
        return [cursor.standing(offset, aside.get(offset)) for offset in range(first, last + 1)]

    def parked(self, group_id: str) -> list[ParkedLine]:
        """The parked keys of a group that is there, by hash."""
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
