"""What goes with which transaction of the embedded store."""

import asyncio
import itertools
import threading

import pytest

from push.errors import Refused, TocsinError, Unknown
from push.places import Partition
from storage.sqlite import trim as sqlite_trim
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import P0, append, change, one, with_group
from tests.histories.house import eventually
from tests.storage.conftest import Embedded, commits


async def settled(store: SqliteStorage, records: int) -> None:
    """This many records of a message that nobody needs; then one that is needed."""
    await with_group(store)
    await store.append([append(messages=1) for _ in range(records)])
    await store.write_cursors([change(settled=[(0, records - 1)])])
    assert await one(store, append(messages=1)) == [records]


@pytest.fixture
def never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes beside others waits for them."""
    monkeypatch.setattr("storage.sqlite.writer.BACKGROUND_S", 3600)


def trimming(store: SqliteStorage) -> "asyncio.Task[int]":
    return asyncio.ensure_future(store.trim(P0, retention_s=0, keep_all=True))


async def three_trims(store: SqliteStorage) -> "list[asyncio.Task[int]]":
    """Handed over; the first one finds something."""
    await settled(store, 4)
    trims = [trimming(store) for _ in range(3)]
    await asyncio.sleep(0)
    return trims


@pytest.mark.usefixtures("never_alone")
@pytest.mark.parametrize("records", [1, sqlite_trim.LOOKS - 1, sqlite_trim.LOOKS + 1])
async def test_trimming_goes_with_the_transactions_of_others(
    embedded: Embedded, records: int
) -> None:
    """P9: a slice with each, and none of its own that others would wait for."""
    store = await embedded.open()
    await settled(store, records)
    before, took = await commits(store), 0
    trim = trimming(store)
    while not trim.done():
        await asyncio.sleep(0)
        await eventually(store._writer._queue.empty)  # it has come before anything else does
        assert await one(store, append(messages=1)) == [records + 1 + took]
        took += 1
    assert trim.result() > 0
    assert await commits(store) == before + took
    assert took in ((1, 2) if records < sqlite_trim.LOOKS else (2, 3))
    assert (await store.partitions("q-1"))[0].start == records


async def test_trimming_goes_alone_where_nobody_else_comes(embedded: Embedded) -> None:
    store = await embedded.open()
    await settled(store, 10)
    assert await trimming(store) > 0
    assert await trimming(store) == 0


@pytest.mark.usefixtures("never_alone")
async def test_trimming_goes_with_what_a_dropped_queue_leaves(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: nobody else comes, and a large queue leaves in many slices: trimming does not wait."""
    monkeypatch.setattr("storage.sqlite.trim._GARBAGE_ROWS", 1)
    store = await embedded.open()
    await settled(store, 1)
    await store.create_queue("q-2", 1)
    await store.append([append(Partition("q-2", 0), messages=1) for _ in range(1000)])
    await store.drop_queue("q-2")
    async with asyncio.timeout(10):
        assert await trimming(store) > 0
    assert embedded.sql("SELECT count(*) FROM garbage")[0][0] > 0, "it waited until that was gone"


async def test_acts_that_come_while_garbage_is_left_and_something_goes_beside_are_done(
    embedded: Embedded,
) -> None:
    """P12: the thread neither spins nor waits."""
    store = await embedded.open()
    await settled(store, 4)
    begun, gate = threading.Event(), threading.Event()

    def garbage() -> None:
        begun.set()
        gate.wait(10)
        store._state.has_garbage = True

    taken, last = threading.Event(), threading.Event()

    def slow() -> None:
        taken.set()
        last.wait(10)

    blocked = store._writer.submit(garbage)
    await asyncio.to_thread(begun.wait, 10)
    trims = [trimming(store) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = store._writer.submit(slow)
    gate.set()
    await asyncio.to_thread(taken.wait, 10)
    appended = store.append([append(messages=1)])
    last.set()
    async with asyncio.timeout(10):
        await asyncio.gather(blocked, waiting, *trims)
        assert [answer.first for answer in await appended] == [5]


@pytest.mark.usefixtures("never_alone")
async def test_trimming_keeps_up_with_transactions_of_many_records(embedded: Embedded) -> None:
    """P9: one slice goes with each, so a slice is as large as what they bring, twice."""
    store = await embedded.open()
    await settled(store, 4 * sqlite_trim.LOOKS)
    other = Partition("q-2", 0)
    await store.create_queue("q-2", 1)
    many = [append(other, messages=1)] * (3 * sqlite_trim.LOOKS)
    await store.append(many)
    trim, took = trimming(store), 0
    while not trim.done():
        await asyncio.sleep(0)
        await store.append(many)
        took += 1
    assert trim.result() > 0
    assert took <= 2
    assert (await store.partitions("q-1"))[0].start == 4 * sqlite_trim.LOOKS


async def test_a_partition_is_trimmed_in_slices_until_others_have_their_turn(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_trim, "LOOKS", 4)
    store = await embedded.open()
    await settled(store, 100)
    starts = [0]
    while await trimming(store):
        starts.append((await store.partitions("q-1"))[0].start)
    assert starts[-1] == 100
    assert len(starts) > 100 // (4 * sqlite_trim.SLICES)
    assert all(b - a <= 4 * sqlite_trim.SLICES for a, b in itertools.pairwise(starts))


@pytest.mark.usefixtures("never_alone")
async def test_what_goes_beside_others_is_answered_when_the_store_is_closed(
    embedded: Embedded,
) -> None:
    store = await embedded.open()
    trims = await three_trims(store)
    await store.close()
    async with asyncio.timeout(10):
        freed = await asyncio.gather(*trims)
    assert [one > 0 for one in freed] == [True, False, False]


@pytest.mark.usefixtures("never_alone")
async def test_what_goes_beside_others_is_refused_when_a_commit_has_failed(
    embedded: Embedded,
) -> None:
    """R31: one that was in it is unknown, those that waited for the next one did not happen."""
    store = await embedded.open()
    await settled(store, 4)

    def broken() -> None:
        raise RuntimeError("a bug")

    trims = [trimming(store) for _ in range(3)]
    await asyncio.sleep(0)
    failing = store._writer.submit(broken)
    answers = await asyncio.gather(failing, *trims, return_exceptions=True)
    kinds = [type(answer) for answer in answers]
    assert kinds == [Unknown, Unknown, Refused, Refused]
    assert all(isinstance(answer, TocsinError) for answer in answers)
    assert len(embedded.fatal) == 1


async def test_a_store_that_broke_while_nobody_wrote_can_be_closed(embedded: Embedded) -> None:
    """R31: a reader or the carrier's thread has found it, and the writer waits for somebody."""
    store = await embedded.open()
    await settled(store, 1)
    await asyncio.to_thread(store._writer.fail, "broken")
    async with asyncio.timeout(10):
        await asyncio.to_thread(store._close)
    assert embedded.fatal == ["broken"]


async def test_what_was_accepted_before_the_store_broke_elsewhere_is_refused(
    embedded: Embedded,
) -> None:
    store = await embedded.open()
    await settled(store, 1)
    writer = store._writer
    begun, gate = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        gate.wait(10)

    blocked = writer.submit(block)
    await asyncio.to_thread(begun.wait, 10)
    accepted = [writer.submit(lambda: None), trimming(store)]
    await asyncio.sleep(0)
    await asyncio.to_thread(writer.fail, "broken")
    gate.set()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(blocked, *accepted, return_exceptions=True)
    assert [type(answer) for answer in answers][1:] == [Refused, Refused]
