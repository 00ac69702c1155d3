"""The write state of the embedded store: values that the writer keeps in memory and flushes.

Tasks decide on these values and change them; `flush` then writes all that changed with one
statement per table. So a task that is refused has written nothing, an append needs no SELECT when
its partition and producers are hot, and nothing is undone: if a commit fails the process stops.
Used by the writer's thread alone.

Partitions and producer lines are here; cursors are in `storage.sqlite.cursors`, scheduled messages
and client ids in `storage.sqlite.due_rows`.
"""

import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from push.due import DueMessage
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.record import Header
from push.storage_port import Append, Appended, Sealer, Start
from storage.rules.append import (
    Dropped,
    Effect,
    ProducerLine,
    QueueTotal,
    append_record,
    id_bucket,
    line_bucket,
    nowhere,
    open_header,
)
from storage.rules.cursor import start_floor
from storage.rules.due import check_sealable, due_messages
from storage.sqlite import codec
from storage.sqlite.codec import StoredLog, Transaction, insert, update
from storage.sqlite.cursors import CURSORS_CACHED_WEIGHT_MAX, CursorWriteState
from storage.sqlite.due_rows import DueRows, IdState

_FREE_CHECK_S: Final = 0.5
"""Least time between two looks at the free space, in seconds. A disk written at 500 MB/s loses less
than the reserve meanwhile."""


class FreeSpace:
    """The free space of the store's file system, checked every _FREE_CHECK_S at most. Usable from
    any thread."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._checked = time.monotonic()
        self.free_bytes = self._look()

    # enforces: R31
    def is_enough(self) -> bool:
        """Whether at least the reserve is free, so that new messages may be stored."""
        now = time.monotonic()
        if now - self._checked >= _FREE_CHECK_S:
            self._checked = now  # first, so that other threads use the known value meanwhile
            self.free_bytes = self._look()
        return self.free_bytes >= self._reserve_bytes

    def _look(self) -> int:
        space = os.statvfs(self._folder)
        return space.f_bavail * space.f_frsize


PARTITIONS_CACHED_MAX: Final = 20_000
"""Largest number of partitions whose logs are cached, about 1 KiB each."""
LINES_CACHED_MAX: Final = 50_000
LINE_ENTRIES_CACHED_MAX: Final = 2_000_000
"""Largest number of sequences in all cached producer lines together, 16 bytes each."""
PARTITION_ROWS_MAX: Final = 1 << 22
"""Bound of the row ids of partitions, all below it. A record's row id has 63 bits, 40 of them for
the offset."""

_INSERT_PARTITION = insert("partition", codec.PARTITION_COLUMNS)
_UPDATE_PARTITION = update("partition", codec.PARTITION_CHANGES)
_INSERT_RECORD = insert("record", codec.RECORD_COLUMNS)
_INSERT_LINE = insert("producer", f"{codec.LINE_COLUMNS}, partition, producer")
_UPDATE_LINE = update("producer", "id, resolved, top, sequences, checksum")
LineKey = tuple[int, bytes]


@dataclass(slots=True)
class _Sealed:
    """An append, and what it stores."""

    append: Append
    header: Header
    payload: bytes = b""
    """The stored form of its payload, if it goes to the log."""
    due: list[tuple[DueMessage, bytes]] = field(default_factory=list)
    """Otherwise its messages, which have no numbers yet, each with the stored form of its
    payload."""


class WriteState:
    """Partitions, producer lines and cursors that are cached in memory, and the rows that wait to
    be written."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        wall: Callable[[], float],
        space: FreeSpace,
        report: Callable[[str], None],
        sealer: Sealer,
    ) -> None:
        self.transaction = Transaction(connection)
        self._connection = connection
        self.report = report
        self.sealer = sealer
        self.certified: dict[Partition, int] = {}
        """Partitions that grew in this batch, with their certified ends: the wake-ups."""
        self.noticed: dict[Partition, int] = {}
        """Partitions in which this batch scheduled or changed messages, with the time in unix
        milliseconds at which the first of these is due."""
        self._wall = wall
        self._space = space
        self._partitions: OrderedDict[Partition, StoredLog] = OrderedDict()
        self._totals: WeakValueDictionary[str, QueueTotal] = WeakValueDictionary()
        """The totals of the queues that have a partition in memory. The logs of a queue's
        partitions keep its total alive, and it disappears with the last of them. Every change of it
        has been written by then, so the rows in the file give it again."""
        self._lines: OrderedDict[LineKey, ProducerLine] = OrderedDict()
        self._line_entries: dict[LineKey, int] = {}
        self._entries = 0
        self._changed_partitions: dict[int, StoredLog] = {}
        self._changed_lines: dict[LineKey, ProducerLine] = {}
        self._moved_lines: set[LineKey] = set()
        self._records: list[codec.Row] = []
        self.records_written = 0
        """Number of records in the last flush that wrote any."""
        self._dropped = Dropped()
        self.has_garbage = bool(
            self._connection.execute("SELECT 1 FROM garbage LIMIT 1").fetchone()
        )
        """Whether rows of dropped queues, groups or cursors may be left, which the trimmer
        deletes."""
        self.swept_until_unix_ms = 0
        """Wall time until which the trimmer need not sweep the lines of idle producers again."""
        self.ids = IdState(self.transaction, report)
        self.due = DueRows(self.transaction)
        self.cursors = CursorWriteState(self.transaction, self.find, report)
        self._next_partition_row = 1 + self._highest("partition", "partition")
        self._next_line_row = 1 + self._highest("producer", "")

    def _highest(self, table: str, kind: str) -> int:
        """Return the highest row number in use, also by garbage that is not swept yet."""
        rows = self._connection.execute(
            f"SELECT max(id) FROM {table} WHERE id < ?2 UNION ALL "
            "SELECT max(id) FROM garbage WHERE kind = ?1 AND id < ?2",
            (kind, PARTITION_ROWS_MAX if kind else codec.ROW_IDS_MAX),
        ).fetchall()
        return max(row[0] or 0 for row in rows)

    def has_space(self) -> bool:
        """Whether enough space is free for the store to grow."""
        return self._space.is_enough()

    def wall_unix_ms(self) -> int:
        """Return the time of the wall clock, in unix milliseconds."""
        return int(self._wall() * 1000)

    def is_sweep_due(self) -> bool:
        """Whether a slice of sweeping may find rows to delete: garbage, or lines of idle
        producers."""
        return self.has_garbage or self._wall() * 1000 >= self.swept_until_unix_ms

    # --- Partitions ----------------------------------------------------------------------------

    def find(self, partition: Partition) -> StoredLog | None:
        """Return the partition's log; None: there is none.

        Raises:
            Refused: storage_unavailable: its row is damaged.
        """
        log = self._partitions.get(partition)
        if log is not None:
            self._partitions.move_to_end(partition)
            return log
        row = self._connection.execute(
            f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? AND number = ?",
            partition,
        ).fetchone()
        if row is None:
            return None
        log = codec.unpack_partition(row)
        if log is None:
            sentence = f"the row of partition {partition.number} of {partition.queue_id} is damaged"
            self.report(sentence)
            raise Refused("storage_unavailable", sentence)
        log.total = self._total(partition.queue_id)
        self._partitions[partition] = log
        return log

    def _total(self, queue_id: str) -> QueueTotal:
        """Return the queue's total. It is read from the file only while no partition of the queue
        is in memory, because then the rows in the file are up to date. A damaged row adds nothing,
        and its partition takes no messages."""
        total = self._totals.get(queue_id)
        if total is None:
            total = self._totals[queue_id] = QueueTotal()
            for row in self._connection.execute(
                f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ?", (queue_id,)
            ):
                log = codec.unpack_partition(row)
                if log is not None:
                    total.messages += log.messages + log.due_messages
                    total.bytes += log.bytes + log.due_bytes
                    total.due_messages += log.due_messages
                    total.due_bytes += log.due_bytes
        return total

    def get(self, partition: Partition) -> StoredLog:
        """Return the partition's log. Raises Refused if there is none."""
        log = self.find(partition)
        if log is None:
            raise Refused("queue_not_found", f"the storage has no queue {partition.queue_id}")
        return log

    def changed(self, log: StoredLog) -> None:
        """Note that the log's row has to be written."""
        self._changed_partitions[log.row_id] = log

    def queue(self, queue_id: str) -> list[StoredLog]:
        """Return the logs of a queue's partitions, in the order of their numbers; empty: the queue
        is unknown."""
        rows = self._connection.execute(
            "SELECT number FROM partition WHERE queue_id = ? ORDER BY number", (queue_id,)
        ).fetchall()
        return [self.get(Partition(queue_id, number)) for (number,) in rows]

    def with_starts(self, queue_id: str, starts: Sequence[Start]) -> list[tuple[StoredLog, int]]:
        """Return the log of each partition of a queue, with the floor that its start means. Raises
        Refused if the queue is unknown or has another number of partitions."""
        logs = self.queue(queue_id)
        if not logs:
            raise Refused("queue_not_found", f"the storage has no queue {queue_id}")
        if len(starts) != len(logs):
            raise Refused("invalid_request", f"{len(starts)} starts for {len(logs)} partitions")
        return [(log, start_floor(s, log)) for log, s in zip(logs, starts, strict=True)]

    def create_queue(self, queue_id: str, partitions: int) -> None:
        """Make those of the queue's partitions that do not exist. Raises Refused if the queue was
        dropped."""
        self._dropped.check_queue(queue_id)
        there = {log.partition.number for log in self.queue(queue_id)}
        numbers = [number for number in range(partitions) if number not in there]
        if self._next_partition_row + len(numbers) > PARTITION_ROWS_MAX:
            raise Refused("limit_reached", "the storage has no room for more partitions")
        rows: list[codec.Row] = []
        for number in numbers:
            log = StoredLog(Partition(queue_id, number), row_id=self._next_partition_row)
            self._next_partition_row += 1
            rows.append((*codec.pack_partition(log), queue_id, number))
        if rows:
            _INSERT_PARTITION.execute(self.transaction.begin(), rows)

    def drop_queue(self, queue_id: str) -> None:
        """Drop a queue's partitions and cursors, whose rows are garbage from now on."""
        self.flush()
        rows = self._connection.execute(
            "SELECT id, number FROM partition WHERE queue_id = ?", (queue_id,)
        ).fetchall()
        for row_id, number in rows:
            connection = self.transaction.begin()
            connection.execute("INSERT INTO garbage VALUES ('partition', ?)", (row_id,))
            ids = codec.due_row_id(row_id, 0), codec.due_row_id(row_id + 1, 0) - 1
            connection.execute("DELETE FROM garbage WHERE kind = 'due' AND id BETWEEN ? AND ?", ids)
            connection.execute(
                "INSERT INTO garbage SELECT 'cursor', id FROM cursor WHERE partition = ?",
                (row_id,),
            )
            connection.execute("DELETE FROM cursor WHERE partition = ?", (row_id,))
            connection.execute("DELETE FROM partition WHERE id = ?", (row_id,))
            self._partitions.pop(Partition(queue_id, number), None)
            self.ids.forget(row_id)
        self._totals.pop(queue_id, None)
        self.cursors.forget_queue(queue_id)
        self._dropped.add(queue_id)
        self.has_garbage = True

    # enforces: R27
    def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        """Close a partition to new messages, and return its end. If that was done before, change
        nothing and return the end of then. Raises Refused if scheduled messages wait in it."""
        log = self.get(partition)
        if log.sealed_at is None:
            check_sealable(log)
            log.sealed_at, log.successors = log.next_offset, tuple(successors)
            self.changed(log)
        return log.sealed_at

    # --- Appending -----------------------------------------------------------------------------

    # enforces: R29
    def append(self, appends: Sequence[Append]) -> list[Appended]:
        """Append records (R5-R9); nothing is changed when it raises."""
        opened: list[tuple[_Sealed, StoredLog | None]] = []
        for append in appends:  # whatever may be refused comes before anything is changed
            opened.append((self._seal(append), self.find(append.partition)))
        refuse = None if self._space.is_enough() else "storage_full"
        wall = self.wall_unix_ms()
        answers: list[Appended] = []
        for sealed, log in opened:
            if log is None:
                answers.append(nowhere(sealed.header.count))
            else:
                answers.append(self._append(log, sealed, refuse=refuse, wall=wall))
        return answers

    def _seal(self, append: Append) -> "_Sealed":
        header = open_header(append)
        seal = self.sealer.seal
        if not header.deliver_at_unix_ms:
            payload = seal(append.partition, append.header, append.payload, header.count)
            return _Sealed(append, header, payload)
        # Which of them are new is decided later, and gives them their numbers.
        due = due_messages(append, header, [(index, 0) for index in range(header.count)])
        forms = [seal(one.partition, one.header(), one.payload, 1) for one in due]
        return _Sealed(append, header, due=[*zip(due, forms, strict=True)])

    def _append(
        self, log: StoredLog, sealed: "_Sealed", *, refuse: str | None, wall: int
    ) -> Appended:
        row_id, append, header = log.row_id, sealed.append, sealed.header
        effect = append_record(
            log,
            append,
            header,
            find_ids=self._find_ids(log, wall),
            line_of=partial(self._line, row_id, line_bucket(wall)),
            refuse=refuse,
        )
        self._changed_partitions[row_id] = log
        for producer, line in effect.lines.items():
            self._changed_lines[(row_id, producer)] = line
        if effect.ids:
            self.ids.remember(row_id, effect.ids, id_bucket(wall, append.dedup_window_s))
        if effect.appended.count:
            self.add_record(log, effect, header, append.header, sealed.payload)
        for index, number in effect.due:
            message, form = sealed.due[index]
            self.put_due(log, replace(message, number=number), form)
        return effect.appended

    def _find_ids(self, log: StoredLog, wall: int) -> Callable[[list[bytes]], dict[bytes, int]]:
        """Return the function that finds the places of client ids in log and due store. The latter
        costs nothing while it is empty."""
        remembered = partial(self.ids.find, log.row_id, wall)
        if not log.due_messages:
            return remembered

        def find(digests: list[bytes]) -> dict[bytes, int]:
            found = remembered(digests)
            others = [digest for digest in digests if digest not in found]
            return {**found, **self.due.find_ids(log, others)}

        return find

    def add_record(
        self, log: StoredLog, effect: Effect, header: Header, stored: bytes, sealed: bytes
    ) -> None:
        """Have the record of an `effect` written, and its partition's growth notified. `stored` and
        `sealed`: its header and payload as they are stored."""
        # A gateway whose clock runs ahead must not keep its records for ever.
        published_unix_ms = min(header.published_unix_ms, self.wall_unix_ms())
        row = codec.pack_record(log.row_id, effect, published_unix_ms, stored, sealed)
        self._records.append(row)
        self.certified[log.partition] = log.next_offset

    def put_due(self, log: StoredLog, message: DueMessage, sealed: bytes) -> None:
        """Have a scheduled message written, and its due time notified. `sealed`: the stored form of
        its payload."""
        self.due.put(log, message, sealed)
        self.changed(log)
        first = self.noticed.get(log.partition, message.due_unix_ms)
        self.noticed[log.partition] = min(first, message.due_unix_ms)

    def _line(self, partition_row: int, bucket: int, producer: bytes) -> ProducerLine:
        key = (partition_row, producer)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._load_line(key, bucket)
        else:
            self._lines.move_to_end(key)
        if line.bucket < bucket:
            line.wake(bucket)
            self._changed_lines[key] = line
            self._moved_lines.add(key)
        return line

    def _load_line(self, key: LineKey, bucket: int) -> ProducerLine:
        row = self._connection.execute(
            f"SELECT {codec.LINE_COLUMNS} FROM producer WHERE partition = ? AND producer = ?", key
        ).fetchone()
        if row is None:
            return ProducerLine(bucket)
        line = codec.unpack_line(row, *key)
        if line is None:
            # The messages are in the log. Only a repetition of one in flight would not be
            # recognised.
            self.report(f"the row of a producer in partition row {key[0]} is damaged: begun anew")
            self._moved_lines.add(key)  # it is written whole
            line_row, *_ = row
            return ProducerLine(bucket, row_id=line_row)
        return line

    # --- Writing down --------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what has changed, inside the batch's transaction."""
        if self._changed_partitions:  # each append and each act on the due store changes its one
            connection = self.transaction.begin()
            rows = list(map(codec.pack_partition, self._changed_partitions.values()))
            _UPDATE_PARTITION.execute(connection, rows)
            self._changed_partitions.clear()
            if self._records:
                self.records_written = len(self._records)
                _INSERT_RECORD.execute(connection, self._records)
                self._records.clear()
            if self._changed_lines:
                self._flush_lines(connection)
            if self.ids.unwritten:
                self.ids.flush()
            if self.due.unwritten:
                self.due.flush()
        self.cursors.flush()

    def _flush_lines(self, connection: sqlite3.Connection) -> None:
        new: list[codec.Row] = []
        old: list[codec.Row] = []
        for key, line in self._changed_lines.items():
            if not line.row_id or key in self._moved_lines:
                if not line.row_id:
                    line.row_id = self._next_line_row
                    self._next_line_row += 1
                new.append((*codec.pack_line(line, *key), *key))
            else:
                row_id, _, resolved, top, blob, checksum = codec.pack_line(line, *key)
                old.append((row_id, resolved, top, blob, checksum))
            self._entries += len(line.sequences) - self._line_entries.get(key, 0)
            self._line_entries[key] = len(line.sequences)
        if new:
            _INSERT_LINE.execute(connection, new)
        if old:
            _UPDATE_LINE.execute(connection, old)
        self._changed_lines.clear()
        self._moved_lines.clear()

    def shrink(self) -> None:
        """Keep the caches within bounds. Called after a commit, when nothing waits to be
        written."""
        while len(self._partitions) > PARTITIONS_CACHED_MAX:
            _, log = self._partitions.popitem(last=False)
            self.ids.forget(log.row_id)
        while len(self._lines) > LINES_CACHED_MAX or self._entries > LINE_ENTRIES_CACHED_MAX:
            key, _ = self._lines.popitem(last=False)
            self._entries -= self._line_entries.pop(key, 0)
        if self.cursors.weight > CURSORS_CACHED_WEIGHT_MAX:
            self.cursors.shrink()

    # --- Cursors -------------------------------------------------------------------------------

    def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """Make those cursors of the group that do not exist. Raises Refused if the group was
        dropped."""
        places = self.with_starts(queue_id, starts)
        self._dropped.check_group(group_id)
        for log, floor in places:
            self.cursors.create(CursorPlace(group_id, log.partition), log.row_id, floor)

    def drop_group(self, group_id: str, queue_id: str) -> None:
        """Drop a group's cursors, whose rows are garbage from now on."""
        self.flush()
        for log in self.queue(queue_id):
            self.cursors.drop(CursorPlace(group_id, log.partition))
        self._dropped.add(group_id)
        self.has_garbage = True

    def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """Replace a group's cursors by fresh ones at these starts."""
        self.flush()
        places = [
            (CursorPlace(group_id, log.partition), log, floor)
            for log, floor in self.with_starts(queue_id, starts)
        ]
        if any(self.cursors.find(place) is None for place, _, _ in places):
            raise Refused("group_not_found", f"the storage has no group {group_id}")
        for place, log, floor in places:
            self.cursors.replace(place, log.row_id, floor)
        self.has_garbage = True
