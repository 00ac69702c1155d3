"""Reads of the embedded store, in a thread and on a connection of its own.

Each read is one short transaction, because a long one would keep the WAL from being reset (R31).
Committed messages are certified (R10), so a read sees exactly those that may leave. The functions
here answer `push.storage_port.Storage` and `StorageInspection` on that connection.

Damaged records that a read meets are quarantined, by the writer, so that later ones are delivered
(R30, P13).
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from push import limits
from push.errors import Refused
from push.places import CursorPlace, Parked, ParkedLine, Partition
from push.ranges import DeadRanges, RangeSet, dead_of
from push.record import Record, RecordDamaged
from push.storage_port import (
    Cursor,
    CursorState,
    Damage,
    MessageStatus,
    PartitionState,
    Read,
    Sealer,
)
from storage.rules.cursor import GroupCursor, count_dead, settled_by_all
from storage.sqlite import codec
from storage.sqlite.state import WriteState

logger = logging.getLogger("tocsin.storage")
T = TypeVar("T")
_BAD_MAX: Final = 64
"""Number of damaged records after which a read looks no further, and answers with the records that
it has found."""


class StoreReader:
    """The reading thread. It holds `readers` during each transaction. `on_corrupt` is called with a
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
        self._refusal = ""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tocsin-store-reader", daemon=True)
        self._thread.start()

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one reading transaction, and return its result.

        Raises:
            Refused: storage_unavailable: SQLite could not read, or nothing is read any more.
        """
        if self._refusal:
            raise Refused("storage_unavailable", self._refusal)
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(lambda: self._answer(work, future))
        return await future

    def refuse(self, why: str) -> None:
        """Begin no further read; later ones are refused with `why`."""
        self._refusal = why

    def close(self) -> None:
        """Finish all reads that were requested, then end the thread. Blocks."""
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
        except (TypeError, ValueError, OverflowError) as error:
            # Inspections read rows without their checksums (R30).
            logger.exception("the store cannot be read: a value has another type than its column?")
            failure = Refused("storage_unavailable", f"the store cannot be read: {error}")
        except Exception as error:  # a bug in `work` must reach the caller, not end the thread
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
            return  # the loop is closed, and no caller waits


def log_of(connection: sqlite3.Connection, partition: Partition) -> codec.StoredLog | None:
    """Return the log in a partition's row; None: there is no row. Raises Refused if the row is
    damaged."""
    row = connection.execute(
        f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? AND number = ?",
        partition,
    ).fetchone()
    return None if row is None else unpack_log(row)


def unpack_log(row: codec.Found) -> codec.StoredLog:
    """Return the log of a row of PARTITION_COLUMNS. Raises Refused if the row is damaged."""
    log = codec.unpack_partition(row)
    if log is None:
        *_, queue_id, number = row
        raise Refused(
            "storage_unavailable", f"the row of partition {number} of {queue_id} is damaged"
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
    """Answer `Storage.read`. Returns the answer, and the row ids of damaged records that were
    met."""
    log = log_of(connection, partition)
    if log is None:
        return Read((), 0, 0), []
    end = log.next_offset if until is None else max(0, min(until + 1, log.next_offset))
    # Positions come from clients, and below the start there may be purged records.
    offset = min(max(offset, log.start), limits.OFFSET_MAX)
    base = log.row_id
    rows = connection.execute(
        f"SELECT {codec.RECORD_COLUMNS} FROM record WHERE id >= coalesce((SELECT id FROM record "
        "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id < ?3 ORDER BY id",
        (
            codec.record_row_id(base, 0),
            codec.record_row_id(base, offset),
            codec.record_row_id(base, end),
        ),
    )
    records: list[Record] = []
    bad: dict[int, str] = {}
    size, read_until, last_row_id = 0, end, 0
    for row in rows:
        row_id = row[0]
        if row_id <= last_row_id:  # sound pages in each other's place: SQLite checks no order
            raise sqlite3.DatabaseError("records are out of order")
        last_row_id = row_id
        try:
            record = codec.unpack_record(row, partition, sealer)
        except RecordDamaged as error:
            bad[row_id] = str(error)
            if len(bad) == _BAD_MAX:
                read_until = codec.offset_of(row_id) + 1
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
    """Answer `Storage.read_each`. Returns the answer, and the row ids of damaged records that were
    met."""
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


def _damage(
    connection: sqlite3.Connection, log: codec.StoredLog, bad: dict[int, str], offset: int, end: int
) -> tuple[Damage, ...]:
    """Return the damaged records from `offset` up to `end` (excluded), those found now (`bad`: row
    id -> reason) and those quarantined before, because each group and each reader has to learn of
    them."""
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


def span(connection: sqlite3.Connection, log: codec.StoredLog, row_id: int) -> int:
    """Return how many offsets a damaged record may have had: as many as its row says, or all up to
    the next record if that is impossible, because the row's count may be damaged."""
    (after,) = connection.execute(
        "SELECT min(id) FROM record WHERE id > ? AND id < ?",
        (row_id, codec.record_row_id(log.row_id, log.next_offset)),
    ).fetchone()
    end = log.next_offset if after is None else codec.offset_of(after)
    (count,) = connection.execute("SELECT count FROM record WHERE id = ?", (row_id,)).fetchone()
    room = end - codec.offset_of(row_id)
    return codec.count_in(count, room)


def offset_at(connection: sqlite3.Connection, partition: Partition, unix_ms: int) -> int:
    """Answer `Storage.offset_at`, by bisection. The offset is exact if the clocks of publishers did
    not run backwards, otherwise one of several at which the times of publishing pass `unix_ms`."""
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
            continue
        row_id, count, published_unix_ms = row
        if published_unix_ms >= unix_ms:
            high = codec.offset_of(row_id)
        else:
            low = max(middle + 1, codec.offset_of(row_id) + count)
    return min(low, log.next_offset)


def read_side(
    connection: sqlite3.Connection, place: CursorPlace, key_hash: int, after: int, count_max: int
) -> tuple[int, ...]:
    """Answer `Storage.read_side`."""
    rows = connection.execute(
        "SELECT place FROM side WHERE cursor = (SELECT cursor.id FROM cursor JOIN partition "
        "ON partition.id = cursor.partition WHERE queue_id = ? AND number = ? AND group_id = ?) "
        "AND key_hash = ? AND place > ? ORDER BY place LIMIT ?",
        (*place.partition, place.group_id, codec.signed(key_hash), after, count_max),
    )
    return tuple(offset for (offset,) in rows)


TRIMMABLE_ROWS: Final = 1000
"""Records that one slice of `trimmable` looks at, so that its reading transaction stays short
(R31)."""


def partition_states(connection: sqlite3.Connection, queue_id: str) -> list[PartitionState]:
    """Answer `Storage.partitions`."""
    rows = connection.execute(
        f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? ORDER BY number",
        (queue_id,),
    ).fetchall()
    return [unpack_log(row).state() for row in rows]


def cursor_states(
    connection: sqlite3.Connection, queue_id: str, group_id: str
) -> list[CursorState]:
    """Answer `Storage.cursors`."""
    states: list[CursorState] = []
    rows = connection.execute(
        "SELECT cursor.id, number, epoch, floor, passed, "
        "(SELECT coalesce(sum(entries), 0) FROM side_line WHERE cursor = cursor.id), "
        "(SELECT count(*) FROM parked WHERE cursor = cursor.id), "
        "(SELECT min(place) FROM side WHERE cursor = cursor.id), "
        "(SELECT ranges FROM dead WHERE cursor = cursor.id) "
        "FROM partition JOIN cursor ON cursor.partition = partition.id "
        "WHERE queue_id = ? AND group_id = ? ORDER BY number",
        (queue_id, group_id),
    ).fetchall()
    for row_id, number, epoch, floor, passed, aside, parked, first, dead in rows:
        cursor = GroupCursor(floor)
        cursor.passed = _passed(connection, row_id, passed)
        cursor.floor = cursor.passed.pop_prefix(floor)
        place = CursorPlace(group_id, Partition(queue_id, number))
        dying, dead_passed, dead_first = count_dead(
            dead_of(dead or ""), cursor.passed, cursor.floor
        )
        states.append(
            CursorState(
                place=place,
                epoch=epoch,
                floor=cursor.floor,
                settled_above=cursor.passed.size(),
                aside=aside,
                parked=parked,
                aside_first=first,
                dead=dying,
                dead_passed=dead_passed,
                dead_first=dead_first,
            )
        )
    return states


def standings(
    connection: sqlite3.Connection, place: CursorPlace, first: int, last: int
) -> list[MessageStatus]:
    """Answer `Storage.standings`."""
    found = _cursor(connection, place)
    if found is None:
        return []
    row_id, cursor = found
    span_ = (row_id, first, last)
    for row in connection.execute(
        f"SELECT {codec.RETRY_COLUMNS} FROM retry WHERE cursor = ? AND place BETWEEN ? AND ?",
        span_,
    ):
        cursor.put_retry(codec.unpack_retry(*row))
    cursor.ended = _ended(connection, row_id)
    cursor.dead = _dead(connection, row_id)
    aside: dict[int, int] = {}
    for offset, key_hash, since_unix_ms in connection.execute(
        "SELECT place, side.key_hash, since_unix_ms FROM side LEFT JOIN parked "
        "ON parked.cursor = side.cursor AND parked.key_hash = side.key_hash "
        "WHERE side.cursor = ? AND place BETWEEN ? AND ?",
        span_,
    ):
        aside[offset] = key_hash
        if since_unix_ms is not None:
            cursor.parked[key_hash] = Parked(key_hash, "", since_unix_ms)
    return [cursor.standing(offset, aside.get(offset)) for offset in range(first, last + 1)]


def cursor_of(connection: sqlite3.Connection, place: CursorPlace) -> Cursor | None:
    """Answer `Storage.cursor`."""
    found = _cursor(connection, place)
    if found is None:
        return None
    row_id, cursor = found
    cursor.floor = cursor.passed.pop_prefix(cursor.floor)
    select = connection.execute
    for row in select(f"SELECT {codec.RETRY_COLUMNS} FROM retry WHERE cursor = ?", (row_id,)):
        cursor.put_retry(codec.unpack_retry(*row))
    for key_hash, entries in select(
        "SELECT key_hash, entries FROM side_line WHERE cursor = ?", (row_id,)
    ):
        cursor.lines[codec.unsigned(key_hash)] = entries
    for key_hash, reason, since_unix_ms in select(
        "SELECT key_hash, reason, since_unix_ms FROM parked WHERE cursor = ?", (row_id,)
    ):
        mark = Parked(codec.unsigned(key_hash), reason, since_unix_ms)
        cursor.parked[mark.key_hash] = mark
    cursor.ended = _ended(connection, row_id)
    cursor.dead = _dead(connection, row_id)
    return cursor.snapshot()


def _cursor(connection: sqlite3.Connection, place: CursorPlace) -> tuple[int, GroupCursor] | None:
    """Return (row id, cursor), the cursor with its floor and passed offsets only; None: no such
    cursor exists."""
    row = connection.execute(
        "SELECT cursor.id, floor, passed FROM cursor JOIN partition "
        "ON partition.id = cursor.partition WHERE queue_id = ? AND number = ? AND group_id = ?",
        (*place.partition, place.group_id),
    ).fetchone()
    if row is None:
        return None
    row_id, floor, passed = row
    cursor = GroupCursor(floor)
    cursor.passed = _passed(connection, row_id, passed)
    return row_id, cursor


def _ended(connection: sqlite3.Connection, row_id: int) -> RangeSet:
    """Return the offsets that a cursor keeps as given out and then settled by no ack."""
    row = connection.execute("SELECT ranges FROM ended WHERE cursor = ?", (row_id,)).fetchone()
    return codec.unpack_ranges(row[0]) if row is not None else RangeSet()


def _dead(connection: sqlite3.Connection, row_id: int) -> DeadRanges:
    """Return the dying messages of a cursor, which are on their way to the dead letters."""
    dead = DeadRanges()
    for (ranges,) in connection.execute("SELECT ranges FROM dead WHERE cursor = ?", (row_id,)):
        dead = dead_of(ranges)
    return dead


def _passed(connection: sqlite3.Connection, row_id: int, whole: bytes) -> RangeSet:
    """Return the ranges that a cursor has passed: its row's ranges, and those of the commits
    since."""
    passed = codec.unpack_ranges(whole)
    for (ranges,) in connection.execute(
        "SELECT passed FROM cursor_log WHERE cursor = ? ORDER BY number", (row_id,)
    ):
        for first, last in codec.unpack_ranges(ranges):
            passed.add(first, last)
    return passed


def trimmable(
    connection: sqlite3.Connection,
    partition: Partition,
    due_unix_ms: int,
    *,
    keep_all: bool,
    after: int,
) -> tuple[int, int | None]:
    """Answer `Storage.trimmable`. Reads no payload, whose columns are the last ones."""
    log = log_of(connection, partition)
    if log is None:
        return 0, None
    cursors: dict[int, GroupCursor] = {}
    for row_id, floor, passed in connection.execute(
        "SELECT id, floor, passed FROM cursor WHERE partition = ?", (log.row_id,)
    ).fetchall():
        cursor = cursors[row_id] = GroupCursor(floor)
        cursor.passed = _passed(connection, row_id, passed)
        cursor.dead = _dead(connection, row_id)
    if keep_all and not cursors:
        return 0, None
    settled = settled_by_all(cursors.values(), log.next_offset)
    messages = 0
    rows = connection.execute(
        "SELECT id, count, published_unix_ms FROM record WHERE id BETWEEN ? AND ? "
        "ORDER BY id LIMIT ?",
        (
            codec.record_row_id(log.row_id, max(after, log.start)),
            codec.record_row_id(log.row_id, log.next_offset),
            TRIMMABLE_ROWS,
        ),
    ).fetchall()
    for row_id, count, published_unix_ms in rows:
        first = codec.offset_of(row_id)
        if published_unix_ms > due_unix_ms:
            return messages, None  # retention passes in order
        is_settled = settled.covers(first, first + count - 1)
        if is_settled and not _stands_aside(connection, cursors, first, first + count - 1):
            messages += count
    if len(rows) < TRIMMABLE_ROWS:
        return messages, None
    return messages, first + count


def _stands_aside(
    connection: sqlite3.Connection, cursors: Iterable[int], first: int, last: int
) -> bool:
    return any(
        connection.execute(
            "SELECT 1 FROM side WHERE cursor = ? AND place BETWEEN ? AND ? LIMIT 1",
            (cursor, first, last),
        ).fetchone()
        for cursor in cursors
    )


def parked_keys(connection: sqlite3.Connection, place: CursorPlace) -> list[ParkedLine]:
    """Answer `Storage.parked`."""
    rows = connection.execute(
        "WITH line AS (SELECT cursor, key_hash, reason, since_unix_ms, "
        "(SELECT min(place) FROM side WHERE side.cursor = parked.cursor "
        "AND side.key_hash = parked.key_hash) AS head FROM parked WHERE cursor = "
        "(SELECT cursor.id FROM cursor JOIN partition ON partition.id = cursor.partition "
        "WHERE queue_id = ? AND number = ? AND group_id = ?)) "
        "SELECT line.key_hash, line.reason, since_unix_ms, coalesce(entries, 0), head, "
        "coalesce(attempts, 0), retry.reason FROM line "
        "LEFT JOIN side_line ON side_line.cursor = line.cursor "
        "AND side_line.key_hash = line.key_hash "
        "LEFT JOIN retry ON retry.cursor = line.cursor AND retry.place = head",
        (*place.partition, place.group_id),
    ).fetchall()
    lines = [ParkedLine(codec.unsigned(key_hash), *rest) for key_hash, *rest in rows]
    return sorted(lines, key=lambda line: line.key_hash)


def published(
    connection: sqlite3.Connection, places: Sequence[tuple[Partition, int]]
) -> list[int | None]:
    """Answer `Storage.published`. Reads no payload, whose columns are the last ones."""
    return [_published(connection, partition, offset) for partition, offset in places]


def _published(connection: sqlite3.Connection, partition: Partition, offset: int) -> int | None:
    log = log_of(connection, partition)
    if log is None:
        return None
    offset = min(max(offset, log.start), limits.OFFSET_MAX)
    row = connection.execute(
        "SELECT published_unix_ms FROM record WHERE id >= coalesce((SELECT id FROM record "
        "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id < ?3 "
        "AND id + count > ?2 ORDER BY id LIMIT 1",
        (
            codec.record_row_id(log.row_id, 0),
            codec.record_row_id(log.row_id, offset),
            codec.record_row_id(log.row_id, log.next_offset),
        ),
    ).fetchone()
    return None if row is None else int(row[0])


def quarantine(state: WriteState, partition: Partition, row_ids: list[int]) -> None:
    """Move these records to the quarantine, unless they are deleted, purged, or sound after all. In
    the last case the reader met a fault of memory, or another reader was faster."""
    state.flush()
    log = state.find(partition)
    if log is None:
        return
    connection = state.transaction.connection
    for row_id in row_ids:
        row = connection.execute(
            f"SELECT {codec.RECORD_COLUMNS} FROM record WHERE id = ?", (row_id,)
        ).fetchone()
        if row is None or codec.offset_of(row_id) < log.start:
            continue
        try:
            codec.unpack_record(row, partition, state.sealer)
        except RecordDamaged as damage:
            reason = str(damage)
        else:
            continue
        count = span(connection, log, row_id)
        size, checksum = map(codec.number_in, row[3:5])
        skips, *blobs = map(codec.bytes_in, row[5:])
        state.transaction.begin().execute(
            "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row_id, count, state.wall_unix_ms(), reason, size, checksum, skips or None, *blobs),
        )
        connection.execute("DELETE FROM record WHERE id = ?", (row_id,))
        log.remove(count, max(size, 0))
        state.changed(log)
        state.report(
            f"damaged: a record of {count} messages from offset {codec.offset_of(row_id)} on in "
            f"partition {partition.number} of {partition.queue_id}: {reason}; it is in the "
            "quarantine"
        )
