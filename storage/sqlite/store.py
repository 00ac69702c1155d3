"""The embedded storage: SQLite behind `push.storage_port.Storage`.

store       the port, on the event loop
writer      the thread that commits
  state       the values that it decides on and flushes: partitions, producers, client ids
  cursors     the same for cursors
  due_rows    the same for scheduled messages
  trim        deletion, in slices
  checkpoint  from the WAL into the file
reader      the thread that reads
due         the port of the due store, its tasks and its reads
codec       rows and statements
open        the file's lock, pragmas and schema
backup      a copy made while the store works, and its restore
verify      the check of a store at rest
"""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from push import limits
from push.errors import Refused
from push.places import CursorPlace, Durability, ParkedLine, Partition
from push.record import Record
from push.storage_port import (
    ONE_LANE,
    PLAIN,
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    Lane,
    MessageStatus,
    Owned,
    PartitionState,
    Read,
    Sealer,
    Start,
    StorageState,
    WakeUp,
    Written,
)
from storage.sqlite import reader as looking
from storage.sqlite import reader as reading
from storage.sqlite.backup import BackupCopy, CopyProgress
from storage.sqlite.due import SqliteDueStore
from storage.sqlite.open import STEPS, StoreConnections, Touches, open_store
from storage.sqlite.reader import quarantine
from storage.sqlite.state import FreeSpace, WriteState
from storage.sqlite.trim import SLICES, Trimmer, purge
from storage.sqlite.writer import StoreWriter

T = TypeVar("T")
_LOG: Final = logging.getLogger("tocsin.storage")
_REPORTS_MAX: Final = 20
"""Number of latest reports of damage that are kept for display."""


class SqliteStorage:
    """`push.storage_port.Storage` in one file. Open it with `SqliteStorage.open`.

    Tasks are committed in groups by one thread; reads go through another. Embedded, the levels
    `local`, `quorum` and `all` are the same single fsync, and the certified end is the end.
    """

    inbox = None

    def __init__(
        self,
        connections: StoreConnections,
        *,
        free_bytes_reserve: int,
        on_fatal: Callable[[str], None] | None,
        wall: Callable[[], float],
        sealer: Sealer,
    ) -> None:
        """Take over opened connections; use `open`."""
        loop = asyncio.get_running_loop()
        self._connections = connections
        self._free_bytes_reserve = free_bytes_reserve
        self._space = FreeSpace(connections.path.parent, free_bytes_reserve)
        self._reports: deque[str] = deque(maxlen=_REPORTS_MAX)
        self._report_lock = threading.Lock()
        self._reported = 0
        self._sealer = sealer
        self._state = WriteState(
            connections.writer,
            wall=wall,
            space=self._space,
            report=self._report,
            sealer=sealer,
        )
        self._trimmer = Trimmer(self._state)
        readers = threading.Lock()
        self._writer = StoreWriter(
            connections, self._state, self._trimmer, loop, readers=readers, on_fatal=on_fatal
        )
        self._reader = reading.StoreReader(
            connections.reader, loop, readers=readers, on_corrupt=self._writer.fail
        )
        self.due = SqliteDueStore(self._state, self._writer, self._reader, sealer)
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        free_bytes_reserve: int = limits.FREE_BYTES_RESERVE,
        synchronous: str = "FULL",
        on_fatal: Callable[[str], None] | None = None,
        wall: Callable[[], float] = time.time,
        steps: Sequence[str] = STEPS,
        sealer: Sealer = PLAIN,
        before: Touches | None = None,
    ) -> "SqliteStorage":
        """Open the store in this file, or make it.

        `free_bytes_reserve`: the free space below which publishing stops. `synchronous`: with
        NORMAL acknowledged messages, or the file, are lost with the power. `on_fatal`: called once
        on the event loop, with a sentence, when a commit failed or the file turned out to be
        broken. Nothing is accepted any more then, and the process should stop (R31). `wall`: unix
        clock in seconds. `steps`: the schema and its migrations. `sealer`: called by the writer and
        the reader, in their threads. `before`: the store that is known to have
        been here.

        Raises:
            Refused: storage_unavailable, with a sentence: in use, damaged, of a newer version, an
                older copy of the store.
        """
        connections = await asyncio.to_thread(
            open_store, Path(path), synchronous=synchronous, steps=steps, before=before
        )
        try:
            return cls(
                connections,
                free_bytes_reserve=free_bytes_reserve,
                on_fatal=on_fatal,
                wall=wall,
                sealer=sealer,
            )
        except sqlite3.Error as error:
            connections.close()
            raise Refused("storage_unavailable", f"{path} cannot be read: {error}") from error

    def _report(self, sentence: str) -> None:
        _LOG.warning("%s", sentence)
        with self._report_lock:
            self._reports.append(sentence)
            self._reported += 1

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._reader.read(work)

    # --- Queues and groups ---------------------------------------------------------------------

    async def incarnation(self) -> str:
        """Return the incarnation, which is made with the store. Only a restore makes another one
        (R30)."""
        return self._connections.incarnation

    @property
    def touches(self) -> int:
        """Number of its touches by now (`storage.sqlite.open.Touches`)."""
        return self._connections.touches

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        await self._writer.submit(partial(self._state.create_queue, queue_id, partitions))

    async def drop_queue(self, queue_id: str) -> None:
        """Delete the queue, durably when this returns. Its space is freed in slices afterwards,
        also after a restart."""
        await self._writer.submit(partial(self._state.drop_queue, queue_id))

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        await self._writer.submit(partial(self._state.create_group, group_id, queue_id, starts))

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        """Drop the group's cursors and side lines. Their space is freed in slices afterwards, also
        after a restart."""
        await self._writer.submit(partial(self._state.drop_group, group_id, queue_id))

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        await self._writer.submit(partial(self._state.seek, group_id, queue_id, starts))

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        """Drop messages as `Storage.purge` says. Their space is freed in slices afterwards."""
        return await self._writer.submit(partial(purge, self._state, queue_id, group_id))

    # --- Messages ------------------------------------------------------------------------------

    def lane(self, partition: Partition, level: Durability) -> Lane:
        return ONE_LANE

    def copies(self, partition: Partition, level: Durability) -> int:
        return 1

    def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> Awaitable[list[Appended]]:
        """Append records; durable, and certified, when this is awaited (R10). It begins at once."""
        size = 0
        for append in appends:
            size += len(append.header) + len(append.payload)
        return self._writer.submit(partial(self._state.append, appends), size)

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        """Read certified records. Damaged ones are reported and quarantined (R30)."""
        result, bad = await self._read(
            lambda connection: reading.read_records(
                connection, partition, offset, bytes_max, until=until, sealer=self._sealer
            )
        )
        if bad and not self._writer.failure:
            await self._writer.submit(lambda: quarantine(self._state, partition, bad))
        return result

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        found, bad = await self._read(
            lambda connection: reading.read_each(
                connection, partition, offsets, bytes_max, self._sealer
            )
        )
        if bad and not self._writer.failure:
            await self._writer.submit(lambda: quarantine(self._state, partition, bad))
        return found

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        """Find the offset by bisection over the records' times of publishing."""
        return await self._read(
            lambda connection: reading.offset_at(connection, partition, unix_ms)
        )

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        freed, more, slices, enough = 0, True, 0, limits.TRIM_BYTES_PER_COMMIT_MAX
        while more and (not freed or (slices < SLICES and freed < enough)):
            gone, more = await self._writer.submit(
                lambda: self._trimmer.trim(partition, retention_s=retention_s, keep_all=keep_all),
                is_background=True,
            )
            freed, slices = freed + gone, slices + 1
        return freed

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        due_unix_ms = self._state.wall_unix_ms() - int(retention_s * 1000)
        return await self._read(
            lambda connection: looking.trimmable(
                connection, partition, due_unix_ms, keep_all=keep_all, after=after
            )
        )

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        return await self._writer.submit(partial(self._state.seal, partition, successors))

    # --- Cursors -------------------------------------------------------------------------------

    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        return await self._writer.submit(
            lambda: self._state.cursors.own(
                place, token=token, assignment=assignment, epoch_seen=epoch_seen
            )
        )

    def write_cursors(self, writes: Sequence[CursorWrite]) -> Awaitable[list[Written]]:
        """Make fenced cursor changes (R16, R18, R29). They begin at once."""
        return self._writer.submit(partial(self._state.cursors.write, writes))

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        return await self._read(
            lambda connection: reading.read_side(connection, place, key_hash, after, count_max)
        )

    # --- Looking -------------------------------------------------------------------------------

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        return await self._read(lambda connection: looking.partition_states(connection, queue_id))

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        return await self._read(
            lambda connection: looking.cursor_states(connection, queue_id, group_id)
        )

    async def cursor(self, place: CursorPlace) -> Cursor | None:
        return await self._read(lambda connection: looking.cursor_of(connection, place))

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        return await self._read(lambda connection: looking.published(connection, places))

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        return await self._read(
            lambda connection: looking.standings(connection, place, first, last)
        )

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        return await self._read(lambda connection: looking.parked_keys(connection, place))

    def on_certified(self, wake_up: WakeUp) -> None:
        self._writer.wake_up = wake_up

    async def state(self) -> StorageState:
        """Return the state. `detail` has the file, SQLite's version and `synchronous`, the free
        space, the number of commits, and reports of damage."""
        reasons: list[str] = []
        writable = not self._closed and not self._writer.failure
        if self._closed:
            reasons.append("the storage is closed")
        elif self._writer.failure:
            reasons.append(self._writer.failure)
        has_space = self._space.is_enough()
        if not has_space:
            reasons.append("free space is below the reserve: publishing has stopped")
        with self._report_lock:
            reports, reported = list(self._reports), self._reported
        detail = {
            "file": str(self._connections.path),
            "synchronous": self._connections.synchronous,
            "sqlite": sqlite3.sqlite_version,
            "free_bytes": str(self._space.free_bytes),
            "commits": str(self._writer.commits),
            "damage_reports": str(reported),
            "damage_latest": "; ".join(reports),
        }
        return StorageState(
            writable, writable and has_space, (*reasons,), detail, self._writer.took
        )

    async def copy_to(self, path: Path, progress: CopyProgress) -> None:
        """Copy the store into a new file, fsynced when this returns, while everything goes on. The
        copy has all that was acknowledged before this call, and perhaps some of what came during
        it. The folder is not fsynced. If this is cancelled or raises, the file is incomplete, or
        does not exist.

        Raises:
            Refused: storage_full, storage_unavailable, with a sentence.
        """
        if self._closed:
            raise Refused("storage_unavailable", "the storage is closed")
        same_disk = os.stat(path.parent).st_dev == os.stat(self._connections.path).st_dev
        reserve_bytes = self._free_bytes_reserve if same_disk else 0
        await self._writer.copy(BackupCopy(path, reserve_bytes=reserve_bytes, progress=progress))

    async def close(self) -> None:
        """Finish what was accepted, then close. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._writer.refuse("the storage is closed")
        self._reader.refuse("the storage is closed")
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._connections.close(is_broken=bool(self._writer.failure))
