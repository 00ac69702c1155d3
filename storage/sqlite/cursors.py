"""The cursors' part of the write state: hot cursors, and their changes that have to be written.

A cursor's row holds all that it has passed, and is written in full while that is short. One with
thousands of holes gets a row in `cursor_log` per commit, with the ranges that are new, until these
are as long as the whole. So the bytes written grow with the settled offsets, not with the held
ones.

Retries, side lines, parked keys, and the ranges that answer late acks have rows of their own beside
the cursor's. They are exceptions: a cursor that only moves on has none of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from push.errors import Refused
from push.places import CursorPlace, Parked, Partition
from push.ranges import Range, RangeSet, dead_of
from push.storage_port import CursorWrite, Owned, Retry, Written
from storage.rules.append import PartitionLog
from storage.rules.cursor import Change, GroupCursor, check_write
from storage.sqlite import codec
from storage.sqlite.codec import Transaction, delete_each, insert, update

_INSERT_RETRY: Final = insert("retry", f"cursor, {codec.RETRY_COLUMNS}, checksum")
_INSERT_SIDE: Final = insert("side", "cursor, place, key_hash, checksum", rows_max=256)
"""Statement for side lines, whose rows come by the hundreds (P8)."""
_INSERT_LINE: Final = insert("side_line", "cursor, key_hash, entries, checksum")
_INSERT_PARKED: Final = insert("parked", "cursor, key_hash, reason, since_unix_ms, checksum")
_INSERT_DEAD: Final = insert("dead", "cursor, ranges, checksum")
_INSERT_ENDED: Final = insert("ended", "cursor, ranges, checksum")
Key = tuple[int, int]
"""(cursor row, offset or key hash)"""


class SideRows:
    """Rows beside the cursors' that wait to be written: retries, side lines, parked keys, dying and
    ended ranges. None, a length of 0 or an empty text: the row is to be deleted."""

    def __init__(self, transaction: Transaction, report: Callable[[str], None]) -> None:
        self._transaction = transaction
        self._report = report
        self._retries: dict[Key, Retry | None] = {}
        self._sides: dict[Key, int | None] = {}
        self._lines: dict[Key, int] = {}
        self._parked: dict[Key, Parked | None] = {}
        self._ended: dict[int, bytes] = {}
        self._dead: dict[int, str] = {}
        self.has_changed = False
        """Whether `flush` may have something to write."""

    def load(self, row_id: int, cursor: GroupCursor, name: str) -> None:
        """Add to a cursor what lies in the rows beside its own row, whose id is `row_id`; `name` is
        for reports of damage."""
        select = self._transaction.connection.execute
        for *retry, checksum in select(
            f"SELECT {codec.RETRY_COLUMNS}, checksum FROM retry WHERE cursor = ?", (row_id,)
        ).fetchall():
            if codec.retry_checksum(row_id, *retry) == checksum:
                cursor.put_retry(codec.unpack_retry(*retry))
            else:
                self._report(f"damaged: attempts of a message in {name}; they are counted anew")
        lines: list[codec.Found] = select(
            "SELECT key_hash, entries, checksum FROM side_line WHERE cursor = ?", (row_id,)
        ).fetchall()
        if any(codec.row_checksum(row_id, *line) != checksum for *line, checksum in lines):
            self._report(f"damaged: the length of a side line in {name}; all are counted anew")
            lines = select(
                "SELECT key_hash, count(*) FROM side WHERE cursor = ? "
                "AND typeof(key_hash) = 'integer' GROUP BY key_hash",
                (row_id,),
            ).fetchall()
        cursor.lines.update((codec.unsigned(line[0]), line[1]) for line in lines)
        for *parked, checksum in select(
            "SELECT key_hash, reason, since_unix_ms, checksum FROM parked WHERE cursor = ?",
            (row_id,),
        ).fetchall():
            signed_hash, reason, since_unix_ms = parked
            if codec.row_checksum(row_id, *parked) != checksum:
                self._report(f"damaged: why a key is parked in {name}")
                if not isinstance(signed_hash, int):
                    continue
                reason = reason if isinstance(reason, str) else ""
                since_unix_ms = codec.number_in(since_unix_ms)
            key_hash = codec.unsigned(signed_hash)
            cursor.parked[key_hash] = Parked(key_hash, reason, since_unix_ms)
        self._load_dead(row_id, cursor, name)
        for ranges, checksum in select(
            "SELECT ranges, checksum FROM ended WHERE cursor = ?", (row_id,)
        ).fetchall():
            if codec.row_checksum(row_id, blob=ranges) == checksum:
                cursor.ended = codec.unpack_ranges(ranges)
            else:
                self._report(f"damaged: what has ended in {name}; late acks of it count")

    def _load_dead(self, row_id: int, cursor: GroupCursor, name: str) -> None:
        for ranges, checksum in self._transaction.connection.execute(
            "SELECT ranges, checksum FROM dead WHERE cursor = ?", (row_id,)
        ).fetchall():
            if codec.row_checksum(row_id, ranges) == checksum:
                cursor.dead = dead_of(ranges)
            else:
                self._report(f"damaged: what goes to the dead letters in {name}: it comes again")

    def find_aside(self, row_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return (offset, key hash) of the offsets in first..last that are in a side line."""
        if self._sides:
            self._flush_sides()
        rows = self._transaction.connection.execute(
            "SELECT place, key_hash, checksum FROM side "
            "WHERE cursor = ? AND place BETWEEN ? AND ? ORDER BY place",
            (row_id, first, last),
        ).fetchall()
        for offset, key_hash, checksum in rows:
            if codec.row_checksum(row_id, offset, key_hash) != checksum:
                self._report(f"damaged: an entry of a side line, offset {offset}")
        return [
            (offset, codec.unsigned(codec.number_in(key_hash)))
            for offset, key_hash, _ in rows
            if isinstance(offset, int)
        ]

    def note(self, row_id: int, cursor: GroupCursor, change: Change) -> None:
        """Note changes of a cursor that have to be written."""
        self.has_changed = True
        for retry in change.retries:
            self._retries[(row_id, retry.offset)] = retry
        for offset in change.retries_gone:
            self._retries[(row_id, offset)] = None
        if change.aside or change.aside_gone:
            sides = self._sides
            for offset in change.aside_gone:
                sides[(row_id, offset)] = None
            for offset, key_hash in change.aside.items():
                sides[(row_id, offset)] = key_hash
            for key_hash in {*change.aside.values(), *change.aside_gone.values()}:
                self._lines[(row_id, key_hash)] = cursor.lines.get(key_hash, 0)
        for parked in change.parked:
            self._parked[(row_id, parked.key_hash)] = parked
        for key_hash in change.unparked:
            self._parked[(row_id, key_hash)] = None
        if change.dead:
            self._dead[row_id] = cursor.dead.text()
        if change.ended:
            self._ended[row_id] = codec.pack_ranges(cursor.ended)

    def flush(self) -> None:
        """Write the rows, inside the batch's transaction."""
        if self._sides or self._lines:
            self._flush_sides()
        if self._retries:
            self._flush_retries()
        if self._parked:
            self._flush_parked()
        if self._dead:
            self._flush_dead()
        if self._ended:
            rows = [
                (row, ranges, codec.row_checksum(row, blob=ranges))
                for row, ranges in self._ended.items()
            ]
            _INSERT_ENDED.execute(self._transaction.begin(), rows)
            self._ended.clear()
        self.has_changed = False

    def _flush_dead(self) -> None:
        connection = self._transaction.begin()
        rows: list[codec.Row] = [
            (row, ranges, codec.row_checksum(row, ranges))
            for row, ranges in self._dead.items()
            if ranges
        ]
        _INSERT_DEAD.execute(connection, rows)
        for row, ranges in self._dead.items():
            if not ranges:
                connection.execute("DELETE FROM dead WHERE cursor = ?", (row,))
        self._dead.clear()

    def _flush_retries(self) -> None:
        connection = self._transaction.begin()
        rows: list[codec.Row] = []
        for (row, _), retry in self._retries.items():
            if retry is not None:
                values = codec.pack_retry(retry)
                rows.append((row, *values, codec.retry_checksum(row, *values)))
        _INSERT_RETRY.execute(connection, rows)
        gone = [key for key, retry in self._retries.items() if retry is None]
        delete_each(connection, "retry", "cursor", "place", gone)
        self._retries.clear()

    def _flush_parked(self) -> None:
        connection = self._transaction.begin()
        rows: list[codec.Row] = []
        gone: list[Key] = []
        for (row, key_hash), parked in self._parked.items():
            key = codec.signed(key_hash)
            if parked is None:
                gone.append((row, key))
            else:
                reason = parked.reason.encode(errors="replace").decode()  # no lone surrogates
                values = (key, reason, parked.since_unix_ms)
                rows.append((row, *values, codec.row_checksum(row, *values)))
        _INSERT_PARKED.execute(connection, rows)
        delete_each(connection, "parked", "cursor", "key_hash", gone)
        self._parked.clear()

    def _flush_sides(self) -> None:
        connection = self._transaction.begin()
        rows: list[codec.Row] = []
        gone: list[Key] = []
        for place, key_hash in self._sides.items():
            if key_hash is None:
                gone.append(place)
            else:
                fields = (*place, codec.signed(key_hash))
                rows.append((*fields, codec.row_checksum(*fields)))
        _INSERT_SIDE.execute(connection, rows)
        delete_each(connection, "side", "cursor", "place", gone)
        self._sides.clear()
        lengths = [(row, codec.signed(key), n) for (row, key), n in self._lines.items()]
        _INSERT_LINE.execute(
            connection,
            [(*length, codec.row_checksum(*length)) for length in lengths if length[2]],
        )
        gone = [(row, key) for row, key, n in lengths if not n]
        delete_each(connection, "side_line", "cursor", "key_hash", gone)
        self._lines.clear()


CURSORS_CACHED_WEIGHT_MAX: Final = 2_000_000
"""Bound of the entries of all cached cursors together (ranges, retries, lines, parked keys), ~100
bytes each. One cursor alone may be larger."""
WRITTEN_WHOLE_BYTES_MAX: Final = 2048
_EPOCH_SALVAGED: Final = 1 << 32
"""Added to the epoch of a cursor whose row was damaged, because the epoch in the row may be
damaged, too. The sum is above any epoch that the cursor has had."""

_CURSOR: Final = "id, epoch, token, assignment, floor, passed, checksum"
_INSERT_CURSOR = insert("cursor", f"{_CURSOR}, version, partition, group_id")
_UPDATE_CURSOR = update("cursor", f"{_CURSOR}, version")
_INSERT_LOG = insert("cursor_log", "cursor, number, passed, checksum")


@dataclass(slots=True)
class StoredCursor:
    """A cursor with its row."""

    place: CursorPlace
    partition_row: int
    row_id: int
    cursor: GroupCursor
    fresh: list[Range] = field(default_factory=list)
    """Ranges that the cursor has passed since it was last written."""
    fence_changed: bool = False
    whole_bytes: int = 0
    log_bytes: int = 0
    log_rows: int = 0


class CursorWriteState:
    """Cursors that are cached in memory, by place, with their changes that wait to be written.
    `find_log` returns the log of a partition; `report` gets a sentence about damage."""

    def __init__(
        self,
        transaction: Transaction,
        find_log: Callable[[Partition], PartitionLog | None],
        report: Callable[[str], None],
    ) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self._find_log = find_log
        self._report = report
        self._cursors: OrderedDict[CursorPlace, StoredCursor] = OrderedDict()
        self._weights: dict[CursorPlace, int] = {}
        self.weight = 0
        """Memory that all cached cursors take, in entries."""
        self._changed: dict[int, StoredCursor] = {}
        self._side_rows = SideRows(transaction, report)
        self._examined: dict[int, RangeSet] = {}
        rows = self._connection.execute(
            "SELECT max(id) FROM cursor WHERE id < ?1 UNION ALL "
            "SELECT max(id) FROM garbage WHERE kind = 'cursor' AND id < ?1",
            (codec.ROW_IDS_MAX,),
        ).fetchall()
        self._next_row = 1 + max(row[0] or 0 for row in rows)

    # --- Loading -------------------------------------------------------------------------------

    def find(self, place: CursorPlace) -> StoredCursor | None:
        """Return the cursor of a group in a partition; None: there is none."""
        stored = self._cursors.get(place)
        if stored is not None:
            self._cursors.move_to_end(place)
            return stored
        log = self._find_log(place.partition)
        if log is None:
            return None
        row = self._connection.execute(
            f"SELECT {_CURSOR} FROM cursor WHERE partition = ? AND group_id = ?",
            (log.row_id, place.group_id),
        ).fetchone()
        if row is None:
            return None
        stored = self._load(place, log, row)
        self._cursors[place] = stored
        self._weigh(stored)
        return stored

    def _load(self, place: CursorPlace, log: PartitionLog, row: codec.Found) -> StoredCursor:
        *fields, blob, checksum = row
        row_id, epoch, token, assignment, floor = fields
        if codec.row_checksum(place.group_id, log.row_id, *fields, blob=blob) != checksum:
            return self._salvage(place, log, row_id, epoch)
        cursor = GroupCursor(floor)
        cursor.epoch, cursor.token, cursor.assignment = epoch, token, assignment
        cursor.passed = codec.unpack_ranges(blob)
        stored = StoredCursor(place, log.row_id, row_id, cursor, whole_bytes=len(blob))
        select = self._connection.execute
        for number, ranges, checksum in select(
            "SELECT number, passed, checksum FROM cursor_log WHERE cursor = ? ORDER BY number",
            (row_id,),
        ).fetchall():
            stored.log_rows = codec.number_in(number, stored.log_rows) + 1
            stored.log_bytes += len(codec.bytes_in(ranges))
            if codec.row_checksum(row_id, number, blob=ranges) != checksum:
                self._damaged(place, "a settlement: what it named comes again")
            else:
                for first, last in codec.unpack_ranges(ranges):
                    cursor.passed.add(first, last)
        cursor.floor = cursor.passed.pop_prefix(cursor.floor)
        self._side_rows.load(row_id, cursor, _name(place))
        return stored

    def _salvage(
        self, place: CursorPlace, log: PartitionLog, row_id: int, epoch: int
    ) -> StoredCursor:
        """Begin a cursor whose row is damaged anew at the earliest retained message. Settled
        messages come again, and nothing is lost (P1 before P5)."""
        self._damaged(place, "a cursor: the group begins anew at the earliest message")
        cursor, epoch = GroupCursor(log.start), codec.number_in(epoch)
        cursor.epoch = _EPOCH_SALVAGED + (epoch if 0 <= epoch < _EPOCH_SALVAGED << 8 else 0)
        self._side_rows.load(row_id, cursor, _name(place))
        cursor.forget_ended()  # its messages come again
        for offset, _ in self._side_rows.find_aside(row_id, log.start, log.next_offset):
            cursor.passed.add(offset, offset)
        cursor.floor = cursor.passed.pop_prefix(cursor.floor)
        stored = StoredCursor(place, log.row_id, row_id, cursor, fence_changed=True, log_rows=1)
        self._changed[row_id] = stored
        return stored

    def _damaged(self, place: CursorPlace, what: str) -> None:
        self._report(f"damaged: {what} ({_name(place)})")

    # --- Acts ----------------------------------------------------------------------------------

    def create(self, place: CursorPlace, partition_row: int, floor: int) -> None:
        """Make the cursor; nothing happens if it exists already."""
        if self.find(place) is None:
            self._insert(place, partition_row, GroupCursor(floor))

    def _insert(self, place: CursorPlace, partition_row: int, cursor: GroupCursor) -> None:
        stored = StoredCursor(place, partition_row, self._next_row, cursor)
        self._next_row += 1
        key = (codec.CURSOR_VERSION, partition_row, place.group_id)
        _INSERT_CURSOR.execute(self._transaction.begin(), [(*_pack(stored), *key)])
        self.forget_examined(partition_row)

    def drop(self, place: CursorPlace) -> None:
        """Drop the cursor; its rows are garbage then. Nothing happens if it does not exist. The
        caller has flushed the write state before."""
        stored = self.find(place)
        if stored is None:
            return
        connection = self._transaction.begin()
        connection.execute("INSERT INTO garbage VALUES ('cursor', ?)", (stored.row_id,))
        connection.execute("DELETE FROM cursor WHERE id = ?", (stored.row_id,))
        self._evict(place)
        self._changed.pop(stored.row_id, None)
        self.forget_examined(stored.partition_row)

    def replace(self, place: CursorPlace, partition_row: int, floor: int) -> None:
        """Replace an existing cursor by a fresh one with a row of its own, so that the old one's
        rows can be deleted in slices. The caller has flushed the write state before."""
        stored = self.find(place)
        if stored is None:
            raise AssertionError("the caller has found it")
        self.drop(place)
        self._insert(place, partition_row, stored.cursor.fresh(floor))

    # enforces: R15
    def own(self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int) -> Owned:
        """Raise the epoch for a new owner (R14, R15)."""
        stored = self.find(place)
        log = self._find_log(place.partition)
        if stored is None or log is None:
            raise Refused("group_not_found", f"the storage has no group {place.group_id} here")
        cursor = stored.cursor
        previous = cursor.own(token=token, assignment=assignment, epoch_seen=epoch_seen)
        stored.fence_changed = True
        self._changed[stored.row_id] = stored
        return Owned(cursor.epoch, cursor.snapshot(), log.next_offset, log.generation, previous)

    # enforces: P7
    def write(self, writes: Sequence[CursorWrite]) -> list[Written]:
        """Apply fenced changes. If `check_write` refuses one, none is applied, and Refused is
        raised."""
        found: list[StoredCursor | None] = []
        for write in writes:
            stored, log = self.find(write.place), self._find_log(write.place.partition)
            if stored is not None and log is not None:
                check_write(write, log.next_offset)
            found.append(stored)
        answers: list[Written] = []
        for write, stored in zip(writes, found, strict=True):
            if stored is None:
                answers.append(Written(fenced=True))
                continue
            find_aside = partial(self._side_rows.find_aside, stored.row_id)
            change = stored.cursor.apply(write, find_aside)
            if not change.written.fenced:
                self._note(stored, change)
            answers.append(change.written)
        return answers

    def _note(self, stored: StoredCursor, change: Change) -> None:
        if change.passed:
            stored.fresh += change.passed
            self._changed[stored.row_id] = stored
        has_lines = change.aside or change.aside_gone or change.parked or change.unparked
        if not (has_lines or change.retries or change.retries_gone or change.ended or change.dead):
            return
        self._side_rows.note(stored.row_id, stored.cursor, change)
        examined = self._examined.get(stored.partition_row) if change.aside_gone else None
        if examined is not None:
            for offset in change.aside_gone:
                examined.remove(offset, offset)
        self._weigh(stored)

    # --- Settled by all ------------------------------------------------------------------------

    def of_partition(self, partition_row: int, partition: Partition) -> list[StoredCursor]:
        """Return every group's cursor in the partition. Raises Refused if damage has left one
        without a name: what it needs is not known."""
        rows = self._connection.execute(
            "SELECT group_id FROM cursor WHERE partition = ?", (partition_row,)
        ).fetchall()
        if not all(codec.is_name(name) for (name,) in rows):
            sentence = (
                f"the name of a group in partition {partition.number} of {partition.queue_id} is "
                "damaged"
            )
            self._report(sentence)
            raise Refused("storage_unavailable", sentence)
        found = [self.find(CursorPlace(group_id, partition)) for (group_id,) in rows]
        return [stored for stored in found if stored is not None]

    def examined(self, partition_row: int) -> RangeSet:
        """Return the offsets that trimming need not look at again; the trimmer adds to them. An
        offset that is settled in a side line is taken out, because its record may be deleted. All
        of them are forgotten when the partition gets, loses or resets a cursor."""
        return self._examined.setdefault(partition_row, RangeSet())

    def forget_examined(self, partition_row: int) -> None:
        """Forget which offsets of the partition were examined, so that trimming looks at all of
        them again."""
        self._examined.pop(partition_row, None)

    def aside_between(self, stored: StoredCursor, first: int, last: int) -> list[int]:
        """Return the offsets in first..last that are in side lines of the cursor, ascending."""
        if not stored.cursor.lines:
            return []
        return [offset for offset, _ in self._side_rows.find_aside(stored.row_id, first, last)]

    # --- Writing down --------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what has changed, inside the batch's transaction."""
        if self._changed:
            self._flush_cursors()
        if self._side_rows.has_changed:
            self._side_rows.flush()

    def _flush_cursors(self) -> None:
        whole: list[codec.Row] = []
        logs: list[codec.Row] = []
        rewritten: list[int] = []
        connection = self._transaction.begin()
        for row_id, stored in self._changed.items():
            size = 16 * len(stored.cursor.passed)
            logged = stored.log_bytes + 16 * len(stored.fresh)
            if stored.fence_changed or size <= WRITTEN_WHOLE_BYTES_MAX or logged >= size:
                whole.append(_pack(stored))
                if stored.log_rows:
                    rewritten.append(row_id)
                stored.whole_bytes, stored.log_bytes, stored.log_rows = size, 0, 0
            else:
                blob = codec.pack_ranges(RangeSet(stored.fresh))
                checksum = codec.row_checksum(row_id, stored.log_rows, blob=blob)
                logs.append((row_id, stored.log_rows, blob, checksum))
                stored.log_bytes, stored.log_rows = logged, stored.log_rows + 1
            stored.fresh, stored.fence_changed = [], False
            self._weigh(stored)
        if rewritten:
            places = ",".join("?" * len(rewritten))
            connection.execute(f"DELETE FROM cursor_log WHERE cursor IN ({places})", rewritten)
        if whole:
            _UPDATE_CURSOR.execute(connection, [(*row, codec.CURSOR_VERSION) for row in whole])
        if logs:
            _INSERT_LOG.execute(connection, logs)
        self._changed.clear()

    # --- The cache -----------------------------------------------------------------------------

    def _weigh(self, stored: StoredCursor) -> None:
        weight = stored.cursor.weight()
        self.weight += weight - self._weights.get(stored.place, 0)
        self._weights[stored.place] = weight

    def _evict(self, place: CursorPlace) -> None:
        self._cursors.pop(place, None)
        self.weight -= self._weights.pop(place, 0)

    def forget_queue(self, queue_id: str) -> None:
        """Forget the cursors of a queue that was deleted."""
        for place in [p for p in self._cursors if p.partition.queue_id == queue_id]:
            self._evict(place)

    def shrink(self) -> None:
        """Keep the cache within its bound by dropping the cursors whose last use is longest ago.
        Called after a commit, when nothing waits to be written."""
        while self.weight > CURSORS_CACHED_WEIGHT_MAX and len(self._cursors) > 1:
            self._evict(next(iter(self._cursors)))


def _name(place: CursorPlace) -> str:
    partition = place.partition
    return f"group {place.group_id}, partition {partition.number} of {partition.queue_id}"


def _pack(stored: StoredCursor) -> codec.Row:
    cursor = stored.cursor
    blob = codec.pack_ranges(cursor.passed)
    row = (stored.row_id, cursor.epoch, cursor.token, cursor.assignment, cursor.floor)
    checksum = codec.row_checksum(stored.place.group_id, stored.partition_row, *row, blob=blob)
    return (*row, blob, checksum)
