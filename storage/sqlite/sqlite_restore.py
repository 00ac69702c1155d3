"""Giving a copy of the embedded store a life of its own (R30).

A copy that is brought back is an older history: what was appended after it is gone, and its
offsets will be given again. So the store gets a new incarnation, every log a higher generation,
and every cursor a higher epoch and no owner: what was made in the lost history (receipts,
positions, owners, what a client holds) means nothing in this one.
"""

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from push.errors import Refused
from push.places import Partition
from storage.rules.appending import PartitionLog
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_open import mark_clean, open_store
from storage.sqlite.sqlite_statement import insert
from storage.sqlite.sqlite_verify import CURSOR_COLUMNS

GENERATION_MAX: Final = (1 << 32) - 1
"""Receipts hold 32 bits of it."""
EPOCHS_RAISED: Final = 1 << 24
"""More than a lost history can have had owners of a partition."""
_SLICE: Final = 1000
_INSERT_PARTITION: Final = insert(
    "partition",
    "id, generation, next_offset, start, messages, bytes, acts, sealed_at, successors, checksum, "
    "queue_id, number",
)


@dataclass(frozen=True, slots=True)
class Renewed:
    """A store that is one of its own now."""

    incarnation: str
    groups: frozenset[tuple[str, str]]
    """(queue_id, group_id) of every cursor in it."""
    queue_ids: frozenset[str]
    damaged: int
    """Rows of partitions and cursors that were damaged in the copy, and are left as they were."""


def renew_store(path: Path, *, raised_by: int, partitions: Mapping[str, int]) -> Renewed:
    """Make the copy in this file a store of its own, of this program's schema; durable when this
    returns. Blocks.

    `raised_by`: at least 1, and another number for each restore of the same copy: two stores that
    come from one copy must not be taken for each other. `partitions`: how many each queue of the
    catalog has; those that are not in the copy are made, of a raised generation too.

    Raises:
        Refused: storage_unavailable: it cannot be opened, as the broker would not open it, or a
            generation has no more room.
    """
    opened = open_store(path)
    try:
        connection = opened.writer
        connection.execute("BEGIN IMMEDIATE")
        renewed = _renew(connection, raised_by, partitions)
        connection.execute("COMMIT")
        mark_clean(connection)
    except sqlite3.Error as error:
        raise Refused("storage_unavailable", f"the copy cannot be used: {error}") from error
    finally:
        opened.close()
    return renewed


def _renew(
    connection: sqlite3.Connection, raised_by: int, partitions: Mapping[str, int]
) -> Renewed:
    incarnation = uuid.uuid4().hex
    connection.execute("UPDATE meta SET value = ? WHERE name = 'incarnation'", (incarnation,))
    damaged = _raise_generations(connection, raised_by) + _raise_epochs(connection)
    _make_missing(connection, raised_by, partitions)
    queue_ids = connection.execute("SELECT DISTINCT queue_id FROM partition").fetchall()
    groups = connection.execute(
        "SELECT DISTINCT queue_id, group_id FROM cursor "
        "JOIN partition ON partition.id = cursor.partition"
    ).fetchall()
    return Renewed(
        incarnation, frozenset(groups), frozenset(queue_id for (queue_id,) in queue_ids), damaged
    )


def _slices(
    connection: sqlite3.Connection, table: str, columns: str
) -> Iterator[list[codec.Found]]:
    """All rows, a slice at a time, each read to its end: the caller may change it."""
    after = -1
    ids = f"SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT {_SLICE}"
    while rows := connection.execute(
        f"SELECT {columns} FROM {table} WHERE id IN ({ids}) ORDER BY id", (after,)
    ).fetchall():
        yield rows
        (after,) = connection.execute(f"SELECT max(id) FROM ({ids})", (after,)).fetchone()


def _raise_generations(connection: sqlite3.Connection, raised_by: int) -> int:
    damaged = 0
    for rows in _slices(connection, "partition", codec.PARTITION_COLUMNS):
        raised = []
        for log in map(codec.unpack_partition, rows):
            if log is None:
                damaged += 1  # the broker refuses it by its checksum, and goes on refusing it
                continue
            log.generation += raised_by
            if log.generation > GENERATION_MAX:
                raise Refused("storage_unavailable", "a log's generation has no more room")
            row_id, generation, *_, checksum = codec.pack_partition(log)
            raised.append((generation, checksum, row_id))
        connection.executemany(
            "UPDATE partition SET generation = ?, checksum = ? WHERE id = ?", raised
        )
    return damaged


def _raise_epochs(connection: sqlite3.Connection) -> int:
    damaged = 0
    for rows in _slices(connection, "cursor", CURSOR_COLUMNS):
        raised = []
        for group_id, partition, row_id, epoch, token, *fields, passed, checksum in rows:
            before = (group_id, partition, row_id, epoch, token, *fields)
            if codec.row_checksum(*before, blob=passed) != checksum:
                damaged += 1  # the broker begins it anew above any epoch
                continue
            now = (epoch + EPOCHS_RAISED, b"")
            after = (group_id, partition, row_id, *now, *fields)
            raised.append((*now, codec.row_checksum(*after, blob=passed), row_id))
        connection.executemany(
            "UPDATE cursor SET epoch = ?, token = ?, checksum = ? WHERE id = ?", raised
        )
    return damaged


def _make_missing(
    connection: sqlite3.Connection, raised_by: int, partitions: Mapping[str, int]
) -> None:
    """Partitions of queues that were made while the copy was. The broker would make them at its
    start, but of the generation that they had in the lost history."""
    there = set(connection.execute("SELECT queue_id, number FROM partition").fetchall())
    (last_row,) = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM partition UNION ALL "
        "SELECT id FROM garbage WHERE kind = 'partition')"
    ).fetchone()
    missing = [place for place in _places(partitions) if place not in there]
    rows: list[codec.Row] = []
    for row_id, place in enumerate(missing, (last_row or 0) + 1):
        log = PartitionLog(place, row_id=row_id)
        log.generation += raised_by
        rows.append((*codec.pack_partition(log), *place))
    if rows:
        _INSERT_PARTITION.execute(connection, rows)


def _places(partitions: Mapping[str, int]) -> Iterable[Partition]:
    for queue_id, count in partitions.items():
        for number in range(count):
            yield Partition(queue_id, number)
