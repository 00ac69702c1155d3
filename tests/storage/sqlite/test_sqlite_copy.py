"""A copy of the embedded storage, made while it works: whole, consistent, in nobody's way."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from push.errors import Refused
from push.places import Partition
from storage.sqlite.backup import GENERATION_MAX, STEP_PAGES, renew_store
from storage.sqlite.open import STEPS, WAL_BYTES_MAX
from storage.sqlite.store import SqliteStorage
from storage.sqlite.verify import verify_store
from tests.contract.stores import ANN, BEN, G0, P0, append, change, one, with_group
from tests.storage.conftest import Embedded

RECORDS = 60
SIZE = 100_000


async def filled(embedded: Embedded) -> SqliteStorage:
    """A storage with a few MiB in one partition and a group: more than a few steps."""
    store = await embedded.open()
    await with_group(store)
    for number in range(RECORDS):
        await one(store, append(runs=[(ANN, number, [number])], size=SIZE))
    return store


@pytest.fixture
async def copied(tmp_path: Path) -> AsyncIterator[Embedded]:
    """Where the copy goes, which can be opened as a storage."""
    copy = Embedded(tmp_path / "copy")
    copy.path.parent.mkdir()
    yield copy
    await copy.close()


def nothing(_done: int, _total: int) -> None:
    """Nobody looks at how far it has come."""


def contents(embedded: Embedded) -> dict[str, bytes]:
    """The file and its log, as a killed process leaves them."""
    return {suffix: Path(f"{embedded.path}{suffix}").read_bytes() for suffix in ("", "-wal")}


class Lockstep:
    """Every step of a copy waits for another act, so that acts come between them anywhere."""

    def __init__(self) -> None:
        self._acts = threading.Semaphore(0)

    def step(self, _done: int, _total: int) -> None:
        """The progress of the copy, in the writer's thread."""
        self._acts.acquire(timeout=5)

    async def act(self, act: Awaitable[object]) -> None:
        """Let the copy make a step with this act behind it."""
        under_way = asyncio.ensure_future(act)
        asyncio.get_running_loop().call_soon(self._acts.release)  # when it has been handed over
        await under_way


async def begun(store: SqliteStorage, path: Path) -> "asyncio.Future[None]":
    """A copy that has made its first step."""
    stepped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(_done: int, _total: int) -> None:
        loop.call_soon_threadsafe(stepped.set)

    copying = asyncio.ensure_future(store.copy_to(path, note))
    await stepped.wait()
    return copying


async def offsets(store: SqliteStorage, partition: Partition = P0) -> int:
    """How many messages can be read, from the first one on without a hole."""
    at, size = 0, 1
    while size:
        read = await store.read(partition, at, 10**8)
        assert read.damage == ()
        size = len(read.records)
        assert all(record.first >= at for record in read.records)
        at = read.records[-1].last + 1 if size else at
    return at


async def test_a_copy_has_what_was_acknowledged_before_it_began(
    embedded: Embedded, copied: Embedded
) -> None:
    """P1, while appends and settlements go on between its steps."""
    store = await filled(embedded)
    lockstep = Lockstep()
    copying = asyncio.ensure_future(store.copy_to(copied.path, lockstep.step))
    during = 0
    while not copying.done():
        number = RECORDS + during
        await lockstep.act(one(store, append(runs=[(ANN, number, [number])], size=20_000)))
        await lockstep.act(store.write_cursors([change(settled=[(during, during)])]))
        during += 1
    await copying
    assert verify_store(copied.path, nothing).findings == []
    copy = await copied.open()
    assert RECORDS < await offsets(copy) <= RECORDS + during
    assert await offsets(store) == RECORDS + during


async def test_what_is_committed_into_pages_that_are_copied_already_is_in_the_copy(
    embedded: Embedded, copied: Embedded
) -> None:
    """One state of the store, not pages of several: the cursor's row is among the first pages, the
    records that are appended with each of its changes among the last."""
    store = await filled(embedded)
    lockstep = Lockstep()
    copying = asyncio.ensure_future(store.copy_to(copied.path, lockstep.step))
    at = RECORDS
    while not copying.done():
        await lockstep.act(one(store, append(runs=[(BEN, at, [at])], size=5_000)))
        await lockstep.act(store.write_cursors([change(settled=[(0, at)])]))  # all of them
        at += 1
    copy = await copied.open()
    (cursor,) = [c for c in await copy.cursors("q-1", "g-1") if c.place == G0]
    (end, _) = [state.end for state in await copy.partitions("q-1")]
    assert cursor.floor in {end, end - 1}
    assert cursor.floor > RECORDS, "some of it was committed in the middle of the copy"


async def test_the_log_starts_anew_while_a_copy_is_under_way(
    embedded: Embedded, copied: Embedded
) -> None:
    """R31: no reading transaction stays open over its steps. Were one open, the log would grow by
    all that is appended."""
    store = await filled(embedded)
    steps: list[int] = []
    copying = asyncio.ensure_future(store.copy_to(copied.path, lambda done, _: steps.append(done)))
    appended = 0
    while not copying.done():
        await one(store, append(messages=1, size=SIZE))
        appended += SIZE
    await copying
    assert len(steps) > RECORDS * SIZE / (STEP_PAGES * 4096)
    assert len(contents(embedded)["-wal"]) < WAL_BYTES_MAX
    busy, log, carried = 1, 0, 0
    async with asyncio.timeout(20):  # the writer is at it itself, when nobody has come for a while
        while (busy, log) != (0, carried):
            await asyncio.sleep(0.01)
            (busy, log, carried) = embedded.sql("PRAGMA wal_checkpoint(PASSIVE)")[0]
    assert log < WAL_BYTES_MAX // 4096, "nobody reads: all of the log is carried over"


async def test_a_writer_that_is_faster_than_the_copy_does_not_keep_it_from_ending(
    embedded: Embedded, copied: Embedded
) -> None:
    store = await filled(embedded)
    copying = asyncio.ensure_future(store.copy_to(copied.path, nothing))

    async def write() -> None:
        while not copying.done():
            await one(store, append(messages=1, size=1_000_000))

    async with asyncio.timeout(30):
        await asyncio.gather(copying, *(write() for _ in range(12)))
    assert verify_store(copied.path, nothing).findings == []


async def test_a_cancelled_copy_ends_and_the_storage_goes_on(
    embedded: Embedded, copied: Embedded
) -> None:
    store = await filled(embedded)
    copying = await begun(store, copied.path)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert await one(store, append(messages=1)) == [RECORDS]
    copied.path.unlink(missing_ok=True)
    await store.copy_to(copied.path, nothing)  # the next one works


async def test_a_copy_ends_when_the_storage_is_closed(embedded: Embedded, copied: Embedded) -> None:
    store = await filled(embedded)
    copying = await begun(store, copied.path)
    await store.close()
    with pytest.raises(Refused, match="going down"):
        await copying
    with pytest.raises(Refused, match="closed"):
        await store.copy_to(copied.path, nothing)
    assert embedded.sql("SELECT value FROM meta WHERE name = 'clean'") == [("1",)]


async def test_a_copy_leaves_the_reserve_alone(embedded: Embedded, copied: Embedded) -> None:
    """R31: a backup on the broker's own disk must not stop the broker."""
    store = await embedded.open(free_bytes_reserve=1 << 60)
    await store.create_queue("q-1", 1)
    with pytest.raises(Refused, match="name a folder with more room") as caught:
        await store.copy_to(copied.path, nothing)
    assert caught.value.code.name == "storage_full"
    assert not copied.path.exists()


async def test_a_copy_into_a_file_that_is_there_is_refused_and_changes_nothing(
    embedded: Embedded, copied: Embedded
) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    copied.path.write_bytes(b"mine")
    with pytest.raises(Refused, match="the copy failed"):
        await store.copy_to(copied.path, nothing)
    assert copied.path.read_bytes() == b"mine"
    assert (await store.state()).writable


# --- Looking through a store at rest -------------------------------------------------------------


async def _with_everything(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store, messages=3)
    await one(store, append(ids=["a"]))
    await one(store, append(runs=[(ANN, 0, [0, 1])]))
    await embedded.close()


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("partition", "generation"),
        ("record", "payload"),
        ("record", "published_unix_ms"),
        ("producer", "top"),
        ("client_id", "place"),
        ("cursor", "floor"),
    ],
)
async def test_a_changed_row_is_counted_in_its_table(
    embedded: Embedded, table: str, column: str
) -> None:
    """R30."""
    await _with_everything(embedded)
    assert verify_store(embedded.path, nothing).findings == []
    change_one = f"UPDATE {table} SET {column} = "
    value = "x'00'" if column == "payload" else f"{column} + 4"
    first = f"(SELECT {column} FROM {table} LIMIT 1)"
    embedded.sql(f"{change_one}{value} WHERE {column} = {first}")
    before = embedded.path.read_bytes()
    report = verify_store(embedded.path, nothing)
    assert set(report.damaged) == {table}
    assert report.damaged[table] >= 1
    assert [f for f in report.findings if table in f] == report.findings
    assert embedded.path.read_bytes() == before


async def test_a_row_of_another_type_is_damage_and_no_crash(embedded: Embedded) -> None:
    await _with_everything(embedded)
    embedded.sql("UPDATE partition SET queue_id = CAST(x'ff' AS TEXT) WHERE number = 0")
    assert verify_store(embedded.path, nothing).damaged == {"partition": 1}


async def test_broken_pages_are_findings_and_no_crash(embedded: Embedded) -> None:
    await (await filled(embedded)).close()
    data = bytearray(embedded.path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    embedded.path.write_bytes(bytes(data))
    assert verify_store(embedded.path, nothing).findings
    embedded.path.write_bytes(b"cats, mostly\n" * 1000)
    assert verify_store(embedded.path, nothing).findings
    embedded.path.unlink()
    assert verify_store(embedded.path, nothing).findings
    assert not embedded.path.exists()


async def test_what_a_killed_process_left_in_the_log_is_looked_at_too(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store, messages=3)
    rest = Embedded(embedded.path.parent.parent / "rest")
    rest.path.parent.mkdir()
    for suffix, data in contents(embedded).items():
        rest.path.with_name(rest.path.name + suffix).write_bytes(data)
    assert verify_store(rest.path, nothing).rows["record"] == 1


async def test_a_newer_store_is_not_judged(embedded: Embedded) -> None:
    """R4."""
    await embedded.open(steps=(*STEPS, "CREATE TABLE more (id INTEGER PRIMARY KEY) STRICT;"))
    await embedded.close()
    (finding,) = verify_store(embedded.path, nothing).findings
    assert f"schema version '{len(STEPS) + 1}'" in finding


# --- A life of its own ---------------------------------------------------------------------------


async def test_a_renewed_store_has_another_incarnation_and_higher_generations_and_epochs(
    embedded: Embedded,
) -> None:
    """R2, R30, P7: with every row still sound."""
    store = await embedded.open()
    await with_group(store, messages=3)
    incarnation = await store.incarnation()
    session = b"the same session"  # the first half of a token names the owner (R22)
    before = await store.own(G0, token=session + b"before".ljust(16), assignment=2)
    await embedded.close()
    renewed = renew_store(embedded.path, raised_by=7, partitions={"q-1": 3, "q-2": 1})
    assert renewed.damaged == 0
    assert verify_store(embedded.path, nothing).findings == []
    store = await embedded.open()
    assert await store.incarnation() == renewed.incarnation != incarnation
    generations = [state.generation for state in await store.partitions("q-1")]
    assert generations == [before.generation + 7] * 3, "the missing one as well"
    assert [state.generation for state in await store.partitions("q-2")] == generations[:1]
    after = await store.own(G0, token=session + b"after".ljust(16), assignment=3)
    assert after.epoch > before.epoch + 1
    assert after.previous is None, "R22: nothing of the lost history is adopted"
    assert await one(store, append(messages=1)) == [3]


async def test_a_damaged_row_stays_damaged_when_a_store_is_renewed(embedded: Embedded) -> None:
    """P13: a raised generation must not give it a checksum that fits."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await embedded.close()
    embedded.sql("UPDATE partition SET next_offset = 1 WHERE number = 0")
    assert renew_store(embedded.path, raised_by=1, partitions={}).damaged == 1
    assert verify_store(embedded.path, nothing).damaged == {"partition": 1}


async def test_a_generation_without_room_is_refused(embedded: Embedded) -> None:
    """Receipts hold 32 bits of it: the last one fits, the next one does not."""
    await (await embedded.open()).create_queue("q-1", 1)
    await embedded.close()
    renew_store(embedded.path, raised_by=GENERATION_MAX - 1, partitions={})
    with pytest.raises(Refused, match="no more room"):
        renew_store(embedded.path, raised_by=1, partitions={})
    assert embedded.sql("SELECT generation FROM partition") == [(GENERATION_MAX,)]


async def test_a_file_that_is_no_store_is_not_renewed(embedded: Embedded) -> None:
    embedded.path.parent.mkdir()
    connection = sqlite3.connect(embedded.path)
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.close()
    with pytest.raises(Refused, match="not a store of this broker"):
        renew_store(embedded.path, raised_by=1, partitions={})
