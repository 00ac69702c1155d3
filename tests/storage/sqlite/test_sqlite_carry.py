"""Out of the WAL into the file, in slices: what is where when, and what a failure means."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from push.errors import Refused
from storage.sqlite import checkpoint
from storage.sqlite.checkpoint import (
    BUSY_FACTOR,
    COMMIT_BYTES,
    SLICE_BYTES,
    SLICE_EVERY_S,
    SLICE_WAL_BYTES,
    Checkpointer,
)
from storage.sqlite.open import StoreConnections, open_store
from tests.contract.stores import P0, append
from tests.storage.conftest import Embedded

ROW_BYTES = 20_000


def rows_without_wal(path: Path, table: str) -> int:
    """Of a copy of the file alone; 0 where that has not even the table."""
    copy = path.with_name("copy.sqlite")
    subprocess.run(["cp", path, copy], check=True)  # this process must not close the file
    with contextlib.closing(sqlite3.connect(copy)) as made:
        tables = made.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall()
        return int(made.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if tables else 0


class Store:
    """A file with one table, a checkpointer over it, and what the checkpointer said and did."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.sqlite"
        self.broken: list[str] = []
        self.now = 0.0
        self.synced = threading.Event()
        self.opened: StoreConnections = open_store(self.path)
        self.opened.writer.execute("CREATE TABLE paper (page BLOB)")
        self.opened.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._empty_bytes = self.path.stat().st_size
        self.checkpointer = self.checkpointer_with(self._sync)

    def checkpointer_with(self, fsync: Callable[[int], None]) -> Checkpointer:
        opened = self.opened
        return Checkpointer(
            opened.writer, opened.mark, opened.slicer, opened.file, on_broken=self.broken.append,
            fsync=fsync, now=lambda: self.now,
        )  # fmt: skip

    def _sync(self, handle: int) -> None:
        os.fsync(handle)
        self.synced.set()

    def write(self, count: int = 1, size: int = ROW_BYTES) -> None:
        """This many commits."""
        for _ in range(count):
            self.opened.writer.execute("INSERT INTO paper VALUES (?)", (bytes(size),))
            self.checkpointer.on_commit(size)

    def in_file(self) -> int:
        """Rows whose own pages the file has; the page that points to them may be in the WAL."""
        return (self.path.stat().st_size - self._empty_bytes) // ROW_BYTES

    def wal_began(self) -> int:
        """How often; https://sqlite.org/fileformat2.html#walformat, "checkpoint sequence"."""
        return int.from_bytes(self.path.with_name("store.sqlite-wal").read_bytes()[12:16], "big")

    def wal_bytes(self) -> int:
        return self.path.with_name("store.sqlite-wal").stat().st_size


class BadDisk:
    """Of which this many fsyncs fail; behind that all is well, as Linux has it (errseq)."""

    def __init__(self, times: int = 1_000) -> None:
        self._times = times
        self.failed = threading.Event()

    def fsync(self, _: int) -> None:
        """Raises what the first ones do."""
        if self._times:
            self._times -= 1
            self.failed.set()
            raise OSError(5, "Input/output error")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.checkpointer.release_mark()
    made.checkpointer.close()
    made.opened.close()


def test_a_slice_has_what_was_there_when_the_one_before_ended(store: Store) -> None:
    store.write(3)
    store.checkpointer.advance()
    assert store.in_file() == 0
    store.write(2)
    store.checkpointer.advance()
    assert store.in_file() == 3
    store.checkpointer.advance()
    assert store.in_file() == 5
    assert store.checkpointer.has_rest, "nobody has synced the file for good"
    assert not store.broken


def test_behind_each_slice_the_file_is_synced_beside_the_writer(store: Store) -> None:
    store.write()
    store.checkpointer.advance()
    assert not store.synced.wait(0.05)
    store.write()
    store.checkpointer.advance()
    assert store.synced.wait(20)


def test_a_slice_of_all_there_is_is_synced_before_the_wal_may_start_anew(store: Store) -> None:
    """R31: SQLite takes for durable what it was told to copy and not to sync, and the next commit
    writes over it as soon as nobody stands in the WAL."""
    stood: list[bool] = []
    checkpointer = store.checkpointer_with(
        lambda _: stood.append(checkpointer._mark_cursor is not None)
    )
    store.write()
    checkpointer.advance()
    checkpointer.advance()
    assert stood[0], "synced while the mark still stood there"
    checkpointer.close()
    began = store.wal_began()
    store.write()
    assert store.wal_began() > began, "the control of the tests that follow: now it may"
    assert not store.broken


def test_a_slice_of_all_there_is_that_cannot_be_synced_leaves_the_wal(store: Store) -> None:
    """What it copied may be lost; so nobody may write over what it was copied from."""
    checkpointer = store.checkpointer_with(BadDisk().fsync)
    store.write()
    checkpointer.advance()
    checkpointer.advance()
    began = store.wal_began()
    store.write()
    assert store.wal_began() == began
    (sentence,) = store.broken
    assert "could not be synced" in sentence
    checkpointer.close()


def test_a_failed_sync_that_another_caller_received_leaves_the_wal(store: Store) -> None:
    """R31: Linux tells of it once for each descriptor; who asks behind that is told that all is
    well."""
    disk = BadDisk(times=1)
    checkpointer = store.checkpointer_with(disk.fsync)
    store.write()
    checkpointer.advance()
    store.write()
    checkpointer.advance()
    assert disk.failed.wait(20)
    checkpointer.advance()
    began = store.wal_began()
    store.write()
    assert store.wal_began() == began
    assert len(store.broken) == 1
    checkpointer.close()


def test_only_slices_are_without_an_fsync(tmp_path: Path) -> None:
    """And who does them is not there any more when the store is closed: the last connection that is
    closed carries everything, and gives up the WAL."""

    def level(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA synchronous").fetchone()[0])

    opened = open_store(tmp_path / "store.sqlite")
    assert level(opened.slicer) == 2, "nobody carries yet: who drops it all closes it in no order"
    checkpointer = Checkpointer(
        opened.writer, opened.mark, opened.slicer, opened.file, on_broken=pytest.fail
    )  # fmt: skip
    others = (opened.writer, opened.mark, opened.reader)
    assert [level(opened.slicer), *map(level, others)] == [0, 2, 2, 2]
    checkpointer.close()
    with pytest.raises(sqlite3.ProgrammingError):
        level(opened.slicer)
    opened.close()


def test_what_lets_the_wal_start_anew_is_carried_by_who_syncs(store: Store) -> None:
    store.opened.slicer.close()
    store.write(3)
    store.checkpointer.finish()
    assert not store.broken
    assert not store.checkpointer.has_rest
    assert store.in_file() == 3


def test_it_is_due_by_bytes_handed_by_commits_and_later_where_somebody_waits(store: Store) -> None:
    """On both sides of each bound."""
    checkpointer = store.checkpointer
    for factor, is_free in ((1, True), (BUSY_FACTOR, False)):
        checkpointer.finish()
        store.now += SLICE_EVERY_S
        checkpointer.on_commit(factor * SLICE_BYTES - 1)
        assert not checkpointer.is_due(is_free=is_free)
        checkpointer.on_commit(1)
        assert checkpointer.is_due(is_free=is_free)
        checkpointer.finish()
        store.now += SLICE_EVERY_S
        commits = factor * SLICE_WAL_BYTES // COMMIT_BYTES
        for _ in range(commits - 1):
            checkpointer.on_commit(0)
        assert not checkpointer.is_due(is_free=is_free)
        checkpointer.on_commit(0)
        assert checkpointer.is_due(is_free=is_free)


def test_a_slice_keeps_its_distance_from_the_last_one(store: Store) -> None:
    """On both sides: small ones, one after the other, are what a queue that is alone pays for."""
    checkpointer = store.checkpointer
    for step in (checkpointer.advance, checkpointer.finish):
        step()
        checkpointer.on_commit(SLICE_BYTES)
        store.now += SLICE_EVERY_S * 0.99
        assert not checkpointer.is_due(is_free=True)
        store.now += SLICE_EVERY_S * 0.02
        assert checkpointer.is_due(is_free=True)


def test_a_long_wal_is_carried_whole_and_starts_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: also where nobody ever pauses."""
    monkeypatch.setattr(checkpoint, "WHOLE_FRAMES", 60)
    longest = 0
    for count in range(200):
        store.write()
        store.checkpointer.advance()
        longest = max(longest, store.wal_bytes())
        assert store.in_file() >= count - 2
    assert longest < 2 * 60 * 4200


def test_without_whole_ones_the_wal_would_grow_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before: the mark never leaves the WAL."""
    monkeypatch.setattr(checkpoint, "WHOLE_FRAMES", 1 << 40)
    for _ in range(200):
        store.write()
        store.checkpointer.advance()
    assert store.wal_bytes() > 200 * ROW_BYTES


def test_all_of_it_goes_when_it_is_finished_unless_somebody_reads(store: Store) -> None:
    store.write(3)
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN").execute("SELECT count(*) FROM paper").fetchall()
    store.write(2)
    store.checkpointer.finish()
    assert store.checkpointer.has_rest
    assert store.in_file() == 3
    reader.close()
    store.checkpointer.finish()
    assert not store.checkpointer.has_rest
    assert rows_without_wal(store.path, "paper") == 5
    store.write()
    assert store.checkpointer.has_rest
    store.checkpointer.advance()  # behind a whole one there is no mark yet
    store.checkpointer.advance()
    assert store.in_file() == 6


def test_what_a_reader_cuts_short_is_synced_beside_the_writer(store: Store) -> None:
    """R31: SQLite has synced nothing of what it copied, and does not copy that again."""
    store.write(3)
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN").execute("SELECT count(*) FROM paper").fetchall()
    store.write(2)
    assert not store.synced.is_set()
    store.checkpointer.finish()
    assert store.synced.wait(20)
    store.synced.clear()
    reader.close()
    store.checkpointer.finish()
    assert not store.synced.wait(0.05)


def test_no_commit_carries_anything(store: Store) -> None:
    """R31: it would keep to itself that an fsync failed, which is told once."""
    store.write()
    for _ in range(30):
        store.opened.writer.execute("INSERT INTO paper VALUES (zeroblob(4000000))")
    assert store.wal_bytes() > 100_000_000
    assert rows_without_wal(store.path, "paper") == 0


def test_a_log_that_may_be_long_by_the_rows_that_were_changed_is_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both sides: a commit that goes to a thousand partitions was handed little."""
    monkeypatch.setattr(checkpoint, "LONG_FRAMES", 1000)
    checkpointer = store.checkpointer
    store.write()
    checkpointer.advance()
    checkpointer.advance()
    frames = checkpointer._frames
    assert frames
    store.now += SLICE_EVERY_S
    writer = store.opened.writer
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO paper VALUES (?)", [(b"",)] * (999 - frames))
    assert not checkpointer.is_due(is_free=False)
    writer.execute("INSERT INTO paper VALUES (?)", (b"",))
    assert checkpointer.is_due(is_free=False)
    writer.execute("COMMIT")
    checkpointer.advance()
    store.now += SLICE_EVERY_S
    assert not checkpointer.is_due(is_free=False)


def test_where_somebody_else_carries_it_is_tried_again(store: Store) -> None:
    """SQLite answers that it is busy, and of no frames at all."""
    store.write(3)
    code = "import fcntl, struct, sys\n"
    code += "shm = open(sys.argv[1] + '-shm', 'r+b')\n"
    # The byte that SQLite locks while it carries: https://sqlite.org/walformat.html#wal_locks
    code += "lock = struct.pack('hhqqi', fcntl.F_WRLCK, 0, 121, 1, 0)\n"
    code += "fcntl.fcntl(shm, fcntl.F_SETLK, lock)\n"
    code += "print('locked', flush=True)\n"
    code += "sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, store.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"locked\n"
        store.checkpointer.finish()
        assert store.checkpointer.has_rest
        assert store.in_file() == 0
        other.stdin.close()
    store.checkpointer.finish()
    assert not store.checkpointer.has_rest
    assert store.in_file() == 3
    assert not store.broken


def test_a_sync_that_fails_says_so_once(store: Store) -> None:
    """What earlier slices wrote may be lost: nobody would write it again."""
    disk = BadDisk()
    checkpointer = store.checkpointer_with(disk.fsync)
    store.write()
    checkpointer.advance()
    store.write()
    checkpointer.advance()
    assert disk.failed.wait(20)
    store.write()
    checkpointer.advance()
    checkpointer.close()
    checkpointer.release_mark()
    (sentence,) = store.broken
    assert "could not be synced" in sentence
    assert "Input/output error" in sentence


def test_a_log_that_cannot_be_carried_says_so(store: Store) -> None:
    checkpointer = store.checkpointer
    store.write()
    checkpointer.advance()
    other = sqlite3.connect(":memory:")
    other.close()
    checkpointer._slicer = other
    checkpointer.advance()
    (sentence,) = store.broken
    assert "could not be carried" in sentence


UNSYNCED = """
import asyncio, contextlib, shutil, sys
from pathlib import Path
from push.errors import Refused
from storage.sqlite.store import SqliteStorage
from storage.sqlite.checkpoint import SLICE_BYTES
from tests.contract.stores import append

def fail(_):
    raise OSError(5, "Input/output error")

async def main(path):
    told = []
    store = await SqliteStorage.open(path, on_fatal=told.append, free_bytes_reserve=0)
    await store.create_queue("q-1", 1)
    shutil.copy(path, path.with_name("before"))
    store._writer._checkpointer._fsync = fail
    acked = 0
    try:
        while True:
            await store.append([append(messages=1, size=SLICE_BYTES)])
            acked += 1
            await store.partitions("q-1")
    except Refused as error:
        assert "could not be synced" in str(error), error
    await store.close()
    assert len(told) == 1, told
    print(acked, flush=True)
    sys.stdin.readline()

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_store_whose_file_cannot_be_synced_stops_and_has_everything_when_it_starts(
    embedded: Embedded,
) -> None:
    """R31. Whoever fails so is to end, and nobody has the file before; not even an interpreter that
    ends as usual gives up the log. What had been carried may be lost with pages that nobody could
    write: all of it is carried again."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", UNSYNCED, embedded.path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    acked = int(await process.stdout.readline())
    with pytest.raises(Refused, match="in use"):
        await embedded.open()
    process.stdin.write(b"\n")
    assert await process.wait() == 0
    wal = embedded.path.with_name("store.sqlite-wal")
    assert wal.stat().st_size, "what is in it has not been carried, and is not given up"
    embedded.path.with_name("before").replace(embedded.path)
    store = await embedded.open()
    read = await store.read(P0, 0, 10**9)
    assert len(read.records) >= acked > 1


async def test_where_nobody_comes_any_more_the_file_has_everything(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await store.append([append(messages=1)])
    async with asyncio.timeout(20):
        while not rows_without_wal(embedded.path, "record"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
