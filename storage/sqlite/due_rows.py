"""Rows of the due store in the embedded store, as the writer keeps and flushes them.

Those that a batch has scheduled or changed wait in memory for its `flush`, which writes them with
one statement. What looks for a message in the file flushes first if one of these is concerned. Used
by the writer's thread alone, except `find_waiting`.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from push.due import TICKET, DueMessage, has_id
from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import Sealer
from storage.sqlite import codec
from storage.sqlite.codec import ROWS_MAX, StoredLog, Transaction, insert

DUE_COLUMNS: Final = (
    "id, store, due_unix_ms, version, bytes, key_hash, id_hash, digest, checksum, header, payload"
)
_INSERT: Final = insert("due", DUE_COLUMNS)


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
