"""Deletion in the embedded store, in slices (R31): settled records, purged queues, garbage.

Trimming looks at each settled offset once (R12). The cursors remember per partition which offsets
it has examined. Their records are deleted, or pinned by an offset that some group has not settled.
When that offset is settled, it counts as new, and its record is looked at again. So neither a stuck
head nor a million records after it are scanned twice.

A purge is one task, however much it drops (R12). The cursors begin anew at the end, and the
partitions' rows say that nothing below it is retained; no read goes below that. The records
themselves are deleted in slices afterwards. Those of the due store are garbage, because they may be
many and are slow to delete, and trimming must not wait for them.

Sweeping deletes rows of dropped queues and groups, and the lines of idle producers (R6).
"""

from bisect import bisect_left
from typing import Final

from push import limits
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.ranges import RangeSet
from storage.rules.append import (
    FORGOTTEN_BUCKETS,
    IDLE_BUCKETS,
    LINE_BUCKET_MS,
    line_bucket,
)
from storage.rules.cursor import settled_by_all
from storage.sqlite import codec
from storage.sqlite.codec import Transaction, update
from storage.sqlite.cursors import StoredCursor
from storage.sqlite.state import WriteState

_ROWS: Final = 1000
"""Most records that one call of `sweep_purged` deletes."""
_DUE_ROWS: Final = 128
"""Most scheduled messages that one slice of a purge or of garbage deletes. Each of them is in four
indexes, at a random place of most: a hundred microseconds, for which other tasks wait."""


def purge(state: WriteState, queue_id: str, group_id: str | None) -> int:
    """Do `Storage.purge`, within the writer's batch."""
    state.flush()
    logs = state.queue(queue_id)
    if not logs:
        raise Refused("queue_not_found", f"the storage has no queue {queue_id}")
    state.has_garbage = True
    if group_id is not None:
        return _purge_group(state, logs, group_id)
    count = 0
    for log in logs:
        count += log.messages + log.due_messages
        for stored in state.cursors.of_partition(log.row_id, log.partition):
            state.cursors.replace(stored.place, log.row_id, log.next_offset)
        state.cursors.forget_examined(log.row_id)
        log.drop_all()
        state.changed(log)
        connection = state.transaction.begin()
        connection.execute("DELETE FROM quarantine WHERE id BETWEEN ? AND ?", _below_start(log))
        if log.due_start < log.due_next:
            log.due_start = log.due_next
            connection.execute("INSERT INTO garbage VALUES ('due', ?)", (log.due_store,))
            connection.execute(
                "DELETE FROM due_quarantine WHERE id BETWEEN ? AND ?", _due_before(log.due_store)
            )
    return count


def _purge_group(state: WriteState, logs: list[codec.StoredLog], group_id: str) -> int:
    found = [(log, state.cursors.find(CursorPlace(group_id, log.partition))) for log in logs]
    count = 0
    for log, stored in found:
        if stored is None:
            raise Refused("group_not_found", f"the storage has no group {group_id}")
        count += stored.cursor.unsettled(log.next_offset)
    for log, _ in found:
        place = CursorPlace(group_id, log.partition)
        state.cursors.replace(place, log.row_id, log.next_offset)
    return count


def sweep_purged(state: WriteState, log: codec.StoredLog) -> int:
    """Delete a slice of the records below the partition's start, which no client sees any more.
    Returns the bytes of their headers and payloads. Such records exist only after a purge."""
    return _delete_slice(state.transaction, "record", _below_start(log), _ROWS)


def _delete_slice(
    transaction: Transaction, table: str, between: tuple[int, int], rows_max: int
) -> int:
    """Delete the first of the rows with ids between these two: `rows_max`, or fewer if they have
    many bytes. Returns the bytes of their headers and payloads; 0: there were none."""
    rows = transaction.connection.execute(
        f"SELECT id, max(coalesce(length(header) + length(payload), 0), 1) FROM {table} "
        "WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
        (*between, rows_max),
    ).fetchall()
    freed = last = 0
    for row_id, size in rows:
        last, freed = row_id, freed + size
        if freed >= limits.TRIM_BYTES_PER_COMMIT_MAX:
            break
    if rows:
        transaction.begin().execute(
            f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", (between[0], last)
        )
    return freed


def _below_start(log: codec.StoredLog) -> tuple[int, int]:
    """Return the lowest and the highest row id that records below the partition's start can
    have."""
    low = codec.record_row_id(log.row_id, 0)
    return low, codec.record_row_id(log.row_id, log.start) - 1


def _due_before(row_id: int) -> tuple[int, int]:
    """Return the lowest and the highest row id that scheduled messages of the same partition can
    have which came before this one."""
    return row_id - codec.number_of(row_id), row_id - 1


LOOKS: Final = 128
"""Most records looked at and statements, added up, in one slice of trimming: half a millisecond or
one, and as much more for tasks that share its transaction. If transactions write many records, the
bound is twice their number, because each may have only one slice, and trimming must not fall
behind."""
SLICES: Final = 8
"""Most slices of one `SqliteStorage.trim` that has freed something, so that other partitions have
their turn. While nothing is freed, it goes on to the partition's end."""
_GARBAGE_KINDS: Final = ("partition", "cursor", "due")
_GARBAGE_ROWS: Final = 1000
_CURSOR_TABLES: Final = ("side", "side_line", "retry", "parked", "ended", "dead", "cursor_log")
_KEYS: Final = {
    "side_line": "key_hash",
    "parked": "key_hash",
    "ended": "cursor",
    "dead": "cursor",
    "cursor_log": "number",
}
"""The column by which rows of a cursor are distinguished in each table, if that is not `place`."""
_EMPTY_LINE = update("producer", "id, bucket, resolved, top, sequences, checksum")


class Trimmer:
    """Deletion in slices. Used by the writer's thread alone, between other tasks."""

    def __init__(self, state: WriteState) -> None:
        self._state = state
        self._transaction = state.transaction
        self._connection = state.transaction.connection

    # --- Settled records -----------------------------------------------------------------------

    # enforces: R31
    def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> tuple[int, bool]:
        """Delete one slice of the partition's records, as `Storage.trim` says, and of its passed
        client ids. Returns (bytes freed, whether there may be more to look at)."""
        state = self._state
        state.flush()
        log = state.find(partition)
        if log is None:
            return 0, False
        wall = state.wall_unix_ms()
        more_ids = state.ids.drop_passed(log.row_id, wall)
        purged = sweep_purged(state, log)
        if purged:
            return purged, True
        cursors = state.cursors.of_partition(log.row_id, partition)
        if keep_all and not cursors:
            return 0, more_ids
        examined = state.cursors.examined(log.row_id)
        due_unix_ms = wall - int(retention_s * 1000)
        looks_max = max(LOOKS, 2 * state.records_written)
        slice_ = _Slice(state, log, cursors, examined, due_unix_ms=due_unix_ms, looks_max=looks_max)
        more = slice_.run()
        if slice_.freed:
            self._move_start(log)
            examined.remove(0, log.start - 1)
        return slice_.freed, more or more_ids

    def _move_start(self, log: codec.StoredLog) -> None:
        (first,) = self._connection.execute(
            "SELECT min(id) FROM record WHERE id >= ? AND id < ?",
            (
                codec.record_row_id(log.row_id, log.start),
                codec.record_row_id(log.row_id, log.next_offset),
            ),
        ).fetchone()
        log.start = log.next_offset if first is None else codec.offset_of(first)
        self._state.changed(log)

    # --- Garbage and idle producers ------------------------------------------------------------

    def sweep(self) -> None:
        """Delete one slice of garbage: rows of dropped queues, groups and cursors. If none is left,
        one slice of the lines of idle producers."""
        row = self._connection.execute("SELECT kind, id FROM garbage LIMIT 1").fetchone()
        if row is None:
            self._state.has_garbage = False
            self._sweep_lines()
            return
        kind, row_id = row
        if kind not in _GARBAGE_KINDS or not isinstance(row_id, int):
            self._state.report("damaged: what is left to delete of something that was dropped")
            self._transaction.begin().execute(
                "DELETE FROM garbage WHERE kind NOT IN (?, ?, ?) OR typeof(id) != 'integer'",
                _GARBAGE_KINDS,
            )
            return
        if self._sweep_kind(kind, row_id):
            if kind == "partition":
                self._state.cursors.forget_examined(row_id)
            self._transaction.begin().execute("DELETE FROM garbage WHERE kind = ? AND id = ?", row)

    def _sweep_kind(self, kind: str, row_id: int) -> bool:
        """Delete a slice of what is garbage under this id. Returns whether nothing is left of
        it."""
        if kind == "partition":
            return self._sweep_partition(row_id)
        if kind == "due":
            return not _delete_slice(self._transaction, "due", _due_before(row_id), _DUE_ROWS)
        return self._sweep_cursor(row_id)

    def _sweep_partition(self, row_id: int) -> bool:
        connection = self._transaction.begin()
        ids = codec.record_row_id(row_id, 0), codec.record_row_id(row_id + 1, 0) - 1
        for table, rows_max in (("record", _GARBAGE_ROWS), ("due", _DUE_ROWS)):
            if _delete_slice(self._transaction, table, ids, rows_max):
                return False
        for table in ("quarantine", "due_quarantine"):
            connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", ids)
        for table, key in (("producer", "id"), ("client_id", "digest")):
            gone = connection.execute(
                f"DELETE FROM {table} WHERE partition = ?1 AND {key} IN "
                f"(SELECT {key} FROM {table} WHERE partition = ?1 LIMIT {_GARBAGE_ROWS})",
                (row_id,),
            )
            if gone.rowcount:
                return False
        return True

    def _sweep_cursor(self, row_id: int) -> bool:
        connection = self._transaction.begin()
        for table in _CURSOR_TABLES:
            key = _KEYS.get(table, "place")
            gone = connection.execute(
                f"DELETE FROM {table} WHERE cursor = ?1 AND {key} IN "
                f"(SELECT {key} FROM {table} WHERE cursor = ?1 LIMIT {_GARBAGE_ROWS})",
                (row_id,),
            )
            if gone.rowcount:
                return False
        return True

    # enforces: R6
    def _sweep_lines(self) -> None:
        """Reduce the lines of idle producers to their watermark, and delete those of forgotten ones
        (R6), once per bucket of time. Lines in memory age when they are used."""
        wall = self._state.wall_unix_ms()
        if wall < self._state.swept_until_unix_ms:
            return
        bucket = line_bucket(wall)
        connection = self._transaction.begin()
        forgotten = connection.execute(
            "DELETE FROM producer WHERE id IN (SELECT id FROM producer WHERE bucket < ? LIMIT ?)",
            (bucket - FORGOTTEN_BUCKETS, _GARBAGE_ROWS),
        )
        if forgotten.rowcount == _GARBAGE_ROWS:
            return
        rows = connection.execute(
            f"SELECT {codec.LINE_COLUMNS}, partition, producer FROM producer "
            "WHERE bucket < ? AND sequences != x'' LIMIT ?",
            (bucket - IDLE_BUCKETS, _GARBAGE_ROWS),
        ).fetchall()
        empty: list[codec.Row] = []
        for row in rows:
            *fields, partition_row, producer = row
            line = codec.unpack_line(tuple(fields), partition_row, producer)
            if line is not None:
                seen = line.bucket
                line.wake(bucket)
                line.bucket = seen  # the watermark ages on from when the producer was seen
                empty.append(codec.pack_line(line, partition_row, producer))
        _EMPTY_LINE.execute(connection, empty)
        if len(empty) < _GARBAGE_ROWS:
            self._state.swept_until_unix_ms = (bucket + 1) * LINE_BUCKET_MS


class _Slice:
    """A bounded look at a partition's settled records, deleting what may go."""

    def __init__(
        self,
        state: WriteState,
        log: codec.StoredLog,
        cursors: list[StoredCursor],
        examined: RangeSet,
        *,
        due_unix_ms: int,
        looks_max: int,
    ) -> None:
        self.freed = 0
        self._looks_max = looks_max
        self._state = state
        self._transaction = state.transaction
        self._connection = state.transaction.connection
        self._log = log
        self._cursors = cursors
        self._examined = examined
        self._due_unix_ms = due_unix_ms
        self._looks = 0

    def run(self) -> bool:
        """Delete what may go; returns whether there may be more, because a bound was reached."""
        settled = settled_by_all([stored.cursor for stored in self._cursors], self._log.next_offset)
        for first, last in settled:
            for gap in self._examined.gaps(max(first, self._log.start), last):
                if not self._examine(*gap, settled):
                    return False
                if self._looks >= self._looks_max or self.freed >= limits.TRIM_BYTES_PER_COMMIT_MAX:
                    return True
        return False

    # enforces: R12
    def _examine(self, first: int, last: int, settled: RangeSet) -> bool:
        """Look at the records of a settled range, within the slice's bounds. False: from here on,
        retention has not passed."""
        while first <= last:
            self._looks += 1
            rows = self._rows(first, last)
            if not rows:
                self._examined.add(first, last)
                return True
            aside = self._aside(rows)
            doomed: list[tuple[int, int, int, int]] = []
            for row_id, count, size, published_unix_ms, stored_bytes in rows:
                begin = codec.offset_of(row_id)
                end = begin + count - 1
                if published_unix_ms > self._due_unix_ms:
                    self._delete(doomed)
                    return False
                self._looks += 1
                if settled.covers(begin, end) and not (aside and _any_between(aside, begin, end)):
                    doomed.append((row_id, count, size, stored_bytes))
                    self.freed += stored_bytes
                elif doomed:
                    self._delete(doomed)
                    doomed = []
                if end >= first:
                    self._examined.add(first, min(end, last))
                    first = end + 1
                if self.freed >= limits.TRIM_BYTES_PER_COMMIT_MAX or self._looks >= self._looks_max:
                    self._delete(doomed)
                    return True
            self._delete(doomed)
            if len(rows) < self._looks_max and first <= last:
                self._examined.add(first, last)
                return True
        return True

    def _rows(self, first: int, last: int) -> list[tuple[int, int, int, int, int]]:
        """Return records from the one that holds `first` on. The blobs themselves are not read, so
        no checksum vouches for the numbers, and a record that says to reach into the next one is
        taken to end before it."""
        low = codec.record_row_id(self._log.row_id, 0)
        at = codec.record_row_id(self._log.row_id, first)
        found = self._connection.execute(
            "SELECT id, count, bytes, published_unix_ms, length(header) + length(payload) "
            "FROM record WHERE id >= coalesce((SELECT id FROM record "
            "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id <= ?3 "
            "ORDER BY id LIMIT ?4",
            (low, at, codec.record_row_id(self._log.row_id, last), self._looks_max),
        ).fetchall()
        ends = [row[0] for row in found[1:]]
        ends.append(codec.record_row_id(self._log.row_id, self._log.next_offset))
        rows: list[tuple[int, int, int, int, int]] = []
        for end, (row_id, stated, *values) in zip(ends, found, strict=False):
            size, published_unix_ms, stored_bytes = map(codec.number_in, values)
            count = codec.count_in(stated, end - row_id)
            rows.append((row_id, count, max(size, 0), published_unix_ms, stored_bytes))
        return rows

    def _aside(self, rows: list[tuple[int, int, int, int, int]]) -> list[int]:
        first = codec.offset_of(rows[0][0])
        last = codec.offset_of(rows[-1][0]) + rows[-1][1] - 1
        offsets: list[int] = []
        for stored in self._cursors:
            offsets += self._state.cursors.aside_between(stored, first, last)
        return sorted(offsets)

    def _delete(self, doomed: list[tuple[int, int, int, int]]) -> None:
        """Delete these records, which follow each other, in one statement."""
        if doomed:
            self._transaction.begin().execute(
                "DELETE FROM record WHERE id BETWEEN ? AND ?", (doomed[0][0], doomed[-1][0])
            )
            _, counts, sizes, _ = zip(*doomed, strict=True)
            self._log.remove(sum(counts), sum(sizes))
            self._state.changed(self._log)


def _any_between(offsets: list[int], first: int, last: int) -> bool:
    place = bisect_left(offsets, first)
    return place < len(offsets) and offsets[place] <= last
