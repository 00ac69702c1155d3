"""Histories of paused queues. No message is given out, and everything else goes on."""

import asyncio

import pytest

from metadata.catalog import ANYBODY, QueueSettings
from push.errors import Refused
from tests.histories.house import House, delivery, message, numbered


async def pause(house: House, *, paused: bool = True) -> None:
    """Pause or resume the queue. The change is durable when this returns."""
    await house.broker.upkeep.pause(ANYBODY, "orders", paused=paused)


async def held_up(house: House) -> None:
    """Wait until `billing` waits for the end of the pause. It had its turn, and gave nothing."""
    for _ in range(1000):
        described = await house.broker.describe_group(ANYBODY, house.find(), "billing")
        partitions = described["partitions"]
        assert isinstance(partitions, list)
        if [partition["waits_for"] for partition in partitions] == ["paused"]:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(partitions)


async def test_a_paused_queue_gives_nothing_out_until_it_is_resumed(house: House) -> None:
    """Publishing goes on, in order. Deliveries in flight may still be settled."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(2))
    first = (await session.take(2))[0]
    await pause(house)
    assert await house.publish(house.find(), numbered(3, first=2)) == [
        (0, offset, False) for offset in (2, 3, 4)
    ]
    await held_up(house)
    assert session.bodies == [0, 1]
    assert await house.confirm(consumer, [[*first[0], 1]]) == (2, 0)
    assert (await house.broker.describe_queue(ANYBODY, "orders"))["paused"] is True
    await pause(house, paused=False)
    assert await session.get(5) == [0, 1, 2, 3, 4]
    assert (await house.broker.describe_queue(ANYBODY, "orders"))["paused"] is False


async def test_what_returns_during_a_pause_comes_again_after_it(house: House) -> None:
    """A nacked message, and a later one of its key, wait for the end of the pause. Each message
    comes, in order."""
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    given = await session.take(3)
    await pause(house)
    consumer.nack(delivery(given[0][0]), 0, None)
    await house.broker.cursor_writer.drain()
    await house.publish(house.find(), [message(3)])
    await held_up(house)
    assert len(session.given) == 3
    await pause(house, paused=False)
    for count in (4, 5, 6, 7):
        place, _, _ = (await session.take(count))[-1]
        consumer.ack(delivery(place), [], None)
    assert session.bodies == [0, 1, 2, 0, 1, 2, 3]


async def test_a_pull_of_a_paused_queue_waits_and_gets_what_a_resume_gives(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(2))
    await pause(house)
    assert await house.broker.pulls.pull(house.find(), group, 10, 0) == []
    pulling = asyncio.ensure_future(house.broker.pulls.pull(house.find(), group, 10, 20))
    await held_up(house)
    assert not pulling.done()
    await pause(house, paused=False)
    assert [pulled.offset for pulled in await pulling] == [0, 1]


async def test_who_comes_during_a_pause_waits_too(house: House) -> None:
    """This holds too for a queue that was looked up before the pause, as by a subscribe under
    way."""
    before = await house.queue()
    group = await house.group(before)
    await house.publish(before, numbered(2))
    await pause(house)
    session, _ = await house.subscribe(before, group)
    await held_up(house)
    assert session.given == []
    await pause(house, paused=False)
    assert await session.get(2) == [0, 1]


async def test_at_most_once_settles_nothing_during_a_pause(house: House) -> None:
    """R23: A message that is not given out is not settled either."""
    queue = await house.queue()
    group = await house.group(queue, semantics="at_most_once")
    session, _ = await house.subscribe(queue, group)
    await pause(house)
    await house.publish(house.find(), numbered(2))
    await held_up(house)
    await house.broker.cursor_writer.drain()
    assert await house.lag(queue, group) == 2
    await pause(house, paused=False)
    assert await session.get(2) == [0, 1]


async def test_a_pause_is_of_groups_and_readers_go_on(house: House) -> None:
    queue = await house.queue()
    session, _ = await house.read(queue)
    await pause(house)
    await house.publish(house.find(), numbered(2))
    assert await session.get(2) == [0, 1]


async def test_a_pause_outlives_the_broker_and_new_settings(durable_house: House) -> None:
    """A pause is durable before its answer. New settings neither end it nor begin one."""
    house = durable_house
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, numbered(2))
    await pause(house)
    await house.broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1, lease_s=60))
    await house.restart()
    assert house.find().paused
    session, _ = await house.subscribe(house.find(), group)
    await held_up(house)
    assert session.given == []
    await pause(house, paused=False)
    assert await session.get(2) == [0, 1]
    await house.restart()
    assert not house.find().paused


async def test_pausing_twice_is_pausing_once_and_a_missing_queue_is_said(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await pause(house)
    await pause(house)
    await house.publish(house.find(), [message(0)])
    await pause(house, paused=False)
    await pause(house, paused=False)
    assert await session.get(1) == [0]
    with pytest.raises(Refused, match="queue_not_found"):
        await house.broker.upkeep.pause(ANYBODY, "other", paused=True)
