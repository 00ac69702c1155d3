"""Check of an embedded store at rest: its structure, and the checksum of each row (R30).

Nothing is written. Damage is counted, never raised, because the damage of one page must not hide
the contents of another.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from push.places import Partition
from push.record import RecordDamaged
from push.storage_port import Sealer, is_sealed
from storage.sqlite import codec, due_rows
from storage.sqlite.open import APPLICATION_ID, STEPS

FINDINGS_MAX: Final = 20
"""Largest number of sentences about the file's structure; a badly torn file has thousands."""
_ROWS_AT_ONCE: Final = 256
RowProgress = Callable[[int, int], None]
"""Called by `verify_store` after every _ROWS_AT_ONCE rows, with (rows looked at so far, rows in
all)."""


def _partition_is_sound(row: codec.Found) -> bool:
    return codec.unpack_partition(row) is not None


def _cursor_is_sound(row: codec.Found) -> bool:
    group_id, partition, *fields, passed, checksum = row
    return codec.row_checksum(group_id, partition, *fields, blob=passed) == int(checksum)


def _line_is_sound(row: codec.Found) -> bool:
    partition, producer, *fields, sequences, checksum = row
    return codec.row_checksum(partition, producer, *fields, blob=sequences) == int(checksum)


def _log_is_sound(row: codec.Found) -> bool:
    cursor, number, passed, checksum = row
    return codec.row_checksum(cursor, number, blob=passed) == int(checksum)


def _plain_is_sound(row: codec.Found) -> bool:
    *fields, checksum = row
    return codec.row_checksum(*fields) == int(checksum)


def _retry_is_sound(row: codec.Found) -> bool:
    *fields, checksum = row
    return codec.retry_checksum(*fields) == int(checksum)


def _ended_is_sound(row: codec.Found) -> bool:
    cursor, ranges, checksum = row
    return codec.row_checksum(cursor, blob=ranges) == int(checksum)


CURSOR_COLUMNS: Final = "group_id, partition, id, epoch, token, assignment, floor, passed, checksum"
_TABLES: Final[dict[str, tuple[str, Callable[[codec.Found], bool]]]] = {
    "partition": (codec.PARTITION_COLUMNS, _partition_is_sound),
    "record": (codec.RECORD_COLUMNS, codec.is_record_sound),
    "due": (due_rows.DUE_COLUMNS, due_rows.is_due_sound),
    "producer": (
        "partition, producer, id, bucket, resolved, top, sequences, checksum",
        _line_is_sound,
    ),
    "client_id": ("partition, until_unix_ms, digest, place, checksum", _plain_is_sound),
    "cursor": (CURSOR_COLUMNS, _cursor_is_sound),
    "cursor_log": ("cursor, number, passed, checksum", _log_is_sound),
    "retry": (f"cursor, {codec.RETRY_COLUMNS}, checksum", _retry_is_sound),
    "side": ("cursor, place, key_hash, checksum", _plain_is_sound),
    "side_line": ("cursor, key_hash, entries, checksum", _plain_is_sound),
    "parked": ("cursor, key_hash, reason, since_unix_ms, checksum", _plain_is_sound),
    "ended": ("cursor, ranges, checksum", _ended_is_sound),
    "dead": ("cursor, ranges, checksum", _plain_is_sound),
}
"""Tables, each with its columns and the check of a row's soundness."""
_SINCE: Final = {"ended": 2, "dead": 3, "due": 4}
"""The schema version that made a table, if that was not the first one."""
_PARTITION_COLUMNS_3: Final = (
    "id, generation, next_offset, start, messages, bytes, acts, sealed_at, successors, "
    "0, 0, 0, 0, checksum, queue_id, number"
)
"""Columns of `partition` up to schema version 3, with those that came later as a migration makes
them."""


def _tables(schema_version: int) -> dict[str, tuple[str, Callable[[codec.Found], bool]]]:
    """Return what _TABLES has, for the tables and columns of this schema version."""
    tables = {name: one for name, one in _TABLES.items() if schema_version >= _SINCE.get(name, 1)}
    if schema_version < 4:
        tables["partition"] = (_PARTITION_COLUMNS_3, _partition_is_sound)
    if schema_version < 2:
        tables["retry"] = ("cursor, place, attempts, due_unix_ms, checksum", _plain_is_sound)
    return tables


@dataclass(slots=True)
class StoreReport:
    """The rows of a store, and the damaged ones among them."""

    findings: list[str] = field(default_factory=list)
    """Sentences about damage, or why the file cannot be checked; empty: nothing was found."""
    rows: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    """Rows that are not as they were written, by table; those without any are left out."""
    quarantined: int = 0
    """Number of records and scheduled messages that were found damaged while the broker worked, and
    quarantined. They are not among the `findings`."""
    sealed: int = 0
    """Number of records and scheduled messages whose payloads are sealed."""
    unopened: dict[str, int] = field(default_factory=dict)
    """Sound sealed rows that do not open, of those that were tried, by table."""
    schema_version: int = 0
    incarnation: str = ""
    queue_ids: set[str] = field(default_factory=set)


def verify_store(path: Path, progress: RowProgress, sealer: Sealer | None = None) -> StoreReport:
    """Check the store in this file, which no process has open. Blocks, for long. With a `sealer`,
    the sealed payloads of sound records are opened, too.

    Raises:
        Refused: storage_unavailable: the sealer cannot have its keys at the moment.
    """
    report = StoreReport()
    try:
        with closing(open_at_rest(path)) as connection:
            if _look_at_kind(connection, report):
                _look_at_structure(connection, report)
                _look_at_rows(connection, report, progress, _Payloads(connection, report, sealer))
                if report.schema_version >= _SINCE["due"]:
                    _look_at_counts(connection, report)
    except sqlite3.Error as error:
        report.findings.append(f"the store cannot be read: {error}")
    return report


def open_at_rest(path: Path) -> sqlite3.Connection:
    """Open an SQLite file that no process uses, with a connection that cannot write. The content of
    a write-ahead log beside the file is read, too."""
    wal = Path(f"{path}-wal")
    how = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
    connection.isolation_level = None
    connection.text_factory = codec.text_of  # damaged text is counted, and does not end the count
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _look_at_kind(connection: sqlite3.Connection, report: StoreReport) -> bool:
    """Whether the file is a store that this program can read. If not, a finding says why."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        report.findings.append("the file is not a store of this broker")
        return False
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    report.incarnation = meta.get("incarnation", "")
    version = meta.get("schema_version", "")
    report.schema_version = int(version) if version.isdecimal() else 0
    if not 1 <= report.schema_version <= len(STEPS):
        report.findings.append(
            f"the store has schema version {version!r}, and this program knows 1 to {len(STEPS)}: "
            "verify it with the program that wrote it"
        )
        return False
    return True


def _look_at_structure(connection: sqlite3.Connection, report: StoreReport) -> None:
    try:
        found = connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})").fetchall()
    except sqlite3.DatabaseError as error:
        found = [(str(error),)]
    report.findings += [f"the store's structure: {text}" for (text,) in found if text != "ok"]


_UNPACK: Final[dict[str, Callable[[codec.Found, Partition, Sealer], object]]] = {
    "record": codec.unpack_record,
    "due": due_rows.unpack_due,
}
"""Tables with payloads, each with the function that opens one of its rows."""


class _Payloads:
    """Counts of sealed rows, and of those that do not open."""

    def __init__(
        self, connection: sqlite3.Connection, report: StoreReport, sealer: Sealer | None
    ) -> None:
        self._connection = connection
        self._report = report
        self._sealer = sealer
        self._places: dict[int, Partition] = {}

    def look(self, table: str, rows: list[codec.Found]) -> None:
        """Count the sealed ones among these rows of a table, and open those that are sound."""
        if table not in _UNPACK:
            return
        _, is_sound = _TABLES[table]
        for row in rows:
            if not (isinstance(row[-1], bytes) and is_sealed(row[-1])):
                continue
            self._report.sealed += 1
            place = self._place(row[0] >> codec.OFFSET_BITS)
            if self._sealer is None or place is None or not _is_sound(is_sound, row):
                continue
            try:
                _UNPACK[table](row, place, self._sealer)
            except RecordDamaged:
                self._report.unopened[table] = self._report.unopened.get(table, 0) + 1

    def _place(self, row_id: int) -> Partition | None:
        """Return the partition whose row has this id. None: there is no such row, because it was
        deleted."""
        if row_id not in self._places:
            row = self._connection.execute(
                "SELECT queue_id, number FROM partition WHERE id = ?", (row_id,)
            ).fetchone()
            if row is None:
                return None
            self._places[row_id] = Partition(*row)
        return self._places[row_id]


def _look_at_rows(
    connection: sqlite3.Connection,
    report: StoreReport,
    progress: RowProgress,
    payloads: _Payloads,
) -> None:
    tables = _tables(report.schema_version)
    counts = {table: _count(connection, table) for table in tables}
    for table in ("quarantine", "due_quarantine"):  # the second one may not exist yet
        report.quarantined += _count(connection, table)
    total = sum(counts.values())
    seen = 0
    for table, (columns, is_sound) in tables.items():
        report.rows[table] = 0
        damaged = 0
        try:
            cursor = connection.execute(f"SELECT {columns} FROM {table}")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                report.rows[table] += len(rows)
                damaged += sum(not _is_sound(is_sound, row) for row in rows)
                payloads.look(table, rows)
                seen += len(rows)
                progress(seen, max(seen, total))
        except sqlite3.DatabaseError as error:
            report.findings.append(
                f"table {table}: {report.rows[table]} of {counts[table]} rows can be read ({error})"
            )
        if damaged:
            report.damaged[table] = damaged
            report.findings.append(f"table {table}: {damaged} rows do not match their checksum")
    for table, unopened in report.unopened.items():
        report.findings.append(f"table {table}: {unopened} payloads do not open")
    try:
        ids = connection.execute("SELECT DISTINCT queue_id FROM partition").fetchall()
    except sqlite3.DatabaseError:
        return  # reported already
    report.queue_ids = {queue_id for (queue_id,) in ids}


def _look_at_counts(connection: sqlite3.Connection, report: StoreReport) -> None:
    """Compare what the rows of sound partitions count of their scheduled messages with those that
    are there. Bytes are not compared where one was quarantined, because the damage may have been in
    its size."""
    try:
        rows = connection.execute(f"SELECT {codec.PARTITION_COLUMNS} FROM partition").fetchall()
        for log in (
            codec.unpack_partition(row) for row in rows if _is_sound(_partition_is_sound, row)
        ):
            if log is not None:
                _look_at_count(connection, report, log)
    except sqlite3.DatabaseError:
        return  # reported already


def _look_at_count(
    connection: sqlite3.Connection, report: StoreReport, log: codec.StoredLog
) -> None:
    ids = (codec.due_row_id(log.row_id, log.due_start), codec.due_row_id(log.row_id + 1, 0))
    there, size = connection.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM due WHERE id >= ? AND id < ?", ids
    ).fetchone()
    (put_aside,) = connection.execute(
        "SELECT count(*) FROM due_quarantine WHERE id >= ? AND id < ?", ids
    ).fetchone()
    if log.due_messages != there or (log.due_bytes != size and not put_aside):
        report.findings.append(
            f"partition {log.partition.number} of {log.partition.queue_id}: {log.due_messages} "
            f"scheduled messages of {log.due_bytes} bytes are counted, and {there} of {size} bytes "
            "are there"
        )


def _count(connection: sqlite3.Connection, table: str) -> int:
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    except sqlite3.DatabaseError:
        return 0  # rows that cannot be read are found again in their table
    return int(count)


def _is_sound(is_sound: Callable[[codec.Found], bool], row: codec.Found) -> bool:
    try:
        return is_sound(row)
    except (TypeError, ValueError):  # a column of another type than it was
        return False
