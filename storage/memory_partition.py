"""One partition of the storage in memory: its log, its producers, its cursors, as they stand."""

from dataclasses import dataclass, field

from push.ports import ParkedLine, Standing
from push.record import Record
from storage.appending import IdBuckets, PartitionLog
from storage.cursor import GroupCursor
from storage.dedup import ProducerLine


@dataclass(slots=True)
class StoredRecord:
    """A record with what trimming asks of it."""

    record: Record
    published_unix_ms: int
    size: int


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

    def replace(self, group_id: str, floor: int) -> None:
        """A fresh cursor at `floor`, under a raised epoch."""
        self.cursors[group_id] = self.cursors[group_id].fresh(floor)
        self.aside[group_id] = {}

    def drop_all(self) -> None:
        """Nothing below the end is retained any more."""
        self.records = []
        self.log.drop_all()

    def trim(self, due_unix_ms: int) -> int:
        """Delete every record published up to then that every group has settled; the bytes."""

        def may_go(stored: StoredRecord) -> bool:
            first, last = stored.record.first, stored.record.last
            return stored.published_unix_ms <= due_unix_ms and all(
                (last < cursor.floor or cursor.passed.covers(max(first, cursor.floor), last))
                and not any(first <= offset <= last for offset in self.aside[group_id])
                for group_id, cursor in self.cursors.items()
            )

        gone = [stored for stored in self.records if may_go(stored)]
        self.records = [stored for stored in self.records if not may_go(stored)]
        log = self.log
        log.start = self.records[0].record.first if self.records else log.next_offset
        size = sum(stored.size for stored in gone)
        log.remove(sum(stored.record.last - stored.record.first + 1 for stored in gone), size)
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
            attempts = retry.attempts if retry is not None else 0
            lines.append(
                ParkedLine(
                    mark.key_hash, mark.reason, mark.since_unix_ms, len(line), head, attempts
                )
            )
        return lines
