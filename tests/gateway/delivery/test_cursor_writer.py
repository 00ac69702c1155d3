"""The cursor writer: cursor writes, gathered, repeated while their outcome is unknown."""

import asyncio
import gc
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from gateway.delivery.consumer import Consumer, Settlement
from gateway.delivery.cursor_writer import CursorWriter
from gateway.publish.commits import GroupCommit
from metadata.catalog import ANYBODY, Queue
from push.places import Partition
from push.storage_port import CursorWrite, Storage, Written
from tests.histories.house import (
    House,
    Place,
    Session,
    codes,
    delivery,
    eventually,
    message,
    numbered,
)
from tests.histories.test_lanes import Acks


async def test_acks_of_one_moment_are_one_write(house: House) -> None:
    """Thousands of acks, a few writes."""
    queue = await house.queue(partitions=4)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(400)])
    writes = 0
    storage = house.memory
    original = storage.write_cursors

    async def counted(changes: object) -> object:
        nonlocal writes
        writes += 1
        return await original(changes)  # type: ignore[arg-type]

    storage.write_cursors = counted  # type: ignore[assignment,method-assign]
    for place, _, _ in await session.take(400):
        consumer.ack(delivery(place), [], None)
    await eventually(lambda: writes)
    await house.broker.cursor_writer.drain()
    assert await house.lag(queue, group) == 0
    assert writes <= 2


@pytest.mark.parametrize("applied", [False, True])
async def test_an_ack_is_confirmed_when_it_is_durable_and_not_before(
    house: House, applied: bool
) -> None:
    """R21, R29: the first write's outcome is unknown: it is written again whole, then confirmed."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    place, _ = (one[0] for one in await session.take(2))
    house.memory.lose_next_answer(applied=applied)
    answers: list[Settlement] = []
    consumer.ack(delivery(place), [], answers.append)
    await eventually(lambda: not house.memory._lost_answers)
    assert answers == []
    await eventually(lambda: answers)
    assert answers[0].durable
    assert await house.lag(queue, group) == 1


async def test_an_ack_of_nothing_is_answered_when_all_acks_before_it_are_durable(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: a client that asks so knows what it may forget, even if the gateway is killed now. It
    has nothing written sooner."""
    monkeypatch.setattr("gateway.delivery.cursor_writer.FLUSH_AFTER_S", 3600)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    places = [place for place, _, _ in await session.take(2)]
    answers: list[Settlement] = []
    consumer.ack([], [], answers.append)
    assert len(answers) == 1  # nothing was acked: nothing is waited for
    consumer.ack(delivery(places[0]), [], None)
    consumer.ack([], [], answers.append)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(answers) == 1
    assert await house.lag(queue, group) == 2  # nobody was in a hurry
    consumer.ack(delivery(places[1]), [], answers.append)
    await eventually(lambda: len(answers) == 3)
    assert [(one.durable, one.settled) for one in answers[1:]] == [(True, 0), (True, 1)]
    assert await house.lag(queue, group) == 0


async def test_a_place_that_is_lost_answers_for_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write was under way, and is answered behind its end; that of the other place is not."""
    queue = await house.queue(partitions=2)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    given = await session.take(20)
    gates = [asyncio.Event(), asyncio.Event()]
    original = house.memory.write_cursors
    begun: list[int] = []

    async def late(changes: Sequence[CursorWrite]) -> Sequence[Written]:
        (change,) = changes
        answers = await original([change])
        begun.append(change.place.partition.number)
        await gates[change.place.partition.number].wait()
        return answers

    apart = SimpleNamespace(  # a lane for each
        lane=lambda partition, _: SimpleNamespace(number=partition.number), write_cursors=late
    )
    monkeypatch.setattr(house.broker.cursor_writer, "_storage", apart)
    answers: list[Settlement] = []
    for place, _, _ in given:
        consumer.ack(delivery(place), [], None)
    lost, kept = consumer.owned_partitions[0], consumer.owned_partitions[1]
    consumer.ack([], [], answers.append)
    await eventually(lambda: sorted(begun) == [0, 1])
    try:
        lost.fenced()
        gates[0].set()
        await eventually(lambda: not lost.delivery.waiting.pending.under_way)
        assert answers == []
    finally:
        gates[1].set()
    await eventually(lambda: answers)
    assert not kept.delivery.dirty
    assert len(answers) == 1


async def test_a_confirmed_ack_that_a_seek_overtakes_is_unknown(house: House) -> None:
    """R21: settled here, fenced there: the client is told to ack again, not that it is done."""
    queue = await house.queue(retention_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    answers: list[Settlement] = []
    seeking = asyncio.ensure_future(house.broker.seek_group(ANYBODY, queue, "billing", "earliest"))
    await asyncio.sleep(0)  # the seek is in the storage, and its answer on the way
    consumer.ack(delivery(place), [], answers.append)
    await seeking
    await eventually(lambda: answers)
    assert (answers[0].settled, answers[0].durable) in [(1, False), (0, True)]
    await session.take(2)
    assert await house.lag(queue, group) == 1


async def test_a_stop_writes_what_was_settled(house: House) -> None:
    """P14: acks that nobody asked to be confirmed are not lost by an orderly end."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    places = [place for place, _, _ in await session.take(3)]
    consumer.ack(delivery(places[1]), [], None)
    await house.broker.stop()
    (at,) = house.memory.queues[queue.queue_id]
    (cursor,) = at.cursors.values()
    assert list(cursor.passed) == [(1, 1)]


async def test_a_write_that_a_bug_has_ended_is_made_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29: and the loop hears of the bug."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    told: list[object] = []
    handler = lambda _, context: told.append(context["exception"])  # noqa: E731
    asyncio.get_running_loop().set_exception_handler(handler)
    bug = RuntimeError("a bug")

    async def broken(changes: object) -> object:
        monkeypatch.undo()
        raise bug

    monkeypatch.setattr(house.memory, "write_cursors", broken)
    assert await house.confirm(consumer, delivery(place)) == (1, 0)
    assert told == [bug]
    assert await house.lag(queue, group) == 0


class Storing:
    """What the storage of a house is asked for, in order; appends wait for `gate`."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        append, write = house.memory.append, house.memory.write_cursors

        async def appending(*args: Any, **named: Any) -> Any:
            self.calls.append("append")
            await self.gate.wait()
            return await append(*args, **named)

        async def writing(changes: Sequence[CursorWrite]) -> Any:
            self.calls.append("write")
            return await write(changes)

        monkeypatch.setattr(house.memory, "append", appending)
        monkeypatch.setattr(house.memory, "write_cursors", writing)


async def one_given(house: House) -> tuple[Queue, Session, Consumer, Place]:
    """A queue, and a consumer that was given the one message of it, at this place."""
    queue = await house.queue()
    session, consumer = await house.subscribe(queue, await house.group(queue))
    await house.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    return queue, session, consumer, place


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("publishes", [True, False])
async def test_what_is_settled_during_a_commit_goes_right_behind_what_is_published_next(
    house: House, monkeypatch: pytest.MonkeyPatch, publishes: bool
) -> None:
    """In one transaction with it; and at once when the commit has ended and nothing is."""
    monkeypatch.setattr("gateway.publish.commits.HELD_S", 3600)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    places = [place for place, _, _ in await session.take(2)]
    storing = Storing(house, monkeypatch)
    published = [house.submit(queue, numbered(1, first=2))]
    await eventually(lambda: storing.calls)
    answers: list[Settlement] = []
    for place in places:
        consumer.ack(delivery(place), [], answers.append)
        await turns()
    if publishes:
        published.append(house.submit(queue, numbered(1, first=3)))
        await turns()
    calls, early = list(storing.calls), list(answers)
    storing.gate.set()
    await eventually(lambda: len(answers) == 2)
    assert (calls, early) == (["append"], [])
    assert storing.calls == ["append", *["append"] * publishes, "write"]
    assert await house.lag(queue, group) == 1 + publishes
    await asyncio.gather(*published)


async def test_what_is_settled_during_a_commit_on_a_slow_disk_waits_for_its_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: a sync may take 50 ms, and more than one is possible; without a commit nothing waits."""
    queue = await house.queue()
    commits = house.broker.publisher.commits
    await house.publish(queue, numbered(1))
    storing = Storing(house, monkeypatch)
    published = house.submit(queue, numbered(1, first=1))
    await eventually(lambda: storing.calls)
    (lane,) = commits.lanes()
    wait_s = commits.cursors_wait_s(lane)
    storing.gate.set()
    await published
    assert wait_s > 0.1
    await eventually(lambda: not commits.cursors_wait_s(lane))


async def test_what_is_settled_as_something_is_published_goes_behind_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, _, consumer, place = await one_given(house)
    storing = Storing(house, monkeypatch)
    storing.gate.set()
    answers: list[Settlement] = []
    consumer.ack(delivery(place), [], answers.append)
    await house.publish(queue, numbered(1, first=1))
    await eventually(lambda: answers)
    assert storing.calls == ["append", "write"]


@pytest.mark.parametrize("comes", [True, False])
async def test_what_is_settled_waits_for_a_commit_that_is_expected(
    house: House, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """In one transaction with it; alone if none comes in time."""
    monkeypatch.setattr("push.commit_sharing.EXPECTED_S", 3600 if comes else 0.5)
    monkeypatch.setattr("gateway.publish.commits.HELD_S", 3600)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    await house.publish(queue, numbered(1, first=1))
    ((place, _, _), _) = await session.take(2)
    storing = Storing(house, monkeypatch)
    storing.gate.set()
    answers: list[Settlement] = []
    consumer.ack(delivery(place), [], answers.append)
    await turns()
    assert (storing.calls, answers) == ([], [])
    if comes:
        await house.publish(queue, numbered(1, first=2))
    await eventually(lambda: answers)
    assert storing.calls == [*["append"] * comes, "write"]


async def test_what_is_settled_while_a_commit_keeps_its_distance_goes_behind_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: its messages wait already, so it is near, however rarely commits come."""
    monkeypatch.setattr("push.commit_sharing.PACE_S", 1.0)
    monkeypatch.setattr("push.commit_sharing.EXPECTED_S", 0.0)
    monkeypatch.setattr("gateway.publish.commits.HELD_S", 3600)
    queue, session, consumer, place = await one_given(house)
    storing = Storing(house, monkeypatch)
    published = [house.submit(queue, numbered(1, first=1))]
    await eventually(lambda: storing.calls)
    published.append(house.submit(queue, numbered(1, first=2)))
    await turns()
    storing.gate.set()
    await session.take(2)
    await turns()
    answers: list[Settlement] = []
    consumer.ack(delivery(place), [], answers.append)
    await eventually(lambda: answers)
    assert storing.calls == ["append", "append", "write"]
    await asyncio.gather(*published)


async def test_what_waits_in_a_lane_is_informed_of_the_begin_and_the_end_of_each_commit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The begin when the records are handed over, so that what follows is behind them; the end when
    the storage has answered."""
    queue = await house.queue()
    storing = Storing(house, monkeypatch)
    commits = house.broker.publisher.commits
    commits.on_begin.append(lambda lane: storing.calls.append(f"begin {lane}"))
    commits.on_end.append(lambda lane: storing.calls.append(f"end {lane}"))
    published = house.submit(queue, numbered(1))
    await turns()
    assert sorted(storing.calls) == ["append", "begin 0"]
    storing.gate.set()
    await published
    await eventually(lambda: storing.calls[-1] == "end 0")
    assert len(storing.calls) == 3


async def test_one_who_waits_for_each_ack_waits_for_no_commit_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: a worker publishes, acks, and waits for each: until then no commit comes."""
    monkeypatch.setattr("push.commit_sharing.EXPECTED_S", 0.2)
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    loop, took_s = asyncio.get_running_loop(), list[float]()
    for n in range(8):
        await house.publish(queue, numbered(1, first=n))
        place, _, _ = (await session.take(n + 1))[n]
        began = loop.time()
        await house.confirm(consumer, delivery(place))
        took_s.append(loop.time() - began)
    assert len([took for took in took_s if took > 0.1]) <= 1


def cursor_writer_of(
    written: list[int], taken: Collection[int] = (), held_s: float = 3600
) -> CursorWriter:
    """Over a storage with a lane for every ten partitions, which notes what it writes. `taken`:
    lanes in which a commit is under way, for `held_s` at most."""

    async def write_cursors(writes: Sequence[CursorWrite]) -> list[Written]:
        written.extend(write.place.partition.number for write in writes)
        return [Written() for _ in writes]

    def lane(partition: Partition, _: object) -> object:
        return SimpleNamespace(number=partition.number // 10)

    storage = cast(Storage, SimpleNamespace(lane=lane, write_cursors=write_cursors))
    commits = SimpleNamespace(
        cursors_wait_s=lambda number: held_s if number in taken else 0.0,
        on_begin=[],
        on_end=[],
        on_missed=lambda _: None,
    )
    return CursorWriter(storage, cast(GroupCommit, commits))


@pytest.mark.parametrize("last_word", ["moved", "drained", "began elsewhere", "late"])
async def test_what_waits_for_a_commit_waits_in_its_lane_alone(last_word: str) -> None:
    """P12: and nothing is left waiting there, whatever becomes of the commit."""
    written: list[int] = []
    taken = {1}
    cursor_writer = cursor_writer_of(written, taken, 0.02 if last_word == "late" else 3600)
    for number in (10, 20):
        cursor_writer.mark(Acks("q", number), urgent=True)
    if last_word == "began elsewhere":
        await asyncio.sleep(0)  # they are looked at
        taken.clear()
    await turns()
    if last_word == "moved":
        assert written == [20]
        cursor_writer.on_begin(2)
        assert written == [20]
        cursor_writer.on_begin(1)
    if last_word == "drained":
        await cursor_writer.drain()
    if last_word == "late":
        assert written == [20]
        await eventually(lambda: len(written) == 2)
    await turns()
    assert sorted(written) == [10, 20]


async def test_a_wait_for_a_commit_is_not_prolonged_by_what_is_settled_later() -> None:
    """P12: acks that come again and again do not keep the first one waiting."""
    written: list[int] = []
    cursor_writer = cursor_writer_of(written, {1}, 0.2)
    for number in range(200):
        cursor_writer.mark(Acks("q", 10 + number % 10), urgent=True)
        await asyncio.sleep(0.01)
        if written:
            return
    raise AssertionError("the wait began anew with each ack")


def told_by_the_loop() -> list[str]:
    """Return what callbacks have raised, from now on."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.append(repr(context["exception"]))
    )
    return told


async def test_one_cursor_that_cannot_be_written_is_no_other_s_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P12: those before it, those behind it, and those of other lanes."""
    told, written = told_by_the_loop(), list[int]()
    cursor_writer = cursor_writer_of(written)
    writers = [Acks("q", number) for number in (1, 2, 3, 11)]
    monkeypatch.setattr(writers[1], "take_write", None)
    for writer in writers:
        cursor_writer.mark(writer, urgent=True)
    await turns()
    assert (sorted(written), len(told)) == ([1, 3, 11], 1)


async def test_a_write_that_was_never_begun_says_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The loop ends, and cancels the write before it began."""
    told, written = told_by_the_loop(), list[int]()
    cursor_writer = cursor_writer_of(written)
    cursor_writer.mark(Acks("q"), urgent=True)
    await asyncio.sleep(0)
    (answer,) = cursor_writer._flushes
    answer.cancel()
    await turns()
    gc.collect()
    assert [str(one.message) for one in recwarn] == []
    assert (written, told) == ([], [])


async def test_a_cursor_that_cannot_be_written_holds_up_no_commit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12: a bug of one place, met as the next commit begins."""
    monkeypatch.setattr("gateway.publish.commits.HELD_S", 3600)
    queue = await house.queue()
    told = told_by_the_loop()
    storing = Storing(house, monkeypatch)
    published = [house.submit(queue, numbered(1))]
    await eventually(lambda: storing.calls)
    broken = Acks("q")
    monkeypatch.setattr(broken, "take_write", None)
    house.broker.cursor_writer.mark(broken, urgent=True)
    await turns()
    published.append(house.submit(queue, numbered(1, first=1)))
    storing.gate.set()
    answers = await asyncio.gather(*published)
    assert [codes(answer) for answer in answers] == [[(0, 0, False)], [(0, 1, False)]]
    assert await house.publish(queue, numbered(1, first=2)) == [(0, 2, False)]
    assert storing.calls == ["append"] * 3, "something was stored once more"
    assert len(told) == 1


async def test_a_cursor_that_cannot_be_written_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P12: those whose writes are handed over together with its own."""
    told, written = told_by_the_loop(), list[int]()
    cursor_writer = cursor_writer_of(written)
    broken = Acks("q", 10)
    monkeypatch.setattr(broken, "take_write", None)
    for source in (broken, Acks("q", 11)):
        cursor_writer.mark(source, urgent=True)
    await turns()
    assert written == [11]
    assert len(told) == 1


async def test_a_listener_that_fails_as_a_commit_begins_has_nothing_stored_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the records have been handed over by then."""
    queue, told = await house.queue(), told_by_the_loop()
    storing = Storing(house, monkeypatch)
    storing.gate.set()
    heard, left = list[int](), [1, 1]

    def fail(_lane: int) -> None:
        left.pop()

    commits = house.broker.publisher.commits
    for listeners in (commits.on_begin, commits.on_end):
        listeners.insert(0, fail)
        listeners.append(heard.append)
    for n in range(3):
        assert await house.publish(queue, numbered(1, first=n)) == [(0, n, False)]
    await eventually(lambda: len(heard) == 6)
    assert storing.calls == ["append"] * 3
    assert len(told) == 4


async def test_what_begins_in_another_lane_is_not_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12: a lane to which nobody publishes, beside one that has a commit in each turn."""
    monkeypatch.setattr("push.commit_sharing.EXPECTED_S", 0)
    queue = await house.queue()
    await house.publish(queue, numbered(1))
    (lane,) = house.broker.publisher.commits.lanes().values()
    await turns()
    assert lane.cursors_wait_s(is_due=True) == 0.0
    lane.backlog.waiting += 1
    assert lane.cursors_wait_s(is_due=True) > 0.0
    lane.backlog.waiting -= 1


def test_a_wait_of_less_than_the_loop_can_count_ends() -> None:
    """uvloop calls at once what is due within half a millisecond, and its handle has no time."""

    async def main() -> None:
        written: list[int] = []
        cursor_writer = cursor_writer_of(written, {1}, 1e-5)
        cursor_writer.mark(Acks("q", 10))
        cursor_writer._flush()
        cursor_writer.on_end(1)
        await turns()
        assert written == [10]

    uvloop.run(main())
