"""Dropping what stands in a queue, in one act, however much it is (R12).

The cursors begin anew at the end, and the partitions' rows say that nothing below it is retained;
no read goes below that. The records themselves leave in slices afterwards (R31).
"""

from typing import Final

from push import limits
from push.errors import Refused
from push.places import GroupPartition
from storage.rules.appending import PartitionLog
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_books import Books

_ROWS: Final = 1000
"""Deleted in one commit, at most."""


def purge(books: Books, queue_id: str, group_id: str | None) -> int:
    """What `Storage.purge` does, within the writer's batch."""
    books.flush()
    logs = books.queue(queue_id)
    if not logs:
        raise Refused("queue_not_found", f"the storage has no queue {queue_id}")
    if group_id is not None:
        return _purge_group(books, logs, group_id)
    count = 0
    for log in logs:
        count += log.messages
        for stored in books.cursors.of_partition(log.row_id, log.partition):
            books.cursors.replace(stored.place, log.row_id, log.next_offset)
        books.cursors.on_replaced(log.row_id)
        log.drop_all()
        books.changed(log)
        books.begin().execute("DELETE FROM quarantine WHERE id BETWEEN ? AND ?", _below_start(log))
    return count


def _purge_group(books: Books, logs: list[PartitionLog], group_id: str) -> int:
    found = [(log, books.cursors.find(GroupPartition(group_id, log.partition))) for log in logs]
    count = 0
    for log, stored in found:
        if stored is None:
            raise Refused("group_not_found", f"the storage has no group {group_id}")
        count += stored.cursor.unsettled(log.next_offset)
    for log, _ in found:
        place = GroupPartition(group_id, log.partition)
        books.cursors.replace(place, log.row_id, log.next_offset)
    return count


def sweep_purged(books: Books, log: PartitionLog) -> int:
    """Delete a slice of the records below the partition's start, which nobody sees any more; the
    bytes. There are some after a purge only."""
    low, high = _below_start(log)
    rows = books.connection.execute(
        "SELECT id, length(header) + length(payload) FROM record WHERE id BETWEEN ? AND ? "
        "ORDER BY id LIMIT ?",
        (low, high, _ROWS),
    ).fetchall()
    freed = last = 0
    for row_id, size in rows:
        last, freed = row_id, freed + size
        if freed >= limits.TRIM_BYTES_PER_COMMIT_MAX:
            break
    if rows:
        connection = books.begin()
        connection.execute("DELETE FROM record WHERE id BETWEEN ? AND ?", (low, last))
    return freed


def _below_start(log: PartitionLog) -> tuple[int, int]:
    """The row ids of what lies there, as far as there is something."""
    low = codec.record_row_id(log.row_id, 0)
    return low, codec.record_row_id(log.row_id, log.start) - 1
