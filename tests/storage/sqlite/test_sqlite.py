"""The embedded storage under load, under pressure, and when somebody goes away."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from push.errors import Refused
from push.places import CursorPlace, Partition
from push.storage_port import Retry, Side
from storage.sqlite import trim as sqlite_trim
from storage.sqlite.checkpoint import COMMIT_BYTES, SLICE_BYTES, SLICE_WAL_BYTES
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import (
    ANN,
    BEN,
    G0,
    P0,
    append,
    change,
    one,
    outcomes,
    sequences,
    with_group,
)
from tests.storage.conftest import Embedded, commits


async def test_what_waits_during_a_commit_is_the_next_commit(embedded: Embedded) -> None:
    """Group commit, without a timer."""
    store = await embedded.open()
    await with_group(store, messages=1000)
    before = await commits(store)
    appends = [store.append([append(messages=3)]) for _ in range(200)]
    settles = [store.write_cursors([change(settled=[(n, n)])]) for n in range(200)]
    await asyncio.gather(*appends, *settles)
    assert await commits(store) - before < 20


async def test_an_act_that_is_refused_does_not_touch_the_others_of_its_commit(
    embedded: Embedded,
) -> None:
    """P12."""
    store = await embedded.open()
    await with_group(store, messages=4)
    answers = await asyncio.gather(
        store.append([append(messages=1)]),
        store.write_cursors([change(settled=[(0, 99)])]),
        store.own(CursorPlace("g-9", P0), token=b"x", assignment=1),
        store.write_cursors([change(settled=[(0, 3)])]),
        store.seek("g-9", "q-1", [0, 0]),
        store.append([append(messages=1)]),
        return_exceptions=True,
    )
    codes = [a.code.name if isinstance(a, Refused) else "" for a in answers]
    assert codes == ["", "invalid_request", "group_not_found", "", "group_not_found", ""]
    store = await embedded.open()
    assert (await store.partitions("q-1"))[0].end == 6
    assert (await store.cursors("q-1", "g-1"))[0].floor == 4


async def test_cancelled_callers_do_not_break_the_writer(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    tasks = [asyncio.ensure_future(store.append([append(messages=1)])) for _ in range(50)]
    reads = [asyncio.ensure_future(store.read(P0, 0, 100)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in [*tasks[::2], *reads]:
        task.cancel()
    done = await asyncio.gather(*tasks, *reads, return_exceptions=True)
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in done) == 35
    assert await one(store, append(messages=1)) == [50]


async def test_closing_finishes_what_was_accepted(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    tasks = [asyncio.ensure_future(store.append([append(messages=1)])) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*tasks)
    assert [outcomes(answer)[0] for (answer,) in answers] == list(range(50))


async def test_below_the_reserve_publishing_stops_and_the_rest_goes_on(embedded: Embedded) -> None:
    """R29, R31: settles, owners and trimming go on, and make room."""
    store = await embedded.open()
    await with_group(store, messages=4)
    assert await sequences(store, [1]) == [4]
    store = await embedded.open(free_bytes_reserve=1 << 60)
    state = await store.state()
    assert (state.writable, state.publishable) == (True, False)
    assert "free space" in state.reasons[0]
    assert await sequences(store, [1, 2, 3]) == [-5, "storage_full", "out_of_sequence"]
    owned = await store.own(G0, token=b"b", assignment=1)
    await store.write_cursors([change(epoch=owned.epoch, token=b"b", settled=[(0, 4)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    store = await embedded.open()
    assert await sequences(store, [2]) == [5]


async def test_a_commit_that_only_meets_duplicates_is_a_commit(embedded: Embedded) -> None:
    """R9: so that a wait for replicas behind it would mean something."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await sequences(store, [1])
    before = await commits(store)
    assert await sequences(store, [1]) == [-1]
    assert await commits(store) == before + 1


async def test_a_read_that_was_given_up_takes_no_turn_of_the_reader(embedded: Embedded) -> None:
    """P9: who is told that the storage does not answer asks again; what he asked before must not
    be done also, or a disk that is slow for a while has ever more to do."""
    store = await embedded.open()
    goes, done = threading.Event(), list[str]()

    def work(name: str) -> Callable[[sqlite3.Connection], None]:
        return lambda _connection: done.append(name)

    def slow(_connection: sqlite3.Connection) -> None:
        goes.wait(30)

    first = asyncio.create_task(store._reader.read(slow))
    given_up = [asyncio.create_task(store._reader.read(work(f"old {n}"))) for n in range(3)]
    wanted = asyncio.create_task(store._reader.read(work("wanted")))
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.wait(given_up)
    goes.set()
    await asyncio.gather(first, wanted)
    assert done == ["wanted"]


async def test_the_caches_are_no_part_of_the_answer(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing kept in memory every answer is the same."""
    for name in ("PARTITIONS_CACHED_MAX", "LINES_CACHED_MAX"):
        monkeypatch.setattr(f"storage.sqlite.state.{name}", 0)
    monkeypatch.setattr("storage.sqlite.cursors.CURSORS_CACHED_WEIGHT_MAX", 0)
    store = await embedded.open()
    await with_group(store)
    for start in range(0, 60, 6):
        record = append(
            runs=[(ANN, start, range(start, start + 6)), (BEN, start, range(start, start + 6))]
        )
        assert await one(store, record) == list(range(2 * start, 2 * start + 12))
        await store.write_cursors(
            [change(settled=[(start, start + 3)], retries=[Retry(start + 4, 1)])]
        )
        await store.write_cursors([change(aside=[Side(start + 1, (start + 5,))])])
        assert await sequences(store, [start + 1], resolved=start) == [-2 * start - 2]
    cursor = (await store.own(G0, token=b"b", assignment=1)).cursor
    assert (len(cursor.retries), len(cursor.lines), cursor.floor) == (10, 10, 4)


async def test_a_queue_is_as_full_when_its_partitions_leave_the_cache(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three, or none, stays in memory; appends, trims and refusals come in turn."""
    for cached in (0, 1, 2):
        monkeypatch.setattr("storage.sqlite.state.PARTITIONS_CACHED_MAX", cached)
        store = await embedded.open()
        queue_id = f"q-{cached}"
        places = [Partition(queue_id, number) for number in range(3)]
        await store.create_queue(queue_id, 3)
        for turn in range(4):
            for place in places:
                fits = await one(store, append(place, messages=2, messages_max=6))
                assert fits == [2 * turn, 2 * turn + 1]
            for place in places:
                assert await one(store, append(place, messages=1, messages_max=6)) == ["queue_full"]
            for place in reversed(places):
                assert await store.trim(place, retention_s=0, keep_all=False) > 0


async def test_sequences_of_many_producers_in_one_record_are_kept_apart(
    embedded: Embedded,
) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    names = [b"producer-%07d" % number for number in range(50)]
    for resolved in range(0, 30, 3):
        runs = [(name, resolved, [resolved, resolved + 1]) for name in names]
        assert len(await one(store, append(runs=runs))) == 100
    store = await embedded.open()
    assert await sequences(store, [26, 27, 28], producer=names[7]) == [
        "sequence_too_old", -915, -916,
    ]  # fmt: skip


# --- Trimming at any backlog --------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each look of a trim has met."""
    met: list[int] = []
    original = sqlite_trim._Slice._rows

    def counted(self: sqlite_trim._Slice, first: int, last: int) -> list[tuple[int, ...]]:
        rows = original(self, first, last)
        met.append(len(rows))
        return rows  # type: ignore[return-value]

    monkeypatch.setattr(sqlite_trim._Slice, "_rows", counted)
    return met


async def trim_all(store: SqliteStorage, retention_s: float = 0) -> None:
    while await store.trim(P0, retention_s=retention_s, keep_all=True):
        pass


async def test_a_stuck_head_is_not_looked_at_again_and_again(
    embedded: Embedded, looks: list[int]
) -> None:
    """R18, R12: one key of ten parked, thousands behind; each record is met a few times in all."""
    store = await embedded.open()
    await with_group(store)
    records, size = 600, 10
    await store.append([append(messages=size) for _ in range(records)])
    for first in range(0, records * size, 500):
        offsets = range(max(first, 1), first + 500)
        write = change(
            settled=[(n, n) for n in offsets if n % 10 != 5],
            aside=[Side(9, tuple(n for n in offsets if n % 50 == 5))],
        )
        await store.write_cursors([write])
        await trim_all(store)
    met = sum(looks)
    assert met < 4 * records
    for _ in range(20):
        await trim_all(store)
    assert sum(looks) == met  # nothing new was settled: nothing is looked at
    await store.write_cursors([change(settled=[(0, records * size - 1)])])
    await trim_all(store)
    assert (await store.partitions("q-1"))[0].start == records * size
    assert sum(looks) < 8 * records


async def test_what_retention_keeps_is_met_once_per_trim(
    embedded: Embedded, looks: list[int]
) -> None:
    store = await embedded.open()
    await with_group(store)
    await store.append([append(messages=2) for _ in range(2000)])
    await store.write_cursors([change(settled=[(0, 3999)])])
    assert await store.trim(P0, retention_s=3600, keep_all=True) == 0
    assert len(looks) == 1


async def test_a_slice_of_trimming_is_bounded_by_bytes(embedded: Embedded) -> None:
    """R31."""
    store = await embedded.open()
    await with_group(store)
    for _ in range(30):
        await store.append([append(messages=1, size=500_000)])
    await store.write_cursors([change(settled=[(0, 29)])])
    freed = []
    while slice_ := await store.trim(P0, retention_s=0, keep_all=True):
        freed.append(slice_)
    assert len(freed) == 4
    assert max(freed) < 5_000_000


async def test_other_partitions_do_not_pay_for_a_queue_that_leaves(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: between the slices of a dropped queue, appends go on."""
    monkeypatch.setattr("push.limits.TRIM_BYTES_PER_COMMIT_MAX", 500_000)
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await store.create_queue("q-2", 1)
    for _ in range(40):
        await store.append([append(messages=1, size=500_000)])
    await store.drop_queue("q-1")
    other = Partition("q-2", 0)
    await store.append([append(other, messages=1)])
    connection = sqlite3.connect(f"file:{embedded.path}?mode=ro", uri=True)
    left = connection.execute("SELECT count(*) FROM record WHERE id >> 40 = 1").fetchone()[0]
    connection.close()
    assert left > 0
    assert [r.first for r in (await store.read(other, 0, 100)).records] == [0]


async def test_a_wal_that_readers_kept_from_starting_anew_is_cut(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: also while somebody reads without a pause."""
    monkeypatch.setattr("storage.sqlite.writer.WAL_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("storage.sqlite.checkpoint.SLICE_BYTES", 1 << 40)
    monkeypatch.setattr("storage.sqlite.checkpoint.SLICE_WAL_BYTES", 1 << 40)
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    wal = embedded.path.with_name("store.sqlite-wal")
    record = append(messages=1, size=60_000)
    while await commits(store) % 64 != 62:
        await asyncio.gather(store.append([record]), store.read(P0, 0, 10**6))
    assert wal.stat().st_size > 3 << 20
    reads = [asyncio.ensure_future(store.read(P0, 0, 10**6)) for _ in range(20)]
    await store.append([record])
    await store.append([record])
    assert await commits(store) % 64 == 0
    assert wal.stat().st_size == 0
    assert {len(read.records) for read in await asyncio.gather(*reads)} == {16}


async def test_what_is_committed_is_carried_into_the_file_when_nobody_waits(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before a commit has to do it, and holds up all behind it: each slice is what was there
    when the one before ended."""
    monkeypatch.setattr("storage.sqlite.writer.IDLE_S", 60.0)
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    record = append(messages=1, size=SLICE_BYTES // 8)
    for _ in range(5):
        await store.append([record])
    await store.partitions("q-1")  # what the writer did after the last one has ended by now
    assert embedded.path.stat().st_size < SLICE_BYTES // 4
    for _ in range(16):
        await store.append([record])
    async with asyncio.timeout(20):
        while embedded.path.stat().st_size < SLICE_BYTES // 2:
            await asyncio.sleep(0.001)
            await store.append([append(messages=1, size=10)])  # behind each there is time


async def test_small_commits_are_carried_by_what_the_wal_has_of_them(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes pages, however little it was handed; carried singly they would cost more than
    the commits do."""
    monkeypatch.setattr("storage.sqlite.writer.IDLE_S", 60.0)
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    for _ in range(SLICE_WAL_BYTES // COMMIT_BYTES - 5):
        await store.append([append(messages=1, size=10)])
    await store.partitions("q-1")
    before = embedded.path.stat().st_mtime_ns
    await store.append([append(messages=1, size=10)])
    await store.partitions("q-1")
    assert embedded.path.stat().st_mtime_ns == before
    for _ in range(SLICE_WAL_BYTES // COMMIT_BYTES + 10):
        await store.append([append(messages=1, size=10)])
    async with asyncio.timeout(20):
        while embedded.path.stat().st_mtime_ns == before:
            await asyncio.sleep(0.001)
            await store.append([append(messages=1, size=10)])


async def test_what_cannot_be_carried_is_read_where_it_is(embedded: Embedded) -> None:
    """A reader that holds on to what was there before: nothing is lost, and nobody waits for it."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await store.append([append(messages=1)])
    other = sqlite3.connect(embedded.path, isolation_level=None)
    other.execute("BEGIN").execute("SELECT count(*) FROM record").fetchall()
    record = append(messages=1, size=SLICE_BYTES // 4)
    for _ in range(12):
        await store.append([record])
    assert other.execute("SELECT count(*) FROM record").fetchone() == (1,)
    other.close()
    assert len((await store.read(P0, 0, 10**9)).records) == 13
    store = await embedded.open()
    assert len((await store.read(P0, 0, 10**9)).records) == 13


async def test_a_folder_is_made_for_the_store(tmp_path: Path) -> None:
    store = await SqliteStorage.open(tmp_path / "deep" / "down" / "store.sqlite")
    await store.close()
    assert (tmp_path / "deep" / "down" / "store.sqlite").stat().st_mode & 0o077 == 0
