"""Client ids in the embedded store (R8): compared whole, remembered by buckets of time."""

from collections.abc import Callable, Iterable
from typing import Final

from storage.rules.appending import IdBuckets
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_beside import Transaction
from storage.sqlite.sqlite_statement import ROWS_MAX, insert

_INSERT_ID: Final = insert("client_id", "partition, until_unix_ms, digest, place, checksum")
_FIND_IDS: Final = "SELECT digest, place, until_unix_ms, checksum FROM client_id WHERE"
_SLICE: Final = 2000
"""Rows deleted at a time."""


class IdBooks:
    """Which buckets each partition has, and the ids that wait to be written."""

    def __init__(self, transaction: Transaction, report: Callable[[str], None]) -> None:
        self._transaction = transaction
        self._report = report
        self._buckets: dict[int, IdBuckets] = {}
        self._waiting: dict[tuple[int, bytes], tuple[int, int]] = {}

    def forget(self, partition_row: int) -> None:
        """Keep nothing of the partition in memory."""
        self._buckets.pop(partition_row, None)

    def buckets(self, partition_row: int) -> IdBuckets:
        """The partition's buckets of client ids."""
        buckets = self._buckets.get(partition_row)
        if buckets is None:
            buckets = self._buckets[partition_row] = IdBuckets([])
            until = 0
            while until is not None:
                (until,) = self._transaction.connection.execute(
                    "SELECT min(until_unix_ms) FROM client_id "
                    "WHERE partition = ? AND until_unix_ms > ?",
                    (partition_row, until),
                ).fetchone()
                if until is not None:
                    buckets.add(until)
        return buckets

    def find(self, partition_row: int, digests: list[bytes], wall_unix_ms: int) -> dict[bytes, int]:
        """The offsets of those of these ids that are remembered."""
        found: dict[bytes, int] = {}
        ask: list[bytes] = []
        for digest in digests:
            waiting = self._waiting.get((partition_row, digest))
            if waiting is not None:
                found[digest] = waiting[0]
            else:
                ask.append(digest)
        live = self.buckets(partition_row).live(wall_unix_ms)
        for low in range(0, len(ask) if live else 0, ROWS_MAX):
            some = ask[low : low + ROWS_MAX]
            rows = self._transaction.connection.execute(
                f"{_FIND_IDS} partition = ? AND until_unix_ms IN ({','.join('?' * len(live))}) "
                f"AND digest IN ({','.join('?' * len(some))})",
                (partition_row, *live, *some),
            ).fetchall()
            for digest, offset, until, checksum in rows:
                if codec.row_checksum(partition_row, until, digest, offset) == checksum:
                    found[digest] = offset
                else:
                    self._report(f"a client id in partition row {partition_row} is damaged")
        return found

    def remember(self, partition_row: int, ids: Iterable[tuple[bytes, int]], until: int) -> None:
        """Remember (digest, offset) until this time (unix ms)."""
        self.buckets(partition_row).add(until)
        for digest, offset in ids:
            self._waiting[(partition_row, digest)] = (offset, until)

    def flush(self) -> None:
        """Write what waits, inside the batch's transaction."""
        if self._waiting:
            rows: list[codec.Row] = []
            for (row, digest), (offset, until) in self._waiting.items():
                checksum = codec.row_checksum(row, until, digest, offset)
                rows.append((row, until, digest, offset, checksum))
            _INSERT_ID.execute(self._transaction.begin(), rows)
            self._waiting.clear()

    def drop_passed(self, partition_row: int, wall_unix_ms: int) -> bool:
        """Delete a slice of the ids whose time has passed; whether there may be more."""
        buckets = self.buckets(partition_row)
        for until in buckets.passed(wall_unix_ms):
            gone = self._transaction.begin().execute(
                "DELETE FROM client_id WHERE partition = ? AND until_unix_ms = ? AND digest IN "
                "(SELECT digest FROM client_id WHERE partition = ? AND until_unix_ms = ? LIMIT ?)",
                (partition_row, until, partition_row, until, _SLICE),
            )
            if gone.rowcount == _SLICE:
                return True
            buckets.untils.remove(until)
        return False
