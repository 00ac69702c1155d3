"""Rows of the due store in the embedded store, as the writer keeps and flushes them.

Those that a batch has scheduled or changed wait in memory for its `flush`, which writes them with
one statement. What looks for a message in the file flushes first if one of these is concerned. Used
by the writer's thread alone, except `find_waiting`.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from push.due import TICKET, DueMessage, has_id
from storage.sqlite import codec
from storage.sqlite.codec import ROWS_MAX, StoredLog, Transaction, insert

_INSERT: Final = insert("due", codec.DUE_COLUMNS)


def find_waiting(
    connection: sqlite3.Connection, log: StoredLog, digests: Sequence[bytes]
) -> dict[bytes, int]:
    """Return digest -> place of those of these client ids that scheduled messages have. A damaged
    row has none: its message is lost, and comes again as a new one."""
    found: dict[bytes, int] = {}
    for low in range(0, len(digests), ROWS_MAX):
        some = digests[low : low + ROWS_MAX]
        for row in connection.execute(
            f"SELECT {codec.DUE_COLUMNS} FROM due INDEXED BY due_by_digest "
            f"WHERE store = ? AND digest IN ({','.join('?' * len(some))})",
            (log.due_store, *some),
        ):
            row_id, _, _, _, _, _, _, digest, *_ = row
            if codec.is_due_sound(row):
                found[digest] = TICKET + codec.number_of(row_id)
    return found


class DueRows:
    """The rows of scheduled messages, of which some are not written yet."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._unwritten: dict[int, codec.Row] = {}
        """Row id -> row of codec.DUE_COLUMNS."""
        self._unwritten_ids: dict[tuple[int, bytes], int] = {}
        """(store, digest) -> number."""

    def put(self, log: StoredLog, message: DueMessage, sealed: bytes) -> None:
        """Keep a message, or exchange the one of its number. `sealed`: the stored form of its
        payload."""
        row_id = codec.due_row_id(log.row_id, message.number)
        self._unwritten[row_id] = codec.pack_due(log, message, sealed)
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
            f"SELECT {codec.DUE_COLUMNS} FROM due WHERE id = ?", (row_id,)
        ).fetchone()
        return row

    def _row_ids(self, log: StoredLog, numbers: Sequence[int]) -> list[int]:
        """Return the row ids of those of these numbers that messages may have which wait. What is
        not written of them is written now."""
        row_ids = row_ids_of(log, numbers)
        if not self._unwritten.keys().isdisjoint(row_ids):
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
        if self._unwritten:
            _INSERT.execute(self._transaction.begin(), list(self._unwritten.values()))
            self._unwritten.clear()
            self._unwritten_ids.clear()


def row_ids_of(log: StoredLog, numbers: Sequence[int]) -> list[int]:
    """Return the row ids of those of these numbers that the partition has given, and that no purge
    has dropped. The numbers come from clients."""
    return [
        codec.due_row_id(log.row_id, number)
        for number in numbers
        if log.due_start <= number < log.due_next
    ]
