"""Histories of groups that settle before they are given (R23)."""

import asyncio

import pytest

from tests.histories.house import House, Session, message, numbered, offsets_of


class Witness(Session):
    """Session that reads the settled state of the store at each of its pushes."""

    def __init__(self, house: House) -> None:
        super().__init__("witness")
        self._house = house
        self.unsettled: list[int] = []

    def send(self, frame: bytes) -> None:
        super().send(frame)
        last = self.frames[-1]
        if last["type"] == "push":
            (at,) = self._house.memory.queues[self._house.find().queue_id]
            (cursor,) = at.cursors.values()
            self.unsettled += [n for n in offsets_of(last) if n >= cursor.floor]


async def test_nothing_is_pushed_before_it_is_settled(house: House) -> None:
    """R23: At the moment of each push it is already settled in the store."""
    if house.kind == "sqlite":
        pytest.skip("the fake shows its cursors at any moment")
    queue = await house.queue()
    group = await house.group(queue, semantics="at_most_once")
    session, _ = await house.subscribe(queue, group, session=Witness(house))
    for number in range(5):
        await house.publish(queue, numbered(3, first=3 * number))
    assert await session.get(15) == list(range(15))
    assert session.unsettled == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("applied", [False, True])
async def test_what_may_not_be_settled_is_not_pushed(house: House, applied: bool) -> None:
    """R23: The outcome of the settlement is unknown. It is not pushed, now or later, and its credit
    is free again."""
    if house.kind == "sqlite":
        pytest.skip("an unknown commit ends the process there (R31)")
    queue = await house.queue()
    group = await house.group(queue, semantics="at_most_once")
    session, consumer = await house.subscribe(queue, group, credit=1)
    session.is_writable = False
    await house.publish(queue, [message("lost")])
    house.memory.lose_next_answer(applied=applied)
    session.is_writable = True
    consumer.pump()
    await asyncio.sleep(0.01)
    assert not house.memory._lost_answers
    await house.publish(queue, [message("next")])
    assert await session.get(1) == ["next"]
    assert await house.lag(queue, group) == 0


async def test_a_crash_after_the_push_does_not_repeat_it(durable_house: House) -> None:
    """R23, P5: It was pushed, and then the process started again. It does not come again."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue, semantics="at_most_once")
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    assert await session.get(3) == [0, 1, 2]
    await house.restart()
    queue = house.find()
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, [message(3)])
    assert await session.get(1) == [3]


async def test_at_most_once_keeps_within_credit(house: House) -> None:
    """R23, R25: Messages that are being settled count as given. A grant brings exactly that many
    more."""
    queue = await house.queue(partitions=4)
    group = await house.group(queue, semantics="at_most_once")
    session, consumer = await house.subscribe(queue, group, credit=5)
    for number in range(40):
        await house.publish(queue, [message(number, f"k{number}")])
    await session.get(5)
    await house.broker.cursor_writer.drain()
    assert len(session.bodies) == 5
    assert await house.lag(queue, group) == 35
    consumer.grant(12)
    await session.get(12)
    await house.broker.cursor_writer.drain()
    assert len(session.bodies) == 12


async def test_pulls_of_an_at_most_once_group_get_every_message_once(house: House) -> None:
    """R23, R24: Each is settled before it is handed over, and then handed over."""
    queue = await house.queue(partitions=3)
    group = await house.group(queue, semantics="at_most_once")
    await house.publish(queue, [message(n, f"k{n}") for n in range(20)])
    bodies: list[object] = []
    while len(bodies) < 20:
        pulled = await house.broker.pulls.pull(queue, group, 3, 5)
        assert 1 <= len(pulled) <= 3
        bodies += [int(bytes(one.body or b"")) for one in pulled]
    assert sorted(bodies) == list(range(20))  # type: ignore[type-var]
    assert await house.lag(queue, group) == 0
    waiting = asyncio.ensure_future(house.broker.pulls.pull(queue, group, 3, 5))
    await asyncio.sleep(0)
    await house.publish(queue, [message("late")])
    (late,) = await waiting
    assert bytes(late.body or b"") == b'"late"'
