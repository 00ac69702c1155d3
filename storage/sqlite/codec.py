"""Rows of the embedded store: their checksums, and columns packed into blobs. Pure.

Numbers in blobs are 8 bytes, little-endian, columns one after another: a set of ten thousand
packs and unpacks without a loop.

SQL statements over many rows at a time.

Every step of a statement gives up the GIL and has to get it back from the event loop. One
statement with thirty rows costs one such step, thirty statements cost thirty.
"""

import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from push.places import Partition
from push.ranges import RangeSet
from push.storage_port import Retry
from storage.rules.append import PartitionLog
from storage.rules.dedup import ProducerLine

OFFSET_BITS: Final = 40
_CHUNK: Final = 5 * 1024
"""zlib gives up the GIL for more than 5 KiB at once, and getting it back from a busy event loop
takes up to its switch interval: in pieces, a checksum costs microseconds and not milliseconds."""
_LARGE: Final = 128 * 1024
CURSOR_VERSION: Final = 1
Row = tuple[int | str | bytes | None, ...]
Found = tuple[Any, ...]
"""A row that SQLite answers: its columns are what the statement asked for."""


def row_checksum(*fields: int | str | bytes | None, blob: bytes = b"") -> int:
    """The checksum of a row; a large column goes into `blob`."""
    return zlib.crc32(blob, zlib.crc32(repr(fields).encode()))


def record_checksum(row_id: int, fields: tuple[int, ...], *blobs: bytes) -> int:
    """The checksum of a record's row: its place, its numbers, its bytes."""
    crc = zlib.crc32(repr((row_id, fields)).encode())
    for blob in blobs:
        if len(blob) <= _CHUNK or len(blob) > _LARGE:
            crc = zlib.crc32(blob, crc)
        else:
            view = memoryview(blob)
            for place in range(0, len(blob), _CHUNK):
                crc = zlib.crc32(view[place : place + _CHUNK], crc)
    return crc


def record_row_id(partition_row: int, offset: int) -> int:
    """Where a record that begins at this offset is, or would be."""
    return partition_row << OFFSET_BITS | offset


def offset_of(row_id: int) -> int:
    """The first offset of the record in this row."""
    return row_id & ((1 << OFFSET_BITS) - 1)


def signed(number: int) -> int:
    """A 64-bit hash as SQLite keeps it."""
    return number - (1 << 64) if number >> 63 else number


def unsigned(number: int) -> int:
    """The hash that `signed` was given."""
    return number & ((1 << 64) - 1)


def pack_skips(skips: tuple[int, ...]) -> bytes | None:
    """Indexes that got no offset; None: every message got one."""
    return array("I", skips).tobytes() if skips else None


def unpack_skips(blob: bytes | None) -> tuple[int, ...]:
    """What `pack_skips` packed."""
    return tuple(array("I", blob)) if blob else ()


def pack_ranges(ranges: RangeSet) -> bytes:
    """Two columns: firsts, lasts."""
    firsts, lasts = ranges.columns()
    return array("Q", firsts).tobytes() + array("Q", lasts).tobytes()


def unpack_ranges(blob: bytes) -> RangeSet:
    """What `pack_ranges` packed."""
    half = len(blob) // 2
    return RangeSet(zip(array("Q", blob[:half]), array("Q", blob[half:]), strict=True))


# --- Retry ------------------------------------------------------------------------------------


RETRY_COLUMNS: Final = "place, attempts, due_unix_ms, rejected, reason"


def pack_retry(retry: Retry) -> tuple[int, int, int, int, bytes | None]:
    """RETRY_COLUMNS."""
    return retry.offset, retry.attempts, retry.due_unix_ms, int(retry.rejected), retry.nack


def unpack_retry(
    offset: int, attempts: int, due_unix_ms: int, rejected: int, reason: bytes | None
) -> Retry:
    """What `pack_retry` packed."""
    return Retry(offset, attempts, due_unix_ms, reason, bool(rejected))


def retry_checksum(cursor: int, *columns: Any) -> int:
    """The checksum of RETRY_COLUMNS. Where the last two say nothing, that of schema version 1."""
    *numbers, rejected, reason = columns
    if not rejected and reason is None:
        return row_checksum(cursor, *numbers)
    return row_checksum(cursor, *numbers, rejected, reason is None, blob=reason or b"")


# --- Partition ---------------------------------------------------------------------------------


def _successors(log: PartitionLog) -> str:
    return json.dumps([list(partition) for partition in log.successors])


def pack_partition(log: PartitionLog) -> Row:
    """(id, generation, next_offset, start, messages, bytes, acts, sealed_at, successors,
    checksum): what changes of the row, after its id."""
    row = (
        log.row_id,
        log.generation,
        log.next_offset,
        log.start,
        log.messages,
        log.bytes,
        log.acts,
        log.sealed_at,
        _successors(log) if log.successors else "[]",
    )
    return (*row, row_checksum(log.partition.queue_id, log.partition.number, *row))


PARTITION_COLUMNS: Final = (
    "id, generation, next_offset, start, messages, bytes, acts, sealed_at, successors, checksum, "
    "queue_id, number"
)


def unpack_partition(row: Found) -> PartitionLog | None:
    """The log of a row of PARTITION_COLUMNS; None: the row is damaged."""
    *fields, checksum, queue_id, number = row
    if row_checksum(queue_id, number, *fields) != checksum:
        return None
    row_id, generation, next_offset, start, messages, size, acts, sealed_at, successors = fields
    return PartitionLog(
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
    )


# --- Producer line -----------------------------------------------------------------------------


def pack_line(line: ProducerLine, partition_row: int, producer: bytes) -> Row:
    """(id, bucket, resolved, top, sequences, checksum)."""
    blob = line.sequences.tobytes() + line.offsets.tobytes()
    row = (line.row_id, line.bucket, line.resolved, line.top)
    return (*row, blob, row_checksum(partition_row, producer, *row, blob=blob))


LINE_COLUMNS: Final = "id, bucket, resolved, top, sequences, checksum"


def unpack_line(row: Found, partition_row: int, producer: bytes) -> ProducerLine | None:
    """The line of a row of LINE_COLUMNS; None: the row is damaged."""
    *fields, blob, checksum = row
    if row_checksum(partition_row, producer, *fields, blob=blob) != checksum:
        return None
    row_id, bucket, resolved, top = fields
    line = ProducerLine(bucket, resolved=resolved, top=top, row_id=row_id)
    half = len(blob) // 2
    line.sequences.frombytes(blob[:half])
    line.offsets.frombytes(blob[half:])
    return line


ROWS_MAX: Final = 64
"""Rows of one statement. Each number of rows is a statement of its own in SQLite's cache."""


class BatchStatement:
    """`head` (?,…),(?,…),… `tail`: a statement over any number of rows, `rows_max` at a time."""

    def __init__(self, head: str, columns: int, tail: str = "", rows_max: int = ROWS_MAX) -> None:
        self._head = head
        self._rows_max = rows_max
        self._row = f"({','.join('?' * columns)})"
        self._tail = tail
        self._texts: dict[int, str] = {}

    def _text(self, count: int) -> str:
        text = self._texts.get(count)
        if text is None:
            rows = ",".join([self._row] * count)
            text = self._texts[count] = f"{self._head} {rows} {self._tail}"
        return text

    def execute(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Run it over these rows; none: nothing happens."""
        for low in range(0, len(rows), self._rows_max):
            some = rows[low : low + self._rows_max]
            connection.execute(self._text(len(some)), tuple(chain.from_iterable(some)))


def insert(table: str, columns: str, rows_max: int = ROWS_MAX) -> BatchStatement:
    """INSERT OR REPLACE into these columns."""
    count = columns.count(",") + 1
    return BatchStatement(
        f"INSERT OR REPLACE INTO {table} ({columns}) VALUES", count, rows_max=rows_max
    )


def update(table: str, columns: str) -> BatchStatement:
    """UPDATE of rows by their id; the first column is the id. An upsert would first look for
    conflicts in every other index."""
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
    """DELETE the rows of these (owner, key): one statement per owner, because SQLite scans the
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
