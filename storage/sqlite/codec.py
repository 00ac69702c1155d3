"""Rows of the embedded store: columns, checksums, and statements that write many rows at a time.

Each kind of row is packed and unpacked here alone. Numbers in blobs are 8 bytes, little-endian,
columns one after another: a set of ten thousand packs and unpacks without a loop.

Every step of a statement gives up the GIL and has to get it back from the event loop. One
statement with thirty rows costs one such step, thirty statements cost thirty.
"""

import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from push.places import Partition
from push.ranges import RangeSet
from push.record import Record, RecordDamaged
from push.storage_port import Retry, Sealer
from storage.rules.append import Effect, PartitionLog, ProducerLine

OFFSET_BITS: Final = 40
_CHUNK: Final = 5 * 1024
"""Bytes given to zlib at once, of blobs up to _LARGE. For more than 5 KiB zlib gives up the GIL,
and getting it back from a busy event loop takes up to the interpreter's switch interval. In pieces,
a checksum costs microseconds and not milliseconds."""
_LARGE: Final = 128 * 1024
CURSOR_VERSION: Final = 1
Row = tuple[int | str | bytes | None, ...]
Found = tuple[Any, ...]
"""A row of a result, with the columns of the statement."""


class Transaction:
    """The writer's connection, and the transaction of its present batch."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def begin(self) -> sqlite3.Connection:
        """Return the connection inside the batch's transaction, for statements that change
        something."""
        if not self.connection.in_transaction:
            self.connection.execute("BEGIN IMMEDIATE")
        return self.connection


def row_checksum(*fields: int | str | bytes | None, blob: bytes = b"") -> int:
    """Return the checksum of a row; a large column goes into `blob`. Damage may have given any of
    them another type."""
    if not isinstance(blob, bytes):
        blob = repr(blob).encode()
    return zlib.crc32(blob, zlib.crc32(repr(fields).encode()))


def text_of(raw: bytes) -> str:
    """Return the text of a column: the `text_factory` of all connections. Damage may have left a
    text that is not UTF-8, which SQLite's module would refuse to read, with all its row."""
    return raw.decode("utf-8", "replace")


def is_name(value: object) -> bool:
    """Whether a column that no checksum has vouched for is a text, as far as that shows."""
    return isinstance(value, str) and "\ufffd" not in value


def number_in(value: object, otherwise: int = 0) -> int:
    """Return the number of a column that no checksum has vouched for; `otherwise` if damage has
    given it another type."""
    return value if isinstance(value, int) else otherwise


def count_in(value: object, room: int) -> int:
    """Return the number of messages of a record whose checksum is not looked at. `room`: the number
    of offsets up to the next record, which is the answer if damage has left no number that fits."""
    count = number_in(value)
    return count if 0 < count <= room else room


def bytes_in(value: object) -> bytes:
    """Return the bytes of a column that no checksum has vouched for, whatever type damage has given
    it."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b""


ROW_IDS_MAX: Final = 1 << 53
"""Bound of the row numbers that are given. One above it comes from damage."""


def signed(number: int) -> int:
    """Return an unsigned 64-bit hash as the signed number that SQLite keeps."""
    return number - (1 << 64) if number >> 63 else number


def unsigned(number: int) -> int:
    """Return the hash that `signed` was given."""
    return number & ((1 << 64) - 1)


def pack_ranges(ranges: RangeSet) -> bytes:
    """Pack ranges into a blob of two columns: all first offsets, then all last ones."""
    firsts, lasts = ranges.columns()
    return array("Q", firsts).tobytes() + array("Q", lasts).tobytes()


def unpack_ranges(blob: bytes) -> RangeSet:
    """Unpack ranges; the inverse of `pack_ranges`."""
    half = len(blob) // 2
    return RangeSet(zip(array("Q", blob[:half]), array("Q", blob[half:]), strict=True))


# --- Record -----------------------------------------------------------------------------------


RECORD_COLUMNS: Final = "id, count, published_unix_ms, bytes, checksum, skips, header, payload"
CHECKSUM_REASON: Final = "the checksum does not match"


def record_row_id(partition_row: int, offset: int) -> int:
    """Return the row id of a record that begins at this offset, whether it exists or not."""
    return partition_row << OFFSET_BITS | offset


def offset_of(row_id: int) -> int:
    """Return the first offset of the record in this row."""
    return row_id & ((1 << OFFSET_BITS) - 1)


def pack_record(
    partition_row: int, effect: Effect, published_unix_ms: int, header: bytes, sealed: bytes
) -> Row:
    """Return the row of RECORD_COLUMNS. Skips are the indexes of messages that got no offset; NULL
    if every message got one."""
    appended = effect.appended
    row_id = record_row_id(partition_row, appended.first)
    fields = (appended.count, published_unix_ms, effect.size)
    skips = array("I", appended.skips).tobytes() if appended.skips else None
    checksum = record_checksum(row_id, fields, skips or b"", header, sealed)
    return (row_id, *fields, checksum, skips, header, sealed)


# enforces: P13, R30
def unpack_record(row: Found, partition: Partition, sealer: Sealer) -> Record:
    """Return the opened record of a row of RECORD_COLUMNS.

    Raises:
        RecordDamaged: with the reason (R30).
        Refused: storage_unavailable: its key cannot be had at the moment.
    """
    if not is_record_sound(row):
        raise RecordDamaged(CHECKSUM_REASON)
    row_id, _, _, _, _, skips, header, sealed = row
    payload = sealer.unseal(partition, header, sealed)
    try:
        indexes = tuple(array("I", skips)) if skips else ()
        return Record.load(offset_of(row_id), header, payload, indexes)
    except ValueError as error:
        raise RecordDamaged(str(error)) from None


def is_record_sound(row: Found) -> bool:
    """Whether a row of RECORD_COLUMNS is as it was written."""
    row_id, count, published_unix_ms, size, checksum, skips, header, payload = row
    fields = (count, published_unix_ms, size)
    try:
        return bool(record_checksum(row_id, fields, skips or b"", header, payload) == checksum)
    except TypeError:  # a column has another type, or a page of another table is in its place
        return False


def record_checksum(row_id: int, fields: tuple[int | bytes | None, ...], *blobs: bytes) -> int:
    """Return the checksum of a record's row: its place, its small columns, its bytes."""
    crc = zlib.crc32(repr((row_id, fields)).encode())
    for blob in blobs:
        if len(blob) <= _CHUNK or len(blob) > _LARGE:
            crc = zlib.crc32(blob, crc)
        else:
            view = memoryview(blob)
            for place in range(0, len(blob), _CHUNK):
                crc = zlib.crc32(view[place : place + _CHUNK], crc)
    return crc


# --- Scheduled message -------------------------------------------------------------------------


def due_row_id(partition_row: int, number: int) -> int:
    """Return the row id of the scheduled message of this number, whether it exists or not."""
    return partition_row << OFFSET_BITS | number


def number_of(row_id: int) -> int:
    """Return the number of the scheduled message in this row."""
    return row_id & ((1 << OFFSET_BITS) - 1)


# --- Retry ------------------------------------------------------------------------------------


RETRY_COLUMNS: Final = "place, attempts, due_unix_ms, rejected, reason"


def pack_retry(retry: Retry) -> tuple[int, int, int, int, bytes | None]:
    """Return the row of RETRY_COLUMNS."""
    return retry.offset, retry.attempts, retry.due_unix_ms, int(retry.rejected), retry.nack


def unpack_retry(
    offset: int, attempts: int, due_unix_ms: int, rejected: int, reason: bytes | None
) -> Retry:
    """Return the retry of a row; the inverse of `pack_retry`."""
    return Retry(offset, attempts, due_unix_ms, reason, bool(rejected))


def retry_checksum(cursor: int, *columns: Any) -> int:
    """Return the checksum of a retry's row: the row id of its cursor, and RETRY_COLUMNS. If the
    last two columns are empty, it is the checksum that schema version 1 had."""
    *numbers, rejected, reason = columns
    if not rejected and reason is None:
        return row_checksum(cursor, *numbers)
    return row_checksum(cursor, *numbers, rejected, reason is None, blob=reason or b"")


# --- Partition ---------------------------------------------------------------------------------


PARTITION_CHANGES: Final = (
    "id, generation, next_offset, start, messages, bytes, acts, sealed_at, successors, "
    "due_next, due_start, due_messages, due_bytes, checksum"
)
PARTITION_COLUMNS: Final = f"{PARTITION_CHANGES}, queue_id, number"


@dataclass(slots=True)
class StoredLog(PartitionLog):
    """A partition's log, and the column that its row has beside it."""

    due_start: int = 0
    """The number below which a purge has dropped all scheduled messages."""

    @property
    def due_store(self) -> int:
        """The `store` in the rows of the messages that wait; rows of purged ones have another."""
        return due_row_id(self.row_id, self.due_start)


# enforces: R2
def pack_partition(log: StoredLog) -> Row:
    """Return the row of PARTITION_CHANGES."""
    row = (
        log.row_id,
        log.generation,
        log.next_offset,
        log.start,
        log.messages,
        log.bytes,
        log.acts,
        log.sealed_at,
        json.dumps([list(one) for one in log.successors]) if log.successors else "[]",
    )
    due = (log.due_next, log.due_start, log.due_messages, log.due_bytes)
    return (*row, *due, _partition_checksum(log.partition, row, due))


def _partition_checksum(partition: Partition, row: Row, due: Row) -> int:
    """Return the checksum of a partition's row. Without anything in `due`, it is the checksum that
    schema version 3 had."""
    return row_checksum(*partition, *row, *due) if any(due) else row_checksum(*partition, *row)


def unpack_partition(row: Found) -> StoredLog | None:
    """Return the log of a row of PARTITION_COLUMNS; None: the row is damaged."""
    *fields, due_next, due_start, due_messages, due_bytes, checksum, queue_id, number = row
    due = (due_next, due_start, due_messages, due_bytes)
    if _partition_checksum(Partition(queue_id, number), tuple(fields), due) != checksum:
        return None
    row_id, generation, next_offset, start, messages, size, acts, sealed_at, successors = fields
    return StoredLog(
        partition=Partition(queue_id, number),
        row_id=row_id,
        generation=generation,
        next_offset=next_offset,
        start=start,
        sealed_at=sealed_at,
        successors=tuple(Partition(*pair) for pair in json.loads(successors)),
        messages=messages,
        bytes=size,
        acts=acts,
        due_next=due_next,
        due_messages=due_messages,
        due_bytes=due_bytes,
        due_start=due_start,
    )


# --- Producer line -----------------------------------------------------------------------------


LINE_COLUMNS: Final = "id, bucket, resolved, top, sequences, checksum"


def pack_line(line: ProducerLine, partition_row: int, producer: bytes) -> Row:
    """Return the row of LINE_COLUMNS."""
    blob = line.sequences.tobytes() + line.offsets.tobytes()
    row = (line.row_id, line.bucket, line.resolved, line.top)
    return (*row, blob, row_checksum(partition_row, producer, *row, blob=blob))


def unpack_line(row: Found, partition_row: int, producer: bytes) -> ProducerLine | None:
    """Return the line of a row of LINE_COLUMNS; None: the row is damaged."""
    *fields, blob, checksum = row
    if row_checksum(partition_row, producer, *fields, blob=blob) != checksum:
        return None
    row_id, bucket, resolved, top = fields
    line = ProducerLine(bucket, resolved=resolved, top=top, row_id=row_id)
    half = len(blob) // 2
    line.sequences.frombytes(blob[:half])
    line.offsets.frombytes(blob[half:])
    return line


# --- Statements --------------------------------------------------------------------------------


ROWS_MAX: Final = 64
"""Most rows of one statement, where no other bound is given. Each number of rows is a statement of
its own in SQLite's cache."""


class BatchStatement:
    """Statement over any number of rows, `rows_max` at a time: `head` (?,…),(?,…),… `tail`."""

    def __init__(self, head: str, columns: int, tail: str = "", rows_max: int = ROWS_MAX) -> None:
        self._head = head
        self._rows_max = rows_max
        self._row = f"({','.join('?' * columns)})"
        self._tail = tail
        self._texts: dict[int, str] = {}

    def execute(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Run the statement over these rows. Without any, nothing happens."""
        for low in range(0, len(rows), self._rows_max):
            some = rows[low : low + self._rows_max]
            text = self._texts.get(len(some))
            if text is None:
                places = ",".join([self._row] * len(some))
                text = self._texts[len(some)] = f"{self._head} {places} {self._tail}"
            connection.execute(text, tuple(chain.from_iterable(some)))


def insert(table: str, columns: str, rows_max: int = ROWS_MAX) -> BatchStatement:
    """Return an INSERT OR REPLACE into these columns."""
    count = columns.count(",") + 1
    return BatchStatement(
        f"INSERT OR REPLACE INTO {table} ({columns}) VALUES", count, rows_max=rows_max
    )


def update(table: str, columns: str) -> BatchStatement:
    """Return an UPDATE of rows by their id; the first column is the id. An upsert would first look
    for conflicts in every other index."""
    names = [name.strip() for name in columns.split(",")]
    changes = ", ".join(f"{name} = v.column{i}" for i, name in enumerate(names[1:], 2))
    return BatchStatement(
        f"UPDATE {table} SET {changes} FROM (VALUES",
        len(names),
        f") AS v WHERE {table}.{names[0]} = v.column1",
    )


def delete_each(
    connection: sqlite3.Connection,
    table: str,
    owner: str,
    key: str,
    gone: Iterable[tuple[int, int]],
) -> None:
    """DELETE the rows of these (owner, key), with one statement per owner, because SQLite scans the
    table for a list of pairs."""
    by_owner: dict[int, list[int]] = {}
    for owner_id, key_id in gone:
        by_owner.setdefault(owner_id, []).append(key_id)
    for owner_id, keys in by_owner.items():
        for low in range(0, len(keys), ROWS_MAX):
            some = keys[low : low + ROWS_MAX]
            places = ",".join("?" * len(some))
            connection.execute(
                f"DELETE FROM {table} WHERE {owner} = ? AND {key} IN ({places})",
                (owner_id, *some),
            )
