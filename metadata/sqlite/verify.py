"""Checks of a catalog at rest: its structure, and the checksum of each row (R30).

Nothing is written, and damage is counted, never raised.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from metadata.catalog import Group, Queue
from metadata.data_keys import DataKey, read_rows
from metadata.port import STORAGE_INCARNATION
from metadata.row_store import columns_of
from metadata.sqlite.catalog import (
    APPLICATION_ID,
    MIGRATIONS,
    is_intact,
    read_membership,
    read_token,
)

FINDINGS_MAX: Final = 20


@dataclass(slots=True)
class CatalogReport:
    """Contents of a catalog, and what is damaged in it."""

    findings: list[str] = field(default_factory=list)
    """Sentences about damage, or why the file cannot be checked; empty if all is well."""
    rows: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    """Table → number of rows that are not as they were written; tables without any are left out."""
    schema_version: int = 0
    storage_incarnation: str = ""
    """Incarnation of the store that belongs to the catalog; "" if unknown."""
    ids: set[str] = field(default_factory=set)
    """Ids of all queues and groups, present and past."""
    data_keys: list[DataKey] = field(default_factory=list)


def verify_catalog(path: Path) -> CatalogReport:
    """Check the catalog in this file, which no process has open. Blocks."""
    report = CatalogReport()
    wal = Path(f"{path}-wal")
    how = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{how}"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
            if _look_at_kind(connection, report):
                _look_at_rows(connection, report)
    except sqlite3.Error as error:
        report.findings.append(f"the catalog cannot be read: {error}")
    return report


def _look_at_kind(connection: sqlite3.Connection, report: CatalogReport) -> bool:
    """Whether the file is a catalog that this program can read. If not, the report says why; if so,
    it has the faults of the structure."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (report.schema_version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        report.findings.append("the file is not a catalog of this broker")
        return False
    if not 1 <= report.schema_version <= len(MIGRATIONS):
        report.findings.append(
            f"the catalog has schema version {report.schema_version}, and this program knows 1 to "
            f"{len(MIGRATIONS)}: verify it with the program that wrote it"
        )
        return False
    found = connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})").fetchall()
    report.findings += [f"the catalog's structure: {text}" for (text,) in found if text != "ok"]
    return True


def _look_at_rows(connection: sqlite3.Connection, report: CatalogReport) -> None:
    select = connection.execute
    facts = select("SELECT name, value, checksum FROM facts").fetchall()
    _count(report, "facts", [is_intact(value, checksum) for _, value, checksum in facts])
    for name, value, checksum in facts:
        if name == f"mark:{STORAGE_INCARNATION}" and is_intact(value, checksum):
            report.storage_incarnation = value.decode(errors="replace")
    queues = select("SELECT queue_id, tenant, name, value, checksum FROM queues").fetchall()
    _count(report, "queues", [_is_sound(Queue, row) for row in queues])
    groups = select("SELECT group_id, queue_id, name, value, checksum FROM groups").fetchall()
    _count(report, "groups", [_is_sound(Group, row) for row in groups])
    if report.schema_version > 1:
        rows = select("SELECT group_id, value, checksum FROM memberships").fetchall()
        _count(report, "memberships", [read_membership(row) is not None for row in rows])
    if select("SELECT 1 FROM sqlite_master WHERE name = 'data_keys'").fetchone():
        report.data_keys, damaged, _ = read_rows(select)
        (copies,) = select("SELECT count(*) FROM data_keys").fetchone()
        _count(report, "data_keys", [False] * damaged + [True] * max(0, copies - damaged))
    if report.schema_version > 3:
        tokens = select("SELECT token_id, value, checksum FROM tokens").fetchall()
        _count(report, "tokens", [read_token(row) is not None for row in tokens])
    report.ids = {any_id for (any_id,) in select("SELECT id FROM ids").fetchall()}


def _is_sound(kind: type[Queue] | type[Group], row: tuple[str, str, str, object, object]) -> bool:
    *columns, value, checksum = row
    if not is_intact(value, checksum):
        return False
    try:
        return columns_of(msgspec.json.decode(value, type=kind)) == tuple(columns)
    except msgspec.DecodeError:
        return False


def _count(report: CatalogReport, table: str, sound: list[bool]) -> None:
    report.rows[table] = len(sound)
    damaged = sound.count(False)
    if damaged:
        report.damaged[table] = damaged
        report.findings.append(f"table {table}: {damaged} rows do not match their checksum")
