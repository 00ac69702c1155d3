"""Backup of the embedded store: an online copy, and its renewal when it is restored (R30).

The writer copies between its commits, from the connection that writes. So commits during the copy
also change the pages that are copied already, and the copy never starts over. Between two steps no
reading transaction is open that would keep the WAL from starting anew (R31). The copy is the store
as of the copy's end, and holds all of a commit or nothing.

A copy that is restored is an older history: messages appended after it are lost, and their offsets
will be given again. So the store gets a new incarnation, every log a higher generation, and every
cursor a higher epoch and no owner. Things made in the lost history (receipts, positions, owners,
leases of a client) mean nothing in this one.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from push.errors import Refused
from push.places import Partition
from storage.sqlite import codec
from storage.sqlite.codec import insert
from storage.sqlite.open import open_store
from storage.sqlite.verify import CURSOR_COLUMNS

STEP_PAGES: Final = 256
"""Pages copied in one step: 1 MiB, a millisecond or two, for which a commit waits."""
FLUSH_STEPS: Final = 8
"""Steps between two fsyncs of the copy. A commit's fsync may wait for everything else that the file
system has to write. Without these it would wait once for all of the copy, for seconds."""
FLUSH_LOOK_S: Final = 0.005
Turn = Callable[[float], None]
"""Function of the writer that a copy calls between two steps, and which commits the next batch of
tasks. The argument is the time to wait for a task, in seconds. Raises Refused when the writer
stops."""
CopyProgress = Callable[[int, int], None]
"""Called after each step of a copy, in the writer's thread, with (bytes copied, bytes in all). The
second number may grow."""


class BackupCopy:
    """A copy of the store. It is made on the loop, where `wait` waits for it; `run` is called by
    the writer.

    `path`: the new file, which does not exist yet. `reserve_bytes`: space that is left free if the
    store itself is on the same file system, because the copy would stop the broker otherwise.
    """

    def __init__(self, path: Path, *, reserve_bytes: int, progress: CopyProgress) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.add_done_callback(asyncio.Future.exception)  # retrieved, even if no caller waits
        self._cancelled = threading.Event()
        self._turn: Turn = lambda _wait_s: None
        self._steps = 0
        self._page_bytes = 0
        self._remaining_max = 0
        self._flushing: Future[None] | None = None

    async def wait(self) -> None:
        """Wait until the copy is complete and fsynced. If this is cancelled, the copy ends first,
        incomplete.

        Raises:
            Refused: storage_full, or storage_unavailable with why; the copy is incomplete.
        """
        try:
            await asyncio.shield(self._done)
        except asyncio.CancelledError:
            self._cancelled.set()
            while not self._done.done():  # also when it is cancelled again
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((self._done,))
            raise

    def end_if(self, failure: BaseException | None) -> None:
        """End the copy with this failure, because it cannot begin. With None nothing happens."""
        if failure is not None:
            self.end(failure)

    def end(self, failure: BaseException | None) -> None:
        """Let `wait` return, or raise `failure` if there is one. Nothing happens if the copy has
        ended already. Callable from any thread."""

        def resolve() -> None:
            if self._done.done():
                return
            if failure is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(failure)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return  # the loop is closed, and no caller waits

    # --- In the writer's thread ------------------------------------------------------------------

    def run(self, source: sqlite3.Connection, turn: Turn) -> None:
        """Copy, with a turn for the writer between two steps, and pass the outcome to `wait`."""
        try:
            self._run(source, turn)
        except Refused as refused:
            self.end(refused)
        except (sqlite3.Error, OSError) as error:
            self.end(Refused("storage_unavailable", f"the copy failed: {error}"))
        else:
            self.end(None)

    def _run(self, source: sqlite3.Connection, turn: Turn) -> None:
        self._turn = turn
        (self._page_bytes,) = source.execute("PRAGMA page_size").fetchone()
        (pages,) = source.execute("PRAGMA page_count").fetchone()
        self._check_space(pages * self._page_bytes)
        self._remaining_max = pages
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        target = sqlite3.connect(self._path, isolation_level=None)
        with ThreadPoolExecutor(1, thread_name_prefix="tocsin-store-copy") as flusher:
            try:
                target.execute(
                    "PRAGMA journal_mode = OFF"
                ).fetchall()  # no earlier state than half a copy is needed
                target.execute("PRAGMA synchronous = OFF")  # the fsyncs are ours

                def between(_status: int, remaining: int, total: int) -> None:
                    self._between(remaining, total, lambda: flusher.submit(os.fsync, handle))

                source.backup(target, pages=STEP_PAGES, progress=between)
                target.close()
                self._give_turns(flusher.submit(os.fsync, handle))
            finally:
                target.close()
                os.close(handle)

    def _between(self, remaining: int, total: int, flush: Callable[[], "Future[None]"]) -> None:
        """Go on after a step. The writer has a turn only while the copy comes nearer to its end by
        half of what each step copies. So the copy slows down a faster writer, and always ends."""
        if self._cancelled.is_set():
            raise Refused("storage_unavailable", "the copy was cancelled")
        self._progress((total - remaining) * self._page_bytes, total * self._page_bytes)
        if not remaining:
            return  # the last step, after which commits would not be in the copy
        self._steps += 1
        self._remaining_max -= STEP_PAGES // 2
        may_turn = remaining <= self._remaining_max
        if self._steps % FLUSH_STEPS == 0:
            self._check_space(remaining * self._page_bytes)
            if self._flushing is not None and may_turn:
                self._give_turns(self._flushing)
            elif self._flushing is not None:
                self._flushing.result()
            self._flushing = flush()
        if may_turn:
            self._turn(0)

    def _give_turns(self, flushing: "Future[None]") -> None:
        while not flushing.done():
            self._turn(FLUSH_LOOK_S)
        flushing.result()

    def _check_space(self, needed_bytes: int) -> None:
        folder = self._path.parent
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        if needed_bytes > free - self._reserve_bytes:
            raise Refused(
                "storage_full",
                f"{folder} has {free} bytes free; the copy needs {needed_bytes} more, and leaves "
                f"{self._reserve_bytes} alone: name a folder with more room",
            )


GENERATION_MAX: Final = (1 << 32) - 1
"""Largest generation. Receipts hold 32 bits of it."""
EPOCHS_RAISED: Final = 1 << 24
"""Number by which a restore raises the epoch of each cursor: more than the owners that the lost
history can have had."""
_SLICE: Final = 1000
_INSERT_PARTITION: Final = insert("partition", codec.PARTITION_COLUMNS)


@dataclass(frozen=True, slots=True)
class RenewedStore:
    """A copy that has become a store of its own."""

    incarnation: str
    groups: frozenset[tuple[str, str]]
    """(queue_id, group_id) of every cursor in it."""
    queue_ids: frozenset[str]
    damaged: int
    """Number of rows of partitions and cursors that were damaged in the copy, and are left as they
    were."""


def renew_store(path: Path, *, raised_by: int, partitions: Mapping[str, int]) -> RenewedStore:
    """Make the copy in this file a store of its own, of this program's schema; durable when this
    returns. Blocks.

    `raised_by`: at least 1, and another number for each restore of the same copy, because two
    stores that come from one copy must not be taken for each other. `partitions`: how many each
    queue of the catalog has. Those that are not in the copy are made, of a raised generation too.

    Raises:
        Refused: storage_unavailable: the copy cannot be opened, for the reasons of `open_store`, or
            a log's generation would be above GENERATION_MAX.
    """
    opened = open_store(path)
    try:
        connection = opened.writer
        connection.execute("BEGIN IMMEDIATE")
        renewed = _renew(connection, raised_by, partitions)
        connection.execute("COMMIT")
        opened.mark_clean()
    except sqlite3.Error as error:
        raise Refused("storage_unavailable", f"the copy cannot be used: {error}") from error
    finally:
        opened.close()
    return renewed


def _renew(
    connection: sqlite3.Connection, raised_by: int, partitions: Mapping[str, int]
) -> RenewedStore:
    incarnation = uuid.uuid4().hex
    connection.execute("UPDATE meta SET value = ? WHERE name = 'incarnation'", (incarnation,))
    damaged = _raise_generations(connection, raised_by) + _raise_epochs(connection)
    _make_missing(connection, raised_by, partitions)
    queue_ids = connection.execute("SELECT DISTINCT queue_id FROM partition").fetchall()
    groups = connection.execute(
        "SELECT DISTINCT queue_id, group_id FROM cursor "
        "JOIN partition ON partition.id = cursor.partition"
    ).fetchall()
    return RenewedStore(
        incarnation, frozenset(groups), frozenset(queue_id for (queue_id,) in queue_ids), damaged
    )


def _slices(
    connection: sqlite3.Connection, table: str, columns: str
) -> Iterator[list[codec.Found]]:
    """Yield all rows of a table, a slice at a time. Each slice is read to its end, so that the
    caller may change its rows."""
    after = -1
    ids = f"SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT {_SLICE}"
    while rows := connection.execute(
        f"SELECT {columns} FROM {table} WHERE id IN ({ids}) ORDER BY id", (after,)
    ).fetchall():
        yield rows
        (after,) = connection.execute(f"SELECT max(id) FROM ({ids})", (after,)).fetchone()


# enforces: R2, R30
def _raise_generations(connection: sqlite3.Connection, raised_by: int) -> int:
    damaged = 0
    for rows in _slices(connection, "partition", codec.PARTITION_COLUMNS):
        raised = []
        for log in map(codec.unpack_partition, rows):
            if log is None:
                damaged += 1  # its checksum makes the broker refuse it, now and later
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
    """Make the partitions that the catalog has and the copy lacks, because their queues were made
    later. The broker would make them at its start, but of the generation that they had in the lost
    history."""
    there = set(connection.execute("SELECT queue_id, number FROM partition").fetchall())
    (last_row,) = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM partition UNION ALL "
        "SELECT id FROM garbage WHERE kind = 'partition')"
    ).fetchone()
    missing = [place for place in _places(partitions) if place not in there]
    rows: list[codec.Row] = []
    for row_id, place in enumerate(missing, (last_row or 0) + 1):
        log = codec.StoredLog(place, row_id=row_id)
        log.generation += raised_by
        rows.append((*codec.pack_partition(log), *place))
    if rows:
        _INSERT_PARTITION.execute(connection, rows)


def _places(partitions: Mapping[str, int]) -> Iterable[Partition]:
    for queue_id, count in partitions.items():
        for number in range(count):
            yield Partition(queue_id, number)
