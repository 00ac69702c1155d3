"""Reading the embedded store, in a thread and on a connection of its own.

Each read is one short transaction: a long one would keep the WAL from being reset (R31). What is
committed is certified (R10), so a read sees exactly what may leave.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from push import limits
from push.errors import Refused
from push.places import GroupPartition, Partition
from push.ports import Damage, Read
from push.record import Record, RecordDamaged
from push.sealing import Sealer
from storage.rules.appending import PartitionLog
from storage.sqlite import sqlite_codec as codec

T = TypeVar("T")
_BAD_MAX: Final = 64
"""Damaged records that one read meets before it answers with what it has."""
_RECORD: Final = "id, count, published_unix_ms, bytes, checksum, skips, header, payload"


class Reader:
    """The reading thread. It holds `readers` during each transaction. `on_corrupt` gets the
    sentence when SQLite finds broken structure."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        *,
        readers: threading.Lock,
        on_corrupt: Callable[[str], None],
    ) -> None:
        self._readers = readers
        self._connection = connection
        self._loop = loop
        self._on_corrupt = on_corrupt
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tocsin-store-reader", daemon=True)
        self._thread.start()

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run it in one reading transaction.

        Raises:
            Refused: storage_unavailable: SQLite could not read.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(lambda: self._answer(work, future))
        return await future

    def close(self) -> None:
        """Finish what was asked for, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def _answer(self, work: Callable[[sqlite3.Connection], T], future: "asyncio.Future[T]") -> None:
        if future.done():  # the caller was cancelled: the next one waits
            return
        result: T | None = None
        failure: Exception | None = None
        try:
            with self._readers:
                self._connection.execute("BEGIN")
                try:
                    result = work(self._connection)
                finally:
                    self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = Refused("storage_unavailable", f"the store cannot be read: {error}")
            if not isinstance(error, sqlite3.OperationalError):
                self._on_corrupt(f"the store is damaged: {error}")
        except Exception as error:  # a bug here must reach the caller, not end the thread
            failure = error

        def resolve() -> None:
            if future.done():  # the caller was cancelled
                return
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return  # the loop is closed: nobody waits


def log_of(connection: sqlite3.Connection, partition: Partition) -> PartitionLog | None:
    """The row of a partition; None: there is none. Raises Refused: it is damaged."""
    row = connection.execute(
        f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? AND number = ?",
        partition,
    ).fetchone()
    return None if row is None else unpack_log(row)


def unpack_log(row: codec.Found) -> PartitionLog:
    """A row of PARTITION_COLUMNS. Raises Refused: it is damaged."""
    log = codec.unpack_partition(row)
    if log is None:
        raise Refused(
            "storage_unavailable", f"the row of partition {row[-1]} of {row[-2]} is damaged"
        )
    return log


def read_records(
    connection: sqlite3.Connection,
    partition: Partition,
    offset: int,
    bytes_max: int,
    *,
    until: int | None,
    sealer: Sealer,
) -> tuple[Read, list[int]]:
    """What `Storage.read` answers, and the rows that are damaged."""
    log = log_of(connection, partition)
    if log is None:
        return Read((), 0, 0), []
    end = log.next_offset if until is None else max(0, min(until + 1, log.next_offset))
    # Positions come from clients; and below the start there may be what was purged.
    offset = min(max(offset, log.start), limits.OFFSET_MAX)
    base = log.row_id
    rows = connection.execute(
        f"SELECT {_RECORD} FROM record WHERE id >= coalesce((SELECT id FROM record "
        "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id < ?3 ORDER BY id",
        (
            codec.record_row_id(base, 0),
            codec.record_row_id(base, offset),
            codec.record_row_id(base, end),
        ),
    )
    records: list[Record] = []
    bad: dict[int, str] = {}
    size, read_until = 0, end
    for row in rows:
        try:
            record = load_record(row, partition, sealer)
        except RecordDamaged as error:
            bad[row[0]] = str(error)
            if len(bad) == _BAD_MAX:
                read_until = codec.offset_of(row[0]) + 1
                break
            continue
        if record.last >= offset:
            if records and size + record.memory_bytes > bytes_max:
                read_until = record.first
                break
            records.append(record)
            size += record.memory_bytes
    rows.close()
    damage = _damage(connection, log, bad, offset, read_until)
    return Read(tuple(records), log.start, log.next_offset, damage), list(bad)


def read_each(
    connection: sqlite3.Connection,
    partition: Partition,
    offsets: Sequence[int],
    bytes_max: int,
    sealer: Sealer,
) -> tuple[tuple[Record | None, ...], list[int]]:
    """What `Storage.read_each` answers, and the rows that are damaged."""
    found: list[Record | None] = []
    bad: list[int] = []
    record: Record | None = None
    size = 0
    for offset in offsets:
        if record is None or not record.first <= offset <= record.last:
            read, damaged = read_records(
                connection, partition, offset, 1, until=offset, sealer=sealer
            )
            bad += damaged
            record = read.records[0] if read.records else None
            size += record.memory_bytes if record is not None else 0
            if found and size > bytes_max:
                break
        holds = record is not None and record.first <= offset <= record.last
        found.append(record if holds else None)
    return tuple(found), bad


def load_record(row: codec.Found, partition: Partition, sealer: Sealer) -> Record:
    """The record of a row, opened.

    Raises:
        RecordDamaged: with the reason (R30).
        Refused: storage_unavailable: its key cannot be had at the moment.
    """
    if not record_is_sound(row):
        raise RecordDamaged(CHECKSUM_REASON)
    row_id, header, sealed = row[0], row[6], row[7]
    payload = sealer.unseal(partition, header, sealed)
    try:
        return Record.load(codec.offset_of(row_id), header, payload, codec.unpack_skips(row[5]))
    except ValueError as error:
        raise RecordDamaged(str(error)) from None


def record_is_sound(row: codec.Found) -> bool:
    """Whether a row of the record table is as it was written."""
    row_id, count, published_unix_ms, size, checksum, skips, header, payload = row
    fields = (count, published_unix_ms, size)
    expected = codec.record_checksum(row_id, fields, skips or b"", header, payload)
    return bool(expected == checksum)


def _damage(
    connection: sqlite3.Connection, log: PartitionLog, bad: dict[int, str], offset: int, end: int
) -> tuple[Damage, ...]:
    """Damaged records of offset..end, those found now and those quarantined before: each group
    and each reader has to be told."""
    low = codec.record_row_id(log.row_id, 0)
    high = codec.record_row_id(log.row_id, end)
    known = connection.execute(
        "SELECT id, count, reason FROM quarantine WHERE id >= coalesce((SELECT id FROM quarantine "
        "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id < ?3",
        (low, codec.record_row_id(log.row_id, offset), high),
    ).fetchall()
    found = [(row_id, span(connection, log, row_id), reason) for row_id, reason in bad.items()]
    return tuple(
        Damage(log.partition, codec.offset_of(row_id), count, reason)
        for row_id, count, reason in sorted(known + found)
        if codec.offset_of(row_id) + count > offset
    )


CHECKSUM_REASON: Final = "the checksum does not match"


def span(connection: sqlite3.Connection, log: PartitionLog, row_id: int) -> int:
    """How many offsets a damaged record may have had: its own count may be what is damaged."""
    (after,) = connection.execute(
        "SELECT min(id) FROM record WHERE id > ? AND id < ?",
        (row_id, codec.record_row_id(log.row_id, log.next_offset)),
    ).fetchone()
    end = log.next_offset if after is None else codec.offset_of(after)
    (count,) = connection.execute("SELECT count FROM record WHERE id = ?", (row_id,)).fetchone()
    room = end - codec.offset_of(row_id)
    return int(count) if 0 < count <= room else room


def offset_at(connection: sqlite3.Connection, partition: Partition, unix_ms: int) -> int:
    """What `Storage.offset_at` answers, by bisection: exact where the clocks of publishers did not
    run backwards, else one of the places where the time was crossed."""
    log = log_of(connection, partition)
    if log is None:
        raise Refused("queue_not_found", "the storage has no such partition")
    low, high = log.start, log.next_offset
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT id, count, published_unix_ms FROM record WHERE id BETWEEN ? AND ? "
            "ORDER BY id DESC LIMIT 1",
            (
                codec.record_row_id(log.row_id, low),
                codec.record_row_id(log.row_id, middle),
            ),
        ).fetchone()
        if row is None:
            low = middle + 1
        elif row[2] >= unix_ms:
            high = codec.offset_of(row[0])
        else:
            low = max(middle + 1, codec.offset_of(row[0]) + row[1])
    return min(low, log.next_offset)


def read_side(
    connection: sqlite3.Connection, place: GroupPartition, key_hash: int, after: int, count_max: int
) -> tuple[int, ...]:
    """What `Storage.read_side` answers."""
    rows = connection.execute(
        "SELECT place FROM side WHERE cursor = (SELECT cursor.id FROM cursor JOIN partition "
        "ON partition.id = cursor.partition WHERE queue_id = ? AND number = ? AND group_id = ?) "
        "AND key_hash = ? AND place > ? ORDER BY place LIMIT ?",
        (*place.partition, place.group_id, codec.signed(key_hash), after, count_max),
    )
    return tuple(offset for (offset,) in rows)
