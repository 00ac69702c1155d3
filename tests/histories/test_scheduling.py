"""Histories of scheduled messages (R32): later, in their order, and once."""

import asyncio
import time
from typing import Any, cast

import pytest

from gateway.delivery.mover import Mover
from gateway.delivery.presence import Presence
from gateway.publish.batch import PendingPublish
from gateway.publish.clock import BelievedClock
from push import limits
from push.due import DOUBT_S, DueTicket
from push.errors import Refused, TocsinError
from push.message import Message
from push.places import Partition
from push.storage_port import Storage
from tests.histories.gateways import Town, town
from tests.histories.house import House, message
from tests.mad import Mad
from tests.waiting import becomes

LONG: Any = {"partitions": 1, "lease_s": 36_000, "lease_total_s": 36_000}
"""Settings of a group that gives nothing again while a test waits."""


class Clocks:
    """A wall clock that goes with the loop's, and can be set."""

    def __init__(self, mover: Mover) -> None:
        loop = asyncio.get_running_loop()
        self.begin_unix_s, self.began = time.time(), loop.time()
        self.set_s = 0.0
        self._loop, self._begin_s = loop, time.monotonic()
        mover.clock.wall, mover.clock.steady = self.wall, self.monotonic

    def wall(self) -> float:
        return self.begin_unix_s + self._loop.time() - self.began + self.set_s

    def monotonic(self) -> float:
        return self._begin_s + self._loop.time() - self.began


async def unavailable(queue_id: str) -> Any:
    """Answer as a storage that cannot be asked."""
    raise Refused("storage_unavailable")


async def outcomes(house: House, *messages: Message, **options: Any) -> list[Any]:
    """Publish messages; return their outcomes."""
    answered: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()
    house.broker.publisher.submit(
        PendingPublish(house.find(), messages, answered.set_result, **options)
    )
    return (await answered).outcomes


@town(1)
async def test_a_delayed_message_comes_when_it_is_due_and_not_before(town: Town) -> None:
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    (_, ticket) = await outcomes(one, message("now"), message("late", delay_s=10.5))
    assert isinstance(ticket, DueTicket)
    assert abs(ticket.due_unix_ms / 1000 - clocks.wall() - 10.5) < 1
    await session.take(2)
    assert session.bodies == ["now", "late"]
    assert 10 < loop.time() - began < 12
    pushes = [frame for frame in session.frames if frame["type"] == "push"]
    (_, late) = [one for push in pushes for one in push["messages"]]
    assert late["deliver_at_unix_ms"] == ticket.due_unix_ms
    assert "delay_s" not in late
    queue_id = one.find().queue_id
    assert late["id"] == f"{queue_id}-1-0-t{ticket.number}"
    assert one.broker.mover.moved_total == 1


@town(1)
async def test_what_is_due_comes_in_the_order_of_times_and_then_of_publishing(town: Town) -> None:
    """R7."""
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    at = int(clocks.wall() * 1000)
    times = [5000, 3000, 5000, 4000, 3000]
    await outcomes(one, *(message(n, deliver_at_unix_ms=at + t) for n, t in enumerate(times)))
    await session.take(5)
    assert session.bodies == [1, 4, 3, 0, 2]


@town(1)
async def test_nothing_is_moved_before_its_time(town: Town) -> None:
    """R32, by the mover's clock, to the millisecond."""
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    due = int(clocks.wall() * 1000) + 5000
    await outcomes(one, *(message(n, deliver_at_unix_ms=due + 250 * n) for n in range(8)))
    for count in range(1, 9):
        await session.take(count)
        assert clocks.wall() * 1000 >= due + 250 * (count - 1)
        assert len(session.bodies) == count


@town(1)
async def test_a_time_that_has_passed_is_now_and_the_receipt_says_so(town: Town) -> None:
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    past = [
        message("a", deliver_at_unix_ms=0),
        message("b", deliver_at_unix_ms=int(clocks.wall() * 1000)),
        message("c", delay_s=0),
    ]
    assert await outcomes(one, *past) == [(0, 0), (0, 1), (0, 2)]
    await session.take(3)
    assert one.broker.mover.moved_total == 0


@town(1)
async def test_bad_times_are_refused_alone(town: Town) -> None:
    """R5, P12."""
    (one,) = town.gateways
    await town.group(**LONG)
    most = limits.SCHEDULE_S_MAX
    found = await outcomes(
        one,
        message("negative", deliver_at_unix_ms=-1),
        message("negative", delay_s=-0.001),
        message("both", deliver_at_unix_ms=1, delay_s=1),
        message("far", delay_s=most + 0.001),
        message("far", deliver_at_unix_ms=int((time.time() + most + 60) * 1000)),
        message("nan", delay_s=float("nan")),
        message("fine", delay_s=most),
        message("fine", delay_s=0.5),
        message("fine"),
    )
    assert [isinstance(one, TocsinError) and one.code.name for one in found[:6]] == (
        ["invalid_message"] * 6
    )
    assert [type(one) for one in found[6:]] == [DueTicket, DueTicket, tuple]


@town(1)
async def test_a_resend_has_the_first_ticket_before_and_after_the_move(town: Town) -> None:
    """P4."""
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    producer = {"producer": bytes(16), "sequence": 0}
    (first,) = await outcomes(one, message("x", id="i", delay_s=5), **producer)
    (again,) = await outcomes(one, message("x", id="i", delay_s=5), **producer)
    (by_id,) = await outcomes(one, message("x", id="i"))
    await session.take(1)
    (after,) = await outcomes(one, message("x", id="i", delay_s=5), **producer)
    for each in (again, by_id, after):
        assert each == DueTicket(0, first.number, 0, duplicate=True)
    assert session.bodies == ["x"]


@town(1)
async def test_a_message_lives_from_the_move_on(town: Town) -> None:
    """R13: its time to live does not pass while it waits."""
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    due = int((clocks.wall() + 200) * 1000)
    await outcomes(one, message("x", ttl_s=60, deliver_at_unix_ms=due))
    await becomes(lambda: session.bodies, 300)
    assert session.bodies == ["x"]
    read = await town.memory.read(Partition(one.find().queue_id, 0), 0, bytes_max=1)
    (record,) = read.records
    assert due + 60_000 <= record.expires_unix_ms(0) < due + 62_000


@town(1)
async def test_much_that_is_due_at_once_comes_whole_and_in_order(town: Town) -> None:
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(partitions=4), credit=10_000)
    due = int((clocks.wall() + 5) * 1000)
    for first in range(0, 3000, 500):
        await outcomes(
            one,
            *(message(n, f"k{n % 7}", deliver_at_unix_ms=due) for n in range(first, first + 500)),
        )
    await session.take(3000)
    for key in range(7):
        of_key = [body for body in session.bodies if body % 7 == key]
        assert of_key == sorted(of_key)
    assert sorted(session.bodies) == list(range(3000))


@town(2)
async def test_one_gateway_moves_and_another_one_when_it_is_gone(town: Town) -> None:
    """P1: whatever dies, each comes, and once. Of so many partitions each gateway is chosen for
    some."""
    one, two = town.gateways
    for gateway in town.gateways:
        Clocks(gateway.broker.mover)
    group = await town.group(partitions=64)
    session, _ = await two.consumer(group, credit=1000)
    await outcomes(one, *(message(n, f"k{n}", delay_s=5 + n % 30) for n in range(90)))
    await becomes(lambda: one.broker.mover.moved_total and two.broker.mover.moved_total)
    one.cut_off()
    await becomes(lambda: len(session.bodies) == 90)
    assert sorted(session.bodies) == list(range(90))
    moved = [gateway.broker.mover.moved_total for gateway in town.gateways]
    assert sum(moved) == 90
    one.come_back()


@town(2)
async def test_what_was_scheduled_through_a_gateway_that_others_did_not_hear_of_comes(
    town: Town,
) -> None:
    """Notices are lost; a look finds it."""
    one, two = town.gateways
    for gateway in town.gateways:
        Clocks(gateway.broker.mover)
        gateway.storage.due.is_deaf = True
    group = await town.group(partitions=8)
    session, _ = await two.consumer(group)
    await outcomes(one, *(message(n, f"k{n}", delay_s=1) for n in range(20)))
    took_s = await becomes(lambda: len(session.bodies) == 20)
    assert took_s < 10


@town(1)
async def test_a_start_looks_again_where_the_storage_did_not_answer(town: Town) -> None:
    """An embedded store tells a new broker nothing by itself."""

    async def nothing() -> None:
        raise AssertionError("no other gateway is there")

    (one,) = town.gateways
    session, _ = await one.consumer(await town.group(**LONG))
    one.storage.due.is_deaf = True
    one.storage.due.stall("states")
    await outcomes(one, *(message(n, delay_s=1) for n in range(3)))
    storage: Any = Mad(town.memory)
    storage.due = Mad(town.memory.due)
    looks: list[str] = []

    def fail(name: str) -> Exception | None:
        looks.append(name)
        is_too_early = name == "states" and looks.count("states") <= 3
        return Refused("storage_unavailable") if is_too_early else None

    storage.due.fail = fail
    presence = Presence(
        town.catalog, on_return=nothing, on_resume=lambda: None, on_dead=lambda dead: None
    )
    clock = BelievedClock()
    tail = one.broker.tail
    again = Mover(
        cast(Storage, storage), town.catalog, presence, clock, tail, changed=lambda queue: None
    )
    Clocks(again)
    again.start()
    await session.take(3)
    assert looks.count("states") > 3
    assert again.moved_total == 3
    await again.stop()


@town(2)
async def test_a_queue_that_cannot_be_looked_at_hides_no_other(town: Town) -> None:
    """P1: notices of the other queues are lost, too."""
    one, two = town.gateways
    for gateway in town.gateways:
        Clocks(gateway.broker.mover)
    group = await town.group(partitions=8)
    session, _ = await two.consumer(group)
    broken = await one.queue(name="broken")
    for gateway in town.gateways:
        gateway.storage.due.is_deaf = True
        real = gateway.storage.due.real.states

        async def states(queue_id: str, real: Any = real) -> Any:
            if queue_id == broken.queue_id:
                raise Refused("storage_unavailable")
            return await real(queue_id)

        vars(gateway.storage.due)["states"] = states
    await asyncio.sleep(10)
    await outcomes(one, *(message(n, f"k{n}", delay_s=1) for n in range(20)))
    assert await becomes(lambda: len(session.bodies) == 20) < 10


@town(1)
async def test_what_was_put_off_by_a_wrong_clock_comes_by_the_right_one(town: Town) -> None:
    """R32: the clock is set during a read of what is due."""
    (one,) = town.gateways
    clocks, mover = Clocks(one.broker.mover), one.broker.mover
    session, _ = await one.consumer(await town.group(**LONG))
    town.memory.clock = lambda: int(clocks.begin_unix_s * 1000)  # it stands: apart in a minute

    vars(one.storage.due)["states"] = unavailable  # no look makes up for it
    one.storage.due.stall("first")
    await outcomes(one, message("a", delay_s=1))
    await asyncio.sleep(3)
    clocks.set_s += 365 * 86_400
    one.storage.due.well()
    town.memory.clock = lambda: None
    await becomes(lambda: mover.clock.doubt_s)
    clocks.set_s -= 365 * 86_400
    await becomes(lambda: session.bodies == ["a"], 2 * DOUBT_S)


@town(1)
async def test_a_backlog_of_one_partition_does_not_hold_up_the_others(town: Town) -> None:
    """P8: its rest comes behind what is due elsewhere."""
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(partitions=8), credit=1000)
    await outcomes(one, *(message(n, "busy", delay_s=5) for n in range(200)))
    await outcomes(one, *(message(f"other {n}", f"k{n}", delay_s=5.02) for n in range(30)))
    due: Any = one.storage.due
    move = due.move

    async def slow(messages: Any, append: Any) -> Any:
        await asyncio.sleep(0.01)
        return await move(messages, append)

    due.move = slow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.delivery.mover.MESSAGES_PER_MOVE", 5)
        patch.setattr("gateway.delivery.mover.TURNS", 1)
        await becomes(lambda: len(session.bodies) == 230, 60)
    # Those of its own partition come behind it, as their numbers say.
    others = [str(body).startswith("other") for body in session.bodies]
    assert sum(others[:100]) > 15, session.bodies


@town(1)
async def test_a_message_that_is_changed_all_the_time_does_not_hold_up_its_partition(
    town: Town,
) -> None:
    """P8: its move does not happen, those of the others do."""
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    stored = await outcomes(one, *(message(n, f"k{n}", delay_s=1) for n in range(9)))
    number, real = stored[8].number, town.memory.due
    move = one.storage.due.real.move

    async def raced(messages: Any, append: Any) -> Any:
        for found in await real.find(messages[0].partition, [number]):
            await real.change(found)
        return await move(messages, append)

    due: Any = one.storage.due
    due.move = raced
    await becomes(lambda: len(session.bodies) == 8, 30)
    assert 8 not in session.bodies
    await becomes(lambda: one.broker.mover._fewer)
    one.broker.mover.forget(one.find().queue_id)
    assert not one.broker.mover._fewer, "nor is it remembered of a queue that was deleted"
    due.move = move
    await becomes(lambda: len(session.bodies) == 9, 30)


@town(2)
async def test_what_others_have_moved_is_not_remembered(town: Town) -> None:
    """P9."""
    for gateway in town.gateways:
        Clocks(gateway.broker.mover)
    session, _ = await town.gateways[0].consumer(await town.group(partitions=8))
    messages = [message(n, f"k{n}", delay_s=1) for n in range(50)]
    await outcomes(town.gateways[0], *messages)
    await becomes(lambda: len(session.bodies) == 50)
    await asyncio.sleep(10)
    assert [len(gateway.broker.mover._next) for gateway in town.gateways] == [0, 0]


@town(1)
async def test_a_storage_that_takes_its_time_is_waited_for(town: Town) -> None:
    """P9: what falls due meanwhile in the same partition is not looked for again and again. (Time
    stands still here while anything goes round.)"""
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    one.storage.due.stall("move")
    await outcomes(one, *(message(n, delay_s=1 + n) for n in range(3)))
    await asyncio.sleep(10)
    assert session.bodies == []
    one.storage.due.well()
    await session.take(3)
    assert session.bodies == [0, 1, 2]


@town(1)
async def test_what_is_cancelled_during_its_move_holds_up_nothing_else(town: Town) -> None:
    """P1: the move happens not at all then, and the others are read again."""
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    stored = await outcomes(one, *(message(n, delay_s=1) for n in range(3)))
    one.storage.due.stall("move")
    await asyncio.sleep(3)
    ticket = stored[1]
    partition = Partition(one.find().queue_id, ticket.partition)
    assert await town.memory.due.cancel(partition, ticket.number, remember_s=300)
    one.storage.due.well()
    await session.take(2)
    assert session.bodies == [0, 2]


@town(1)
async def test_nothing_fires_when_the_year_jumps_ahead(town: Town) -> None:
    (one,) = town.gateways
    clocks, mover = Clocks(one.broker.mover), one.broker.mover
    session, _ = await one.consumer(await town.group(**LONG))
    await outcomes(one, message("in a day", delay_s=86_400), message("in an hour", delay_s=3600))
    clocks.set_s += 365 * 86_400
    await becomes(lambda: mover.clock.doubt_s)
    await asyncio.sleep(DOUBT_S - 10)
    assert (session.bodies, mover.moved_total) == ([], 0)
    clocks.set_s -= 365 * 86_400  # and an operator sets it right
    await becomes(lambda: mover.clock.jump_s < 0)
    await asyncio.sleep(3000)
    assert session.bodies == []
    await becomes(lambda: session.bodies == ["in an hour"], 600)


@pytest.mark.parametrize("apart_s", [-365 * 86_400, -3600, 3600, 365 * 86_400])
def test_nothing_is_moved_while_the_clock_of_the_store_says_something_else(
    apart_s: int, tmp_path: Any
) -> None:
    @town(1)
    async def test(town: Town) -> None:
        (one,) = town.gateways
        clocks, mover = Clocks(one.broker.mover), one.broker.mover
        session, _ = await one.consumer(await town.group(**LONG))
        town.memory.clock = lambda: int(clocks.wall() * 1000)
        await outcomes(one, message("a", delay_s=5))
        await session.take(1)
        await outcomes(one, message("b", delay_s=5))
        town.memory.clock = lambda: int((clocks.wall() - apart_s) * 1000)
        one.storage.due.stall("states")  # no look finds out: the move does
        await becomes(lambda: mover.clock.doubt_s)
        assert (round(mover.clock.jump_s), mover.clock.is_apart) == (apart_s, True)
        (note,) = one.broker.notes()
        assert ("is ahead of the store's" if apart_s > 0 else "is behind the store's") in note
        await asyncio.sleep(DOUBT_S - 10)
        assert session.bodies == ["a"]
        await becomes(lambda: session.bodies == ["a", "b"], 20)
        town.memory.clock = lambda: int((clocks.wall() - apart_s - 1) * 1000)  # no jump
        await outcomes(one, message("c", delay_s=5))
        await session.take(1)
        assert mover.clock.jumps_total == 1

    test(tmp_path)


@town(1)
async def test_an_operator_may_say_that_a_clock_which_jumped_is_right(town: Town) -> None:
    (one,) = town.gateways
    clocks, mover = Clocks(one.broker.mover), one.broker.mover
    session, _ = await one.consumer(await town.group(**LONG))
    await outcomes(one, message("in an hour", delay_s=3600))
    clocks.set_s += 7200
    await becomes(lambda: mover.clock.doubt_s)
    mover.clock.believe()
    assert await becomes(lambda: session.bodies) < 5


@town(1)
async def test_nothing_comes_twice_when_the_clock_is_set_back(town: Town) -> None:
    (one,) = town.gateways
    clocks = Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    await outcomes(one, message("a", delay_s=5), message("b", delay_s=50))
    await session.take(1)
    clocks.set_s -= 30
    took_s = await becomes(lambda: len(session.bodies) == 2, 120)
    assert 60 < took_s < 90
    await asyncio.sleep(100)
    assert session.bodies == ["a", "b"]


@pytest.mark.parametrize("answers", ["lost", "refused"])
def test_a_move_whose_answer_is_lost_happens_once(answers: str, tmp_path: Any) -> None:
    """R29."""

    @town(1)
    async def test(town: Town) -> None:
        (one,) = town.gateways
        Clocks(one.broker.mover)
        session, _ = await one.consumer(await town.group(**LONG))
        vars(one.storage.due)["states"] = unavailable  # no look makes up for it
        await outcomes(one, message("a", delay_s=5), message("b", delay_s=6))
        town.memory.lose_next_answer(applied=answers == "lost")
        await session.take(2)
        await asyncio.sleep(5)
        assert session.bodies == ["a", "b"]

    test(tmp_path)
