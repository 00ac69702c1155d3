"""What the embedded store shows of itself: `push.ports.Looking`, on the reading connection."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from push import limits
from push.dead import DeadRanges, dead_of
from push.places import GroupPartition, Parked, ParkedLine, Partition
from push.ports import Cursor, CursorState, PartitionState, Standing
from push.ranges import RangeSet
from storage.rules.cursor import GroupCursor, settled_by_all
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_reader import log_of, unpack_log

TRIMMABLE_ROWS: Final = 1000
"""Records that one slice of `trimmable` looks at: a reading transaction stays short (R31)."""


def partition_states(connection: sqlite3.Connection, queue_id: str) -> list[PartitionState]:
    """What `Storage.partitions` answers."""
    rows = connection.execute(
        f"SELECT {codec.PARTITION_COLUMNS} FROM partition WHERE queue_id = ? ORDER BY number",
        (queue_id,),
    ).fetchall()
    return [unpack_log(row).state() for row in rows]


def cursor_states(
    connection: sqlite3.Connection, queue_id: str, group_id: str
) -> list[CursorState]:
    """What `Storage.cursors` answers."""
    states: list[CursorState] = []
    rows = connection.execute(
        "SELECT cursor.id, number, epoch, floor, passed, "
        "(SELECT coalesce(sum(entries), 0) FROM side_line WHERE cursor = cursor.id), "
        "(SELECT count(*) FROM parked WHERE cursor = cursor.id), "
        "(SELECT min(place) FROM side WHERE cursor = cursor.id), "
        "(SELECT ranges FROM dead WHERE cursor = cursor.id) "
        "FROM partition JOIN cursor ON cursor.partition = partition.id "
        "WHERE queue_id = ? AND group_id = ? ORDER BY number",
        (queue_id, group_id),
    ).fetchall()
    for row_id, number, epoch, floor, passed, aside, parked, first, dead in rows:
        cursor = GroupCursor(floor)
        cursor.passed = _passed(connection, row_id, passed)
        cursor.floor = cursor.passed.pop_prefix(floor)
        place = GroupPartition(group_id, Partition(queue_id, number))
        states.append(
            CursorState(
                place=place,
                epoch=epoch,
                floor=cursor.floor,
                settled_above=cursor.passed.size(),
                aside=aside,
                parked=parked,
                aside_first=first,
                dead=dead_of(dead or "").size(),
            )
        )
    return states


def standings(
    connection: sqlite3.Connection, place: GroupPartition, first: int, last: int
) -> list[Standing]:
    """What `Storage.standings` answers."""
    found = _cursor(connection, place)
    if found is None:
        return []
    row_id, cursor = found
    span_ = (row_id, first, last)
    for row in connection.execute(
        f"SELECT {codec.RETRY_COLUMNS} FROM retry WHERE cursor = ? AND place BETWEEN ? AND ?",
        span_,
    ):
        cursor.put_retry(codec.unpack_retry(*row))
    cursor.ended = _ended(connection, row_id)
    cursor.dead = _dead(connection, row_id)
    aside: dict[int, int] = {}
    for offset, key_hash, since_unix_ms in connection.execute(
        "SELECT place, side.key_hash, since_unix_ms FROM side LEFT JOIN parked "
        "ON parked.cursor = side.cursor AND parked.key_hash = side.key_hash "
        "WHERE side.cursor = ? AND place BETWEEN ? AND ?",
        span_,
    ):
        aside[offset] = key_hash
        if since_unix_ms is not None:
            cursor.parked[key_hash] = Parked(key_hash, "", since_unix_ms)
    return [cursor.standing(offset, aside.get(offset)) for offset in range(first, last + 1)]


def cursor_of(connection: sqlite3.Connection, place: GroupPartition) -> Cursor | None:
    """What `Storage.cursor` answers."""
    found = _cursor(connection, place)
    if found is None:
        return None
    row_id, cursor = found
    cursor.floor = cursor.passed.pop_prefix(cursor.floor)
    select = connection.execute
    for row in select(f"SELECT {codec.RETRY_COLUMNS} FROM retry WHERE cursor = ?", (row_id,)):
        cursor.put_retry(codec.unpack_retry(*row))
    for key_hash, entries in select(
        "SELECT key_hash, entries FROM side_line WHERE cursor = ?", (row_id,)
    ):
        cursor.lines[codec.unsigned(key_hash)] = entries
    for key_hash, reason, since_unix_ms in select(
        "SELECT key_hash, reason, since_unix_ms FROM parked WHERE cursor = ?", (row_id,)
    ):
        mark = Parked(codec.unsigned(key_hash), reason, since_unix_ms)
        cursor.parked[mark.key_hash] = mark
    cursor.ended = _ended(connection, row_id)
    cursor.dead = _dead(connection, row_id)
    return cursor.snapshot()


def _cursor(
    connection: sqlite3.Connection, place: GroupPartition
) -> tuple[int, GroupCursor] | None:
    """(row, cursor) with what it has passed; None: there is none."""
    row = connection.execute(
        "SELECT cursor.id, floor, passed FROM cursor JOIN partition "
        "ON partition.id = cursor.partition WHERE queue_id = ? AND number = ? AND group_id = ?",
        (*place.partition, place.group_id),
    ).fetchone()
    if row is None:
        return None
    cursor = GroupCursor(row[1])
    cursor.passed = _passed(connection, row[0], row[2])
    return row[0], cursor


def _ended(connection: sqlite3.Connection, row_id: int) -> RangeSet:
    """What was given out and then settled by no ack."""
    row = connection.execute("SELECT ranges FROM ended WHERE cursor = ?", (row_id,)).fetchone()
    return codec.unpack_ranges(row[0]) if row is not None else RangeSet()


def _dead(connection: sqlite3.Connection, row_id: int) -> DeadRanges:
    """What of a cursor goes to the dead letters."""
    dead = DeadRanges()
    for (ranges,) in connection.execute("SELECT ranges FROM dead WHERE cursor = ?", (row_id,)):
        dead = dead_of(ranges)
    return dead


def _passed(connection: sqlite3.Connection, row_id: int, whole: bytes) -> RangeSet:
    """What a cursor has passed: its row's ranges, and those of the commits since."""
    passed = codec.unpack_ranges(whole)
    for (ranges,) in connection.execute(
        "SELECT passed FROM cursor_log WHERE cursor = ? ORDER BY number", (row_id,)
    ):
        for first, last in codec.unpack_ranges(ranges):
            passed.add(first, last)
    return passed


def trimmable(
    connection: sqlite3.Connection,
    partition: Partition,
    due_unix_ms: int,
    *,
    keep_all: bool,
    after: int,
) -> tuple[int, int | None]:
    """What `Storage.trimmable` answers. Reads no payload: its columns are the last ones."""
    log = log_of(connection, partition)
    if log is None:
        return 0, None
    cursors: dict[int, GroupCursor] = {}
    for row_id, floor, passed in connection.execute(
        "SELECT id, floor, passed FROM cursor WHERE partition = ?", (log.row_id,)
    ).fetchall():
        cursor = cursors[row_id] = GroupCursor(floor)
        cursor.passed = _passed(connection, row_id, passed)
        cursor.dead = _dead(connection, row_id)
    if keep_all and not cursors:
        return 0, None
    settled = settled_by_all(cursors.values(), log.next_offset)
    messages = 0
    rows = connection.execute(
        "SELECT id, count, published_unix_ms FROM record WHERE id BETWEEN ? AND ? "
        "ORDER BY id LIMIT ?",
        (
            codec.record_row_id(log.row_id, max(after, log.start)),
            codec.record_row_id(log.row_id, log.next_offset),
            TRIMMABLE_ROWS,
        ),
    ).fetchall()
    for row_id, count, published_unix_ms in rows:
        first = codec.offset_of(row_id)
        if published_unix_ms > due_unix_ms:
            return messages, None  # retention passes in order
        is_settled = settled.covers(first, first + count - 1)
        if is_settled and not _stands_aside(connection, cursors, first, first + count - 1):
            messages += count
    if len(rows) < TRIMMABLE_ROWS:
        return messages, None
    return messages, first + count


def _stands_aside(
    connection: sqlite3.Connection, cursors: Iterable[int], first: int, last: int
) -> bool:
    return any(
        connection.execute(
            "SELECT 1 FROM side WHERE cursor = ? AND place BETWEEN ? AND ? LIMIT 1",
            (cursor, first, last),
        ).fetchone()
        for cursor in cursors
    )


def parked_keys(connection: sqlite3.Connection, place: GroupPartition) -> list[ParkedLine]:
    """What `Storage.parked` answers."""
    rows = connection.execute(
        "WITH line AS (SELECT cursor, key_hash, reason, since_unix_ms, "
        "(SELECT min(place) FROM side WHERE side.cursor = parked.cursor "
        "AND side.key_hash = parked.key_hash) AS head FROM parked WHERE cursor = "
        "(SELECT cursor.id FROM cursor JOIN partition ON partition.id = cursor.partition "
        "WHERE queue_id = ? AND number = ? AND group_id = ?)) "
        "SELECT line.key_hash, line.reason, since_unix_ms, coalesce(entries, 0), head, "
        "coalesce(attempts, 0), retry.reason FROM line "
        "LEFT JOIN side_line ON side_line.cursor = line.cursor "
        "AND side_line.key_hash = line.key_hash "
        "LEFT JOIN retry ON retry.cursor = line.cursor AND retry.place = head",
        (*place.partition, place.group_id),
    ).fetchall()
    lines = [ParkedLine(codec.unsigned(key_hash), *rest) for key_hash, *rest in rows]
    return sorted(lines, key=lambda line: line.key_hash)


def published(
    connection: sqlite3.Connection, places: Sequence[tuple[Partition, int]]
) -> list[int | None]:
    """What `Storage.published` answers. Reads no payload: its columns are the last ones."""
    return [_published(connection, partition, offset) for partition, offset in places]


def _published(connection: sqlite3.Connection, partition: Partition, offset: int) -> int | None:
    log = log_of(connection, partition)
    if log is None:
        return None
    offset = min(max(offset, log.start), limits.OFFSET_MAX)
    row = connection.execute(
        "SELECT published_unix_ms FROM record WHERE id >= coalesce((SELECT id FROM record "
        "WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1), ?2) AND id < ?3 "
        "AND id + count > ?2 ORDER BY id LIMIT 1",
        (
            codec.record_row_id(log.row_id, 0),
            codec.record_row_id(log.row_id, offset),
            codec.record_row_id(log.row_id, log.next_offset),
        ),
    ).fetchone()
    return None if row is None else int(row[0])
