"""What stands beside a cursor's row: retries, side lines and parked keys, one row each, and what of
its past a late ack is told by.

Changes wait here until the batch is written. They are exceptions: a cursor that only moves on
has none of them.
"""

import sqlite3
from collections.abc import Callable
from typing import Final, Protocol

from push.dead import dead_of
from push.places import Parked
from push.ports import Retry
from storage.rules.cursor import Change, GroupCursor
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_statement import delete_each, insert

_INSERT_RETRY: Final = insert("retry", f"cursor, {codec.RETRY_COLUMNS}, checksum")
_INSERT_SIDE: Final = insert("side", "cursor, place, key_hash, checksum", rows_max=256)
"""They come by the hundreds (P8)."""
_INSERT_LINE: Final = insert("side_line", "cursor, key_hash, entries, checksum")
_INSERT_PARKED: Final = insert("parked", "cursor, key_hash, reason, since_unix_ms, checksum")
_INSERT_DEAD: Final = insert("dead", "cursor, ranges, checksum")
_INSERT_ENDED: Final = insert("ended", "cursor, ranges, checksum")
Key = tuple[int, int]
"""(cursor row, offset or key hash)"""


class Transaction(Protocol):
    """Where statements go."""

    connection: sqlite3.Connection

    def begin(self) -> sqlite3.Connection:
        """The connection, inside the batch's transaction."""


class Beside:
    """Rows that wait to be written; None, or a length of 0: the row goes."""

    def __init__(self, transaction: Transaction, report: Callable[[str], None]) -> None:
        self._transaction = transaction
        self._report = report
        self._retries: dict[Key, Retry | None] = {}
        self._sides: dict[Key, int | None] = {}
        self._lines: dict[Key, int] = {}
        self._parked: dict[Key, Parked | None] = {}
        self._ended: dict[int, bytes] = {}
        self._dead: dict[int, str] = {}

    def load(self, row_id: int, cursor: GroupCursor, name: str) -> None:
        """Complete a cursor that was read from this row; `name` is for reports of damage."""
        select = self._transaction.connection.execute
        for *retry, checksum in select(
            f"SELECT {codec.RETRY_COLUMNS}, checksum FROM retry WHERE cursor = ?", (row_id,)
        ).fetchall():
            if codec.retry_checksum(row_id, *retry) == checksum:
                cursor.put_retry(codec.unpack_retry(*retry))
            else:
                self._report(f"damaged: attempts of a message in {name}; they are counted anew")
        for key_hash, entries, checksum in select(
            "SELECT key_hash, entries, checksum FROM side_line WHERE cursor = ?", (row_id,)
        ).fetchall():
            count = entries
            if codec.row_checksum(row_id, key_hash, entries) != checksum:
                self._report(f"damaged: the length of a side line in {name}; it is counted anew")
                (count,) = select(
                    "SELECT count(*) FROM side WHERE cursor = ? AND key_hash = ?",
                    (row_id, key_hash),
                ).fetchone()
            cursor.lines[codec.unsigned(key_hash)] = count
        for *parked, checksum in select(
            "SELECT key_hash, reason, since_unix_ms, checksum FROM parked WHERE cursor = ?",
            (row_id,),
        ).fetchall():
            if codec.row_checksum(row_id, *parked) != checksum:
                self._report(f"damaged: why a key is parked in {name}")
            key_hash = codec.unsigned(parked[0])
            cursor.parked[key_hash] = Parked(key_hash, *parked[1:])
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
        """(offset, key hash) of the offsets in first..last that stand in a side line."""
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
        return [(offset, codec.unsigned(key_hash)) for offset, key_hash, _ in rows]

    def note(self, row_id: int, cursor: GroupCursor, change: Change) -> None:
        """These changes of a cursor have to be written."""
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
        """Write them, inside the batch's transaction."""
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
