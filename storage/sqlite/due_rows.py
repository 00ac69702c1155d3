"""Rows of the due store in the embedded store, and of client ids, as the writer keeps and flushes
them.

Messages that a batch has scheduled or changed wait in memory for its `flush`, which writes them
with one statement. What looks for a message in the file flushes first if one of these is concerned.

Client ids (R8) are compared whole, and remembered by buckets of time. Used by the writer's thread
alone, except the functions that take a connection.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from push.due import TICKET, DueMessage, has_id
from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import Sealer
from storage.rules.append import IdBuckets
from storage.sqlite import codec
from storage.sqlite.codec import ROWS_MAX, StoredLog, Transaction, insert

DUE_COLUMNS: Final = (
    "id, store, due_unix_ms, version, bytes, key_hash, id_hash, digest, checksum, header, payload"
)
_INSERT: Final = insert("due", DUE_COLUMNS)
_INSERT_ID: Final = insert("client_id", "partition, until_unix_ms, digest, place, checksum")
_FIND_IDS: Final = "SELECT digest, place, until_unix_ms, checksum FROM client_id WHERE"
_SLICE: Final = 2000
"""Number of client ids deleted at a time."""


def find_waiting(
    connection: sqlite3.Connection, log: StoredLog, digests: Sequence[bytes]
) -> dict[bytes, int]:
    """Return digest -> place of those of these client ids that scheduled messages have. A damaged
    row has none: its message is lost, and comes again as a new one."""
    found: dict[bytes, int] = {}
    for low in range(0, len(digests), ROWS_MAX):
        some = digests[low : low + ROWS_MAX]
        for row in connection.execute(
            f"SELECT {DUE_COLUMNS} FROM due INDEXED BY due_by_digest "
            f"WHERE store = ? AND digest IN ({','.join('?' * len(some))})",
            (log.due_store, *some),
        ):
            row_id, _, _, _, _, _, _, digest, *_ = row
            if is_due_sound(row):
                found[digest] = TICKET + codec.number_of(row_id)
    return found


class DueRows:
    """The rows of scheduled messages, of which some are not written yet."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.unwritten: dict[int, codec.Row] = {}
        """Row id -> row of DUE_COLUMNS; empty: there is nothing to flush."""
        self._unwritten_ids: dict[tuple[int, bytes], int] = {}
        """(store, digest) -> number."""

    def put(self, log: StoredLog, message: DueMessage, sealed: bytes) -> None:
        """Keep a message, or exchange the one of its number. `sealed`: the stored form of its
        payload."""
        row_id = codec.due_row_id(log.row_id, message.number)
        self.unwritten[row_id] = pack_due(log, message, sealed)
        if has_id(message.digest):
            self._unwritten_ids[(log.due_store, message.digest)] = message.number

    def find_ids(self, log: StoredLog, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Return digest -> place of those of these client ids that scheduled messages have."""
        found: dict[bytes, int] = {}
        ask: list[bytes] = []
        for digest in digests:
            number = self._unwritten_ids.get((log.due_store, digest))
            if number is None:
                ask.append(digest)
            else:
                found[digest] = TICKET + number
        return {**find_waiting(self._transaction.connection, log, ask), **found} if ask else found

    def versions(self, log: StoredLog, numbers: Sequence[int]) -> dict[int, int]:
        """Return number -> version of those of these messages that wait. Reads no payload."""
        row_ids = self._row_ids(log, numbers)
        found: dict[int, int] = {}
        for low in range(0, len(row_ids), ROWS_MAX):
            some = row_ids[low : low + ROWS_MAX]
            for row_id, version in self._transaction.connection.execute(
                f"SELECT id, version FROM due WHERE id IN ({','.join('?' * len(some))})", some
            ):
                found[codec.number_of(row_id)] = version
        return found

    def row(self, log: StoredLog, number: int) -> codec.Found | None:
        """Return the row of DUE_COLUMNS of a message that waits; None: it does not."""
        for row_id in self._row_ids(log, [number]):
            return self.row_at(row_id)
        return None

    def row_at(self, row_id: int) -> codec.Found | None:
        """Return the row of DUE_COLUMNS with this row id; None: there is none in the file."""
        row: codec.Found | None = self._transaction.connection.execute(
            f"SELECT {DUE_COLUMNS} FROM due WHERE id = ?", (row_id,)
        ).fetchone()
        return row

    def _row_ids(self, log: StoredLog, numbers: Sequence[int]) -> list[int]:
        """Return the row ids of those of these numbers that messages may have which wait. What is
        not written of them is written now."""
        row_ids = row_ids_of(log, numbers)
        if not self.unwritten.keys().isdisjoint(row_ids):
            self.flush()
        return row_ids

    def delete(self, row_ids: Sequence[int]) -> None:
        """Delete rows, which are in the file."""
        connection = self._transaction.begin()
        for low in range(0, len(row_ids), ROWS_MAX):
            some = row_ids[low : low + ROWS_MAX]
            connection.execute(f"DELETE FROM due WHERE id IN ({','.join('?' * len(some))})", some)

    def flush(self) -> None:
        """Write what is not written, inside the batch's transaction."""
        if self.unwritten:
            _INSERT.execute(self._transaction.begin(), list(self.unwritten.values()))
            self.unwritten.clear()
            self._unwritten_ids.clear()


def row_ids_of(log: StoredLog, numbers: Sequence[int]) -> list[int]:
    """Return the row ids of those of these numbers that the partition has given, and that no purge
    has dropped. The numbers come from clients."""
    return [
        codec.due_row_id(log.row_id, number)
        for number in numbers
        if log.due_start <= number < log.due_next
    ]


# --- Client ids ----------------------------------------------------------------------------------


def read_buckets(connection: sqlite3.Connection, partition_row: int) -> IdBuckets:
    """Return the buckets of client ids that a partition has in the file."""
    buckets = IdBuckets()
    until = 0
    while until is not None:
        (until,) = connection.execute(
            "SELECT min(until_unix_ms) FROM client_id WHERE partition = ? AND until_unix_ms > ? "
            "AND typeof(until_unix_ms) = 'integer'",
            (partition_row, until),
        ).fetchone()
        if until is not None:
            buckets.add(until)
    return buckets


def find_remembered(
    connection: sqlite3.Connection,
    partition_row: int,
    live: Sequence[int],
    digests: Sequence[bytes],
    report: Callable[[str], None],
) -> dict[bytes, int]:
    """Return digest -> place of those of these client ids that these buckets have in the file."""
    found: dict[bytes, int] = {}
    for low in range(0, len(digests), ROWS_MAX):
        some = digests[low : low + ROWS_MAX]
        rows = connection.execute(
            f"{_FIND_IDS} partition = ? AND until_unix_ms IN ({','.join('?' * len(live))}) "
            f"AND digest IN ({','.join('?' * len(some))})",
            (partition_row, *live, *some),
        ).fetchall()
        for digest, offset, until, checksum in rows:
            if codec.row_checksum(partition_row, until, digest, offset) == checksum:
                found[digest] = offset
            else:
                report(f"a client id in partition row {partition_row} is damaged")
    return found


class IdState:
    """The buckets of client ids that each partition has, and the ids that are not written yet."""

    def __init__(self, transaction: Transaction, report: Callable[[str], None]) -> None:
        self._transaction = transaction
        self._report = report
        self._buckets: dict[int, IdBuckets] = {}
        self.unwritten: dict[tuple[int, bytes], tuple[int, int]] = {}
        """(partition row, digest) -> (offset, until) of ids that `flush` has to write."""

    def forget(self, partition_row: int) -> None:
        """Forget which buckets the partition has. They are read from the file when needed again."""
        self._buckets.pop(partition_row, None)

    def buckets(self, partition_row: int) -> IdBuckets:
        """Return the partition's buckets of client ids, from memory or from the file."""
        buckets = self._buckets.get(partition_row)
        if buckets is None:
            buckets = read_buckets(self._transaction.connection, partition_row)
            self._buckets[partition_row] = buckets
        return buckets

    # enforces: R8
    def find(self, partition_row: int, wall_unix_ms: int, digests: list[bytes]) -> dict[bytes, int]:
        """Return digest -> offset of those of these client ids that are remembered."""
        found: dict[bytes, int] = {}
        ask: list[bytes] = []
        for digest in digests:
            unwritten = self.unwritten.get((partition_row, digest))
            if unwritten is not None:
                found[digest], _ = unwritten
            else:
                ask.append(digest)
        live = self.buckets(partition_row).live(wall_unix_ms)
        if ask and live:
            connection = self._transaction.connection
            found.update(find_remembered(connection, partition_row, live, ask, self._report))
        return found

    def remember(self, partition_row: int, ids: Iterable[tuple[bytes, int]], until: int) -> None:
        """Remember (digest, offset) until this time (unix ms)."""
        self.buckets(partition_row).add(until)
        for digest, offset in ids:
            self.unwritten[(partition_row, digest)] = (offset, until)

    def flush(self) -> None:
        """Write the new ids, inside the batch's transaction."""
        rows: list[codec.Row] = []
        for (row, digest), (offset, until) in self.unwritten.items():
            checksum = codec.row_checksum(row, until, digest, offset)
            rows.append((row, until, digest, offset, checksum))
        _INSERT_ID.execute(self._transaction.begin(), rows)
        self.unwritten.clear()

    def drop_passed(self, partition_row: int, wall_unix_ms: int) -> bool:
        """Delete a slice of the ids whose time has passed. Returns whether there may be more."""
        buckets = self.buckets(partition_row)
        for until in buckets.passed(wall_unix_ms):
            gone = self._transaction.begin().execute(
                "DELETE FROM client_id WHERE partition = ? AND until_unix_ms = ? AND digest IN "
                "(SELECT digest FROM client_id WHERE partition = ? AND until_unix_ms = ? LIMIT ?)",
                (partition_row, until, partition_row, until, _SLICE),
            )
            if gone.rowcount == _SLICE:
                return True
            buckets.remove(until)
        return False


# --- A row ---------------------------------------------------------------------------------------


def pack_due(log: StoredLog, message: DueMessage, sealed: bytes) -> codec.Row:
    """Return the row of DUE_COLUMNS. `sealed`: the stored form of the message's payload."""
    row_id, header = codec.due_row_id(log.row_id, message.number), message.header()
    fields = (
        log.due_store,
        message.due_unix_ms,
        message.version,
        len(message.payload),
        codec.signed(message.key_hash),
        codec.signed(message.id_hash),
        message.digest if has_id(message.digest) else None,
    )
    return (row_id, *fields, codec.record_checksum(row_id, fields, header, sealed), header, sealed)


# enforces: P13, R30
def unpack_due(row: codec.Found, partition: Partition, sealer: Sealer) -> DueMessage:
    """Return the opened message of a row of DUE_COLUMNS. With the sealer PLAIN its payload has the
    stored form.

    Raises:
        RecordDamaged: with the reason (R30).
        Refused: storage_unavailable: its key cannot be had at the moment.
    """
    if not is_due_sound(row):
        raise RecordDamaged(codec.CHECKSUM_REASON)
    row_id, _, _, version, *_, header, sealed = row
    payload = sealer.unseal(partition, header, sealed)
    return DueMessage.load(partition, codec.number_of(row_id), version, header, payload)


def is_due_sound(row: codec.Found) -> bool:
    """Whether a row of DUE_COLUMNS is as it was written."""
    row_id, *fields, checksum, header, payload = row
    if not (isinstance(header, bytes) and isinstance(payload, bytes)):
        return False  # a page of another table is in its place
    return bool(codec.record_checksum(row_id, tuple(fields), header, payload) == checksum)
