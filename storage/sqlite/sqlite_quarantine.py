"""Damaged records are put aside, so that what is behind them flows (R30, P13)."""

from typing import Final

from push.places import Partition
from push.record import RecordDamaged
from storage.sqlite import sqlite_codec as codec
from storage.sqlite.sqlite_books import Books
from storage.sqlite.sqlite_reader import load_record, span

_COLUMNS: Final = "id, count, published_unix_ms, bytes, checksum, skips, header, payload"


def quarantine(books: Books, partition: Partition, row_ids: list[int]) -> None:
    """Move these records to the quarantine, unless they are gone, purged, or sound after all: then
    the reader met a fault of memory, or another reader was faster."""
    books.flush()
    log = books.find(partition)
    if log is None:
        return
    for row_id in row_ids:
        row = books.connection.execute(
            f"SELECT {_COLUMNS} FROM record WHERE id = ?", (row_id,)
        ).fetchone()
        if row is None or codec.offset_of(row_id) < log.start:
            continue
        try:
            load_record(row, partition, books.sealer)
        except RecordDamaged as damage:
            reason = str(damage)
        else:
            continue
        count = span(books.connection, log, row_id)
        _, _, _, size, checksum, skips, header, payload = row
        connection = books.begin()
        connection.execute(
            "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row_id, count, books.wall_unix_ms(), reason, size, checksum, skips, header, payload),
        )  # fmt: skip
        connection.execute("DELETE FROM record WHERE id = ?", (row_id,))
        log.remove(count, max(size, 0))
        books.changed(log)
        books.report(
            f"damaged: a record of {count} messages from offset {codec.offset_of(row_id)} on in "
            f"partition {partition.number} of {partition.queue_id}: {reason}; it is in the "
            "quarantine"
        )
