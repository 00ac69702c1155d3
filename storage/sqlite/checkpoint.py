"""Checkpoints of the embedded store: pages of the WAL go into the file, in slices, beside commits.

slice    what was in the WAL when the last slice ended is copied into the file, but for pages that
         have been written again since. A reading transaction marks that point, so SQLite copies up
         to it, and the WAL does not start anew while there is more. A connection of its own copies,
         and fsyncs nothing meanwhile: neither the WAL, of which the commits have left nothing to
         do, nor the file
flush    the file is fsynced by a thread of its own, which nobody waits for: after each slice, and
         after a whole checkpoint that a reader cut short
whole    now and then, and when nobody writes: the mark goes, the rest is copied, and SQLite fsyncs
         the file, which has little left to write. Only then can the WAL start anew

Until then the WAL holds durably what a slice copied. So a power loss at any point costs nothing:
the process that opens the store next copies all of the WAL again. An fsync of the file that fails
is fatal (R31): pages of earlier slices may be gone from memory, and nobody would copy them a second
time. So nothing but this module copies anything: a COMMIT that did (wal_autocheckpoint) would get
the failure, which is reported once, and would keep it to itself.
https://sqlite.org/wal.html#ckpt, https://sqlite.org/fileformat2.html#walindexformat (nBackfill)
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

SLICE_BYTES: Final = 128 * 1024
"""Bytes handed to commits after which a slice is due as soon as no task waits. Smaller slices take
hardly less time. measured: docs/benchmarks/tuning.md#the-write-ahead-log-in-slices"""
SLICE_EVERY_S: Final = 0.02
"""The least time between two slices, in seconds. Small slices that follow at once would cost a
queue that is alone, and brings 40 MB/s, a tenth of its messages."""
SLICE_WAL_BYTES: Final = 1_048_576
"""Estimated growth of the WAL, in bytes, after which a slice is due as soon as no task waits. Small
commits reach this bound before SLICE_BYTES, because they write the same pages again and again, of
which only the last version is copied."""
BUSY_FACTOR: Final = 8
"""Multiple of SLICE_BYTES or SLICE_WAL_BYTES from which a slice is due even if a task waits. A
store that is never free must not make the WAL long."""
COMMIT_BYTES: Final = 16 * 1024
"""Estimate of the bytes that a commit adds to the WAL beyond those that it was handed."""
WHOLE_FRAMES: Final = 4096
"""Number of frames (pages in the WAL) from which the next slice copies the whole WAL: 16 MiB, once
or twice a second beside a flood."""
LONG_FRAMES: Final = 8192
"""Number of frames (pages in the WAL) from which a slice is due, even if tasks wait. The number is
an estimate, with a page for each row changed since the last checkpoint, because a commit that goes
to hundreds of partitions adds megabytes."""
_LATER: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL"})
"""Errors after which no page counts as copied. It is durable in the WAL, and copied the next
time."""
_FSYNC: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)  # not on macOS


class Checkpointer:
    """Copier of the WAL into the file. The writer's thread calls it, between two transactions.

    `mark`: a connection that does nothing but mark a point in the WAL. `slicer`: one that does
    nothing but slices. It makes no fsyncs, because they would sync a WAL that was synced (measured:
    docs/benchmarks/tuning.md#the-write-ahead-log-in-slices). `close` closes it before the others;
    if it were the last one, SQLite would copy everything with it. Both are used by the writer's
    thread, between two of its transactions, because SQLite before 3.51.3 corrupts a WAL that two
    connections write and copy at once. `file`: a descriptor of the store's file for fsyncs. Its
    owner closes it when no connection is open any more, because a process that closes any
    descriptor of a file loses its locks on it. `on_broken`: called with a sentence, from any
    thread, when nothing may be copied any more.
    """

    def __init__(
        self,
        writer: sqlite3.Connection,
        mark: sqlite3.Connection,
        slicer: sqlite3.Connection,
        file: int,
        *,
        on_broken: Callable[[str], None],
        fsync: Callable[[int], None] = _FSYNC,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._mark = mark
        self._slicer = slicer
        self._slicer.execute("PRAGMA synchronous = OFF")
        self._mark_cursor: sqlite3.Cursor | None = None
        self._file = file
        self._on_broken = on_broken
        self._fsync = fsync
        self._now = now
        self._last_slice = now()
        self._commit_bytes = 0
        """Bytes handed to commits since the last slice or whole checkpoint."""
        self._wal_bytes = 0
        """Approximate growth of the WAL since the last slice or whole checkpoint, in bytes."""
        self._frames = 0
        """Frames in the WAL at the last slice; 0 after a whole checkpoint."""
        self._row_changes = writer.total_changes
        """Number of rows that the writer's connection had changed at the last checkpoint."""
        self.has_rest = False
        """Whether a commit has ended since the last whole checkpoint, so that the WAL has something
        that the file does not have for good."""
        self._sync_lock = threading.Lock()
        self._is_lost = False
        """Whether copied pages may be lost. The WAL that has them must not start anew then."""
        self._flush_wanted = threading.Event()
        self._is_closing = False
        self._flush_thread = threading.Thread(
            target=self._flush, name="tocsin-store-flush", daemon=True
        )
        self._flush_thread.start()

    def on_commit(self, size: int) -> None:
        """Note the end of a commit that was handed `size` bytes."""
        self._commit_bytes += size
        self._wal_bytes += COMMIT_BYTES + size
        self.has_rest = True

    def is_due(self, *, is_free: bool) -> bool:
        """Whether it is time for a slice. `is_free`: no task waits for the writer."""
        factor = 1 if is_free else BUSY_FACTOR
        is_much = (
            self._commit_bytes >= factor * SLICE_BYTES
            or self._wal_bytes >= factor * SLICE_WAL_BYTES
        )
        if not is_much:
            is_much = self._frames + self._writer.total_changes - self._row_changes >= LONG_FRAMES
        return is_much and self._now() >= self._last_slice + SLICE_EVERY_S

    def advance(self) -> None:
        """Copy a slice, or from WHOLE_FRAMES on everything that is left in the WAL."""
        if self._frames >= WHOLE_FRAMES:
            self.finish()
        else:
            self._guard(self._slice)

    def finish(self) -> None:
        """Copy everything that is left in the WAL. If a reader still uses an earlier state, copy up
        to that state, and the rest the next time."""
        self._guard(self._finish)

    def release_mark(self) -> None:
        """End the reading transaction that keeps the WAL from starting anew."""
        if self._mark_cursor is not None:
            self._mark_cursor.close()
            self._mark_cursor = None

    def _guard(self, step: Callable[[], None]) -> None:
        self._commit_bytes = self._wal_bytes = 0
        self._last_slice = self._now()
        try:
            step()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") not in _LATER:
                self._on_broken(f"the log could not be carried into the file: {error}: stopped")

    def _slice(self) -> None:
        if self._mark_cursor is not None:
            if self._checkpoint(self._slicer) and not self._sync():
                return  # SQLite takes it for durable: without the mark a commit would write over it
            self.release_mark()
            self._flush_wanted.set()
        # Not read to its end, so that it is a reading transaction. It is one statement, because
        # each gives up the interpreter's lock, and has to get it back from the loop.
        self._mark_cursor = self._mark.execute("SELECT 1 FROM meta")

    def _finish(self) -> None:
        self.release_mark()
        if self._checkpoint(self._writer):
            self._frames = 0
            self.has_rest = False
        else:
            self._flush_wanted.set()  # SQLite has synced nothing

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Copy pages from the WAL into the file, up to where the oldest reader reads. Returns
        whether the whole WAL was copied."""
        ((is_busy, frames, copied),) = connection.execute(
            "PRAGMA wal_checkpoint(PASSIVE)"
        ).fetchall()
        if is_busy:
            return False
        self._frames, self._row_changes = frames, self._writer.total_changes
        return bool(copied == frames)

    def _flush(self) -> None:
        while self._flush_wanted.wait():
            self._flush_wanted.clear()
            if self._is_closing or not self._sync():
                return

    def _sync(self) -> bool:
        """Fsync the file. Returns whether the file has the copied pages for good. One call at a
        time, because Linux reports a failed write once for each descriptor, to whichever caller
        comes first."""
        with self._sync_lock:
            if not self._is_lost:
                try:
                    self._fsync(self._file)
                except OSError as error:
                    self._is_lost = True
                    self._on_broken(f"the file could not be synced ({error}): stopped")
            return not self._is_lost

    def close(self) -> None:
        """End the flush thread, and close the slicer's connection. Blocks. Called by the writer's
        thread."""
        self._slicer.close()
        self._is_closing = True
        self._flush_wanted.set()
        self._flush_thread.join()
