"""Histories of queues that are full: `reject` refuses, `dead_letter` moves the oldest on (R12)."""

import asyncio

import pytest

from metadata.catalog import ANYBODY
from push.errors import Refused
from tests.histories.house import WAIT_S, House, numbered


async def _relieved(house: House, group_lag: int) -> None:
    """Let the janitor look until the group has this lag."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    async with asyncio.timeout(WAIT_S):
        while True:
            await house.broker.janitor.look()
            await asyncio.sleep(0)  # memory never waits: let the moves go on
            await house.broker.flusher.drain()
            if await house.lag(queue, group) == group_lag:
                return


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room(house: House) -> None:
    """R12: `reject`: exactly messages_max are taken; what is settled and trimmed makes room."""
    queue = await house.queue(messages_max=3)
    group = await house.group(queue)
    answers = await house.publish(queue, numbered(4))
    assert answers == [(0, 0, False), (0, 1, False), (0, 2, False), "queue_full"]
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(3)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    await house.broker.janitor.look()
    assert await house.publish(queue, numbered(1, first=4)) == [(0, 3, False)]


async def test_overflow_moves_the_oldest_to_the_dead_letters(house: House) -> None:
    """R12, P1: nobody consumes: the oldest beyond the bound move on, each with its reason, and
    the rest is delivered."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    group = await house.group(queue)
    answers = await house.publish(queue, numbered(8))
    assert [answer for answer in answers if isinstance(answer, str)] == []
    await _relieved(house, 3)
    dead = house.find("orders.dead-letters")
    reader, _ = await house.read(dead, start="earliest")
    assert await reader.get(5) == [0, 1, 2, 3, 4]
    headers = reader.frames[0]["messages"][0]["headers"]
    assert headers["tocsin-dead-letter-reason"] == "overflow"
    assert headers["tocsin-dead-letter-group"] == "billing"
    session, _ = await house.subscribe(queue, group)
    assert await session.get(3) == [5, 6, 7]


async def test_overflow_passes_a_consumer_that_has_no_credit(house: House) -> None:
    """R12, P9: a consumer is there and takes nothing: what it was not given moves on; what it
    holds is left to it."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    await house.publish(queue, numbered(8))
    given = await session.take(2)
    await _relieved(house, 3)
    await house.confirm(consumer, [[*place, place[3]] for place, _, _ in given])
    consumer.grant(100)
    assert (await session.get(3))[:2] == [0, 1]
    assert session.bodies[-1] == 7
    dead = house.find("orders.dead-letters")
    reader, _ = await house.read(dead, start="earliest")
    moved = await reader.get(8 - len(session.bodies))
    assert sorted(moved + session.bodies) == list(range(8))


async def test_a_queue_within_its_bounds_loses_nothing(house: House) -> None:
    """R12: exactly at the bound nothing moves, and no dead-letter queue is made."""
    queue = await house.queue(messages_max=3, overflow="dead_letter")
    await house.group(queue)
    await house.publish(queue, numbered(3))
    await _relieved(house, 3)
    with pytest.raises(Refused, match="queue_not_found"):
        house.find("orders.dead-letters")
