"""Effects that happen once: what is recognised when it comes again, and what is not."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tocsin
from hypothesis import given
from hypothesis import strategies as st
from tocsin.effects import SQLITE, Applied, SqliteEffects, applied
from tocsin.proto import wire
from tocsin.proto.message import Content

from tests.clients.fake_broker import FakeBroker


def message(offset: int, log: str = "queue-1-0") -> Content:
    """One of a log, as it is given each time it comes."""
    push = wire.Push(subscription=1, partition=int(log.rpartition("-")[2]), id_prefix=f"{log}-")
    return Content(push, offset, wire.PushedMessage(key="k", id="the same for all"))


class Ledger:
    """A database with effects: `happened` has one entry for each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "effects.sqlite"
        with sqlite3.connect(self.path) as database:
            database.execute("CREATE TABLE happened (log TEXT, offset INTEGER)")
        database.close()
        self.opened: list[SqliteEffects] = []

    def open(self, group: str = "billing", timeout_s: float = 10.0) -> SqliteEffects:
        """A consumer process's own connection."""
        effects = SqliteEffects(self.path, group=group, timeout_s=timeout_s)
        self.opened.append(effects)
        return effects

    def all(self, sql: str) -> list[tuple[object, ...]]:
        """Return what another connection sees."""
        database = sqlite3.connect(self.path)
        try:
            return database.execute(sql).fetchall()
        finally:
            database.close()

    def happened(self) -> list[int]:
        """The offsets of all effects."""
        return [int(str(row[0])) for row in self.all("SELECT offset FROM happened ORDER BY offset")]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Effects of nothing yet."""
    ledger = Ledger(tmp_path)
    yield ledger
    for effects in ledger.opened:
        effects.close()


def handle(effects: SqliteEffects, one: Content) -> bool:
    """Apply its effect, unless it was; whether it was applied now."""
    with effects.once(one) as database:
        if database is None:
            return False
        database.execute("INSERT INTO happened VALUES (?, ?)", (one.log, one.offset))
        return True


# --- what is one message ------------------------------------------------------------------------


def test_a_message_that_comes_again_is_recognised_also_by_another_process(ledger: Ledger) -> None:
    effects = ledger.open()
    assert handle(effects, message(5))
    assert not handle(effects, message(5))
    assert not handle(ledger.open(), message(5))
    assert handle(effects, message(4)), "offsets end in any order"
    assert ledger.happened() == [4, 5]


@pytest.mark.parametrize(
    ("log", "group"),
    [("queue-1-1", "billing"), ("queue-2-0", "billing"), ("other-1-0", "billing"),
     ("queue-1-0", "audit")],
    ids=["partition", "generation", "queue", "group"],
)  # fmt: skip
def test_another_partition_history_queue_or_group_is_another_message(
    ledger: Ledger, log: str, group: str
) -> None:
    """R1, R30: the offset alone names nothing, and the publisher's id neither."""
    assert handle(ledger.open(), message(5))
    assert handle(ledger.open(group), message(5, log))


def test_what_cannot_be_opened_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "effects.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        SqliteEffects(path, group="billing")
    frames = [entry.frame.f_locals for entry in caught.traceback]
    (left,) = [found["self"] for found in frames if "self" in found]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        left._connection.execute("SELECT 1")


def test_a_pulled_message_is_refused() -> None:
    """It does not say its log."""
    cursor = sqlite3.connect(":memory:").cursor()
    one = Content(wire.Push(subscription=0, partition=0), 5, wire.PushedMessage())
    with pytest.raises(ValueError, match="pulled"):
        Applied("billing", SQLITE).claim(cursor, one)
    cursor.connection.close()


# --- transactions -------------------------------------------------------------------------------


def test_an_effect_that_fails_is_undone_with_its_place(ledger: Ledger) -> None:
    effects = ledger.open()

    def fail() -> None:
        with effects.once(message(5)) as database:
            assert database is not None
            database.execute("INSERT INTO happened VALUES ('', 5)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ledger.happened() == []
    assert handle(effects, message(5))


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_a_block_that_ends_the_transaction_itself_gets_an_error(ledger: Ledger, how: str) -> None:
    effects = ledger.open()

    def end_it() -> None:
        with effects.once(message(5)) as database:
            assert database is not None
            database.execute(how)

    with pytest.raises(RuntimeError, match="once"):
        end_it()
    assert handle(effects, message(5)) is (how == "ROLLBACK")


@pytest.mark.parametrize("first_commits", [True, False])
def test_the_second_of_two_processes_waits_for_the_first(
    ledger: Ledger, first_commits: bool
) -> None:
    """P1 of old still holds the message when it is given to another one: whoever commits first has
    applied it, and the other one sees that."""
    one, other = ledger.open(), ledger.open()
    outcome: list[bool] = []
    second = threading.Thread(target=lambda: outcome.append(handle(other, message(5))))

    def first() -> None:
        with one.once(message(5)) as database:
            assert database is not None
            second.start()
            second.join(0.1)
            assert outcome == [], "it waits"
            if not first_commits:
                raise KeyError
            database.execute("INSERT INTO happened VALUES ('', 5)")

    if first_commits:
        first()
    else:
        with pytest.raises(KeyError):
            first()
    second.join()
    assert outcome == [not first_commits]
    assert ledger.happened() == [5]


def test_a_database_that_is_locked_for_too_long_is_an_error_and_no_claim(ledger: Ledger) -> None:
    one, other = ledger.open(), ledger.open(timeout_s=0.01)
    with one.once(message(1)), pytest.raises(sqlite3.OperationalError, match="locked"):
        handle(other, message(2))
    assert handle(other, message(2))


async def test_handlers_that_wait_take_turns(ledger: Ledger) -> None:
    """Forty at once, more than there are threads; they await within their transactions."""
    effects = ledger.open()

    async def work(offset: int) -> None:
        async with effects.once(message(offset)) as database:
            if database is not None:
                await asyncio.sleep(0)
                database.execute("INSERT INTO happened VALUES ('', ?)", (offset,))

    await asyncio.gather(*(work(n % 20) for n in range(40)))
    assert ledger.happened() == list(range(20))


async def test_many_stores_of_one_loop_never_wait_for_each_others_threads(ledger: Ledger) -> None:
    """All that wait to begin have a thread, and whoever is to commit has one, too."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    stores = [ledger.open(f"group-{number}", timeout_s=20) for number in range(6)]

    async def run(effects: SqliteEffects, offset: int) -> None:
        async with effects.once(message(offset)) as database:
            assert database is not None
            await asyncio.sleep(0)
            database.execute("INSERT INTO happened VALUES ('', ?)", [offset])

    async with asyncio.timeout(15):
        await asyncio.gather(*(run(one, offset) for offset in range(4) for one in stores))
    assert ledger.happened() == sorted([*range(4)] * 6)


async def test_a_transaction_inside_another_one_is_an_error_and_no_deadlock(ledger: Ledger) -> None:
    effects = ledger.open()

    async def nest() -> None:
        async with effects.once(message(5)), effects.once(message(6)):
            pass

    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="open in this task"):
            await nest()
        async with effects.once(message(5)) as database:
            assert database is not None


async def test_a_handler_that_is_cancelled_leaves_nothing_behind(ledger: Ledger) -> None:
    """In its block, while it waits for its turn, and while the database is locked."""
    effects, other = ledger.open(), ledger.open()
    inside = asyncio.Event()

    async def work(offset: int) -> None:
        async with effects.once(message(offset)) as database:
            assert database is not None
            database.execute("INSERT INTO happened VALUES ('', ?)", (offset,))
            inside.set()
            await asyncio.sleep(3600)

    first, second = asyncio.create_task(work(1)), asyncio.create_task(work(2))
    await inside.wait()
    second.cancel()
    first.cancel()
    await asyncio.wait((first, second))
    with other.once(message(9)):
        third = asyncio.create_task(work(3))
        for _ in range(3):
            await asyncio.sleep(0.01)
        third.cancel()
        await asyncio.wait((third,))
    assert ledger.happened() == []
    async with asyncio.timeout(10):
        for offset in (1, 2, 3):
            async with effects.once(message(offset)) as database:
                assert database is not None


async def test_a_task_goes_on_to_its_next_message_when_it_was_cancelled_on_the_way_in(
    ledger: Ledger,
) -> None:
    """As a worker of `run` does, whose message has been taken back."""
    effects = ledger.open()
    effects._lock.acquire()  # a transaction of somebody else
    cancelled = asyncio.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with effects.once(message(0)):
                raise AssertionError("it is not to get in")
        except asyncio.CancelledError:
            task.uncancel()
            cancelled.set()
        async with effects.once(message(1)) as database:
            assert database is not None
            database.execute("INSERT INTO happened VALUES (?, ?)", (message(1).log, 1))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert effects._holder is task
    task.cancel()
    await cancelled.wait()
    effects._lock.release()
    await task
    assert ledger.happened() == [1]


async def test_run_with_once_applies_each_effect_once_though_leases_end(
    broker: FakeBroker, client: tocsin.Client, ledger: Ledger
) -> None:
    """Every message is taken back and given again while it is worked on, and acked late."""
    effects = ledger.open()
    await client.publish_many("orders", [{"body": n, "key": f"k{n % 3}"} for n in range(12)])
    runs: list[int] = []
    done = asyncio.Event()

    async def work(one: tocsin.Message) -> None:
        async with effects.once(one) as database:
            if database is not None:
                database.execute("INSERT INTO happened VALUES (?, ?)", (one.log, one.body))
        runs.append(one.body)
        if len(runs) <= 12:
            broker.revoke()
            broker.pump()
        if len(broker.groups["orders", "billing"].settled) >= 11:
            done.set()

    async with client.subscribe("orders", "billing") as messages:
        running = asyncio.create_task(messages.run(work, concurrency=4))
        await broker.until(lambda: len(broker.groups["orders", "billing"].settled) == 12)
        running.cancel()
        await asyncio.wait((running,))
    assert len(runs) > 12, "some came again"
    assert ledger.happened() == list(range(12))


# --- how much is kept ---------------------------------------------------------------------------


def test_what_is_kept_is_a_row_for_each_hole() -> None:
    effects = SqliteEffects(":memory:", group="billing")
    rows = effects._connection.execute
    offsets, rng = list(range(3000)), random.Random(1)
    for start in range(0, 3000, 100):  # as it is with a hundred in flight
        part = [offset for offset in offsets[start : start + 100] if offset not in (70, 1500)]
        rng.shuffle(part)
        for offset in part:
            with effects.once(message(offset)) as database:
                assert database is not None
        (kept,) = rows("SELECT COUNT(*) FROM tocsin_applied").fetchone()
        assert kept <= applied.COMPACT_EVERY + 100
    for offset in offsets:
        with effects.once(message(offset)) as database:
            assert (database is not None) == (offset in (70, 1500))
    effects.applied.compact(effects._connection.cursor(), "queue-1-0")
    found = rows("SELECT first_offset, last_offset FROM tocsin_applied").fetchall()
    assert found == [(0, 2999)]
    effects.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("claim"), st.integers(0, 9)),
            st.tuples(st.just("compact"), st.just(0)),
            st.tuples(st.just("forget"), st.integers(0, 9)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_it_is_a_set_of_offsets(steps: list[tuple[str, int]]) -> None:
    """Whatever is claimed, compacted, forgotten, and by whom: as a plain set has it."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    cursor, log, model = database.cursor(), "queue-1-0", set[int]()
    store = Applied("billing", SQLITE)
    store.create(cursor)
    for what, offset in steps:
        if what == "claim":
            assert store.claim(cursor, message(offset)) is (offset not in model)
            model.add(offset)
        elif what == "compact":
            store.compact(cursor, log)
        elif what == "forget":
            store.forget(cursor, "queue", from_offset=offset)
            model = {one for one in model if one < offset}
        else:
            store = Applied("billing", SQLITE)
        rows = cursor.execute("SELECT first_offset, last_offset FROM tocsin_applied").fetchall()
        kept = [offset for first, last in rows for offset in range(first, last + 1)]
        assert sorted(kept) == sorted(model), "no offset twice, none too many"
    database.close()


def test_a_seek_applies_nothing_again_without_forget(ledger: Ledger) -> None:
    effects = ledger.open()
    logs = ["queue-1-0", "queue-1-1", "queue-2-0", "other-1-0"]
    for log in logs:
        for offset in range(4):
            handle(effects, message(offset, log))

    def forgotten() -> list[tuple[str, int]]:
        """Return what would be applied again."""
        probe = [(log, offset) for log in logs for offset in range(4)]
        return [(log, n) for log, n in probe if handle(effects, message(n, log))]

    assert forgotten() == []
    effects.forget("queue", partition=1, from_offset=2)
    assert forgotten() == [("queue-1-1", 2), ("queue-1-1", 3)]
    effects.forget("queue", from_offset=3)
    assert forgotten() == [(log, 3) for log in logs[:3]]
    effects.forget("nowhere")
    ledger.open("audit").forget("queue")
    assert forgotten() == []
