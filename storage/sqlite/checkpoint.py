"""What is committed, out of the WAL into the file: in slices, beside the commits.

slice    what stood in the WAL when the last slice ended is copied into the file, but for pages that
         have been written again since. A reading transaction keeps standing there, so SQLite
         copies up to it, and the WAL does not start anew while there is more. A connection of its
         own does it, and fsyncs nothing meanwhile: neither the WAL, of which the commits have left
         nothing to do, nor the file
flush    the file is fsynced after each slice, and after a whole that somebody who reads cut short,
         by a thread of its own, which nobody waits for
whole    now and then, and when nobody writes: the transaction ends, the rest is copied, and SQLite
         fsyncs the file, which has little left to write. Only then can the WAL start anew

What a slice copied is durable in the WAL until then. So a power loss at any point costs nothing:
who starts when no process has the store open copies all of the WAL again. An fsync of the file that
fails is fatal (R31): pages of earlier slices may be gone from memory, and nobody would copy them a
second time. So nobody but this module carries anything: a COMMIT that did (wal_autocheckpoint)
would hear of the failure, which is told once, and would keep it to itself.
https://sqlite.org/wal.html#ckpt, https://sqlite.org/fileformat2.html#walindexformat (nBackfill)
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

CARRY_BYTES: Final = 128 * 1024
"""So much of what was handed to commits makes a slice as soon as nobody waits. With the fsync that
each had before a slice of 256 KiB took two milliseconds, and beside a flood one message in ten met
one: that was its p99. Smaller ones take hardly less."""
SLICE_EVERY_S: Final = 0.02
"""And no sooner after the last one: a queue that is alone and brings 40 MB/s pays for small ones a
tenth of that."""
CARRY_WAL_BYTES: Final = 1_048_576
"""The same of the WAL itself, as far as is known, where commits are small: they write the same
pages again and again, of which the last ones are carried."""
BUSY_TIMES: Final = 8
"""So many times as much is carried although somebody waits: never being free must not make the WAL
long."""
COMMIT_BYTES: Final = 16 * 1024
"""The least that a commit adds to the WAL beside what it was handed."""
WHOLE_FRAMES: Final = 4096
"""A WAL that a slice finds so long is carried whole by the next one: 16 MiB, once or twice a second
beside a flood."""
LONG_FRAMES: Final = 8192
"""If it may be so long by now, with a page for each row that was changed since it was looked at, it
is time for a slice, whoever waits: a commit that goes to hundreds of partitions adds megabytes."""
_LATER: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL"})
"""Nothing was counted as carried: it is durable where it is, and tried again."""
_FSYNC: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)  # not on macOS


class Checkpointer:
    """Called by the writer's thread, between two transactions.

    `mark`: a connection that does nothing but stand in the WAL. `slicer`: one that does nothing but
    slices: a quarter to a half of what a slice took was an fsync of a WAL that had been synced. It
    is without fsyncs from here on, and closed with this: were it the last one to be closed, SQLite
    would carry everything with it. Both are the writer's thread's, used between two of its
    transactions: SQLite before 3.51.3 corrupts a WAL that two connections write and carry at once.
    `file`: the store's file, opened for this, and closed when no connection is open any more: a
    process that closes any descriptor of a file loses its locks on it. `on_broken`: called with a
    sentence, from any thread, when nothing may be carried any more.
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
        self._standing: sqlite3.Cursor | None = None
        self._file = file
        self._on_broken = on_broken
        self._fsync = fsync
        self._now = now
        self._last = now()
        """When the last slice was."""
        self._handed = self._wal = 0
        """About how many bytes no slice has looked at: of what commits were handed, and in all."""
        self._frames = 0
        """In the WAL, as far as the last slice knows."""
        self._rows = writer.total_changes
        """Changed by then."""
        self.has_rest = False
        """Something is in the WAL that the file does not have for good."""
        self._syncing = threading.Lock()
        self._is_lost = False
        """What was copied may be, and is not to be copied over in the WAL."""
        self._wanted = threading.Event()
        self._is_closing = False
        self._flusher = threading.Thread(target=self._flush, name="tocsin-store-flush", daemon=True)
        self._flusher.start()

    def committed(self, size: int) -> None:
        """A commit has ended that was handed `size` bytes."""
        self._handed += size
        self._wal += COMMIT_BYTES + size
        self.has_rest = True

    def is_due(self, *, is_free: bool) -> bool:
        """Whether it is time for a slice; `is_free`: nobody waits for the writer."""
        times = 1 if is_free else BUSY_TIMES
        is_much = self._handed >= times * CARRY_BYTES or self._wal >= times * CARRY_WAL_BYTES
        if not is_much:
            is_much = self._frames + self._writer.total_changes - self._rows >= LONG_FRAMES
        return is_much and self._now() >= self._last + SLICE_EVERY_S

    def carry(self) -> None:
        """A slice; or, where the WAL is long, all that is left."""
        if self._frames >= WHOLE_FRAMES:
            self.finish()
        else:
            self._guarded(self._slice)

    def finish(self) -> None:
        """All that is left; unless somebody reads what was there before: up to that, and the rest
        the next time."""
        self._guarded(self._whole)

    def let_go(self) -> None:
        """Stand in the WAL no longer."""
        if self._standing is not None:
            self._standing.close()
            self._standing = None

    def _guarded(self, step: Callable[[], None]) -> None:
        self._handed = self._wal = 0
        self._last = self._now()
        try:
            step()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") not in _LATER:
                self._on_broken(f"the log could not be carried into the file: {error}: stopped")

    def _slice(self) -> None:
        if self._standing is not None:
            if self._checkpoint(self._slicer) and not self._sync():
                return  # SQLite takes it for durable: without the mark a commit would write over it
            self.let_go()
            self._wanted.set()
        # Not read to its end, so that it is a reading transaction. With one statement: each of them
        # gives up the interpreter's lock, and has to get it back from the loop.
        self._standing = self._mark.execute("SELECT 1 FROM meta")

    def _whole(self) -> None:
        self.let_go()
        if self._checkpoint(self._writer):
            self._frames = 0
            self.has_rest = False
        else:
            self._wanted.set()  # SQLite has synced nothing

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Up to who reads; whether that was all."""
        ((is_busy, log, carried),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if is_busy:
            return False
        self._frames, self._rows = log, self._writer.total_changes
        return bool(carried == log)

    def _flush(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            if self._is_closing or not self._sync():
                return

    def _sync(self) -> bool:
        """Whether the file has for good what was copied; who hears that it has not says so. One at
        a time: Linux tells of a failed write once for each descriptor, whoever asks."""
        with self._syncing:
            if not self._is_lost:
                try:
                    self._fsync(self._file)
                except OSError as error:
                    self._is_lost = True
                    self._on_broken(f"the file could not be synced ({error}): stopped")
            return not self._is_lost

    def close(self) -> None:
        """End the thread, and the slicer. Blocks. By whoever called the rest."""
        self._slicer.close()
        self._is_closing = True
        self._wanted.set()
        self._flusher.join()
