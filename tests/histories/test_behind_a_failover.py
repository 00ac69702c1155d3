"""Histories of readers and dead letters while a copy is away, or after a primary was lost with what
it alone knew (R10)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from metadata.catalog import Queue
from push.errors import Unknown
from push.places import Partition
from tests.histories.gateways import Gateway, Town, town
from tests.histories.house import delivery, numbered
from tests.waiting import becomes

FEW = Unknown("1 of 2 replicas have confirmed it")


@town(1)
async def test_a_reader_waits_calmly_for_what_is_not_certified_at_the_moment(town: Town) -> None:
    """The primary said that 2 are certified, and died with that. A reader that asked again at once
    would ask without end. It goes on when they are certified again."""
    await town.group(partitions=1)
    (gateway,) = town.gateways
    queue = gateway.find()
    await gateway.publish(queue, numbered(1))
    session, _ = await gateway.read(queue, start="earliest")
    await session.get(1)
    gateway.broker.tail.on_certified(Partition(queue.queue_id, 0), 2)
    before = gateway.storage.calls["read"]
    for _ in range(10_000):
        await asyncio.sleep(0)  # no time passes
    assert gateway.storage.calls["read"] - before <= 2
    await gateway.publish(queue, numbered(1, first=1))
    assert await session.get(2) == [0, 1]


async def nacked(town: Town, window_s: int) -> tuple[Gateway, Queue, Callable[[], None]]:
    """Publish a message whose attempts are exhausted. Return its dead-letter queue, and how to nack
    it."""
    (gateway,) = town.gateways
    queue = await gateway.queue(attempts_max=1)
    group = await gateway.group(queue)
    dead = await gateway.queue("orders.dead", dedup_window_s=window_s)
    await gateway.queue("orders", attempts_max=1, dead_letter_queue="orders.dead")
    session, consumer = await gateway.consumer(group)
    await becomes(lambda: gateway.owns(group))
    await gateway.publish(gateway.find(), numbered(1))
    ((place, _, _),) = await session.take(1)
    return gateway, dead, lambda: consumer.nack(delivery(place), 0.0, None)


async def letters(town: Town, dead: Queue) -> int:
    return sum(state.messages for state in await town.memory.partitions(dead.queue_id))


@pytest.mark.parametrize("window_s", [300, 0])
def test_a_dead_letter_is_one_however_long_a_replica_is_away(tmp_path: Any, window_s: int) -> None:
    """P1, P4: Each try is stored on the primary and answered `unknown`. Its id is forgotten after
    the window."""

    @town(1)
    async def history(town: Town) -> None:
        town.memory._wall = asyncio.get_running_loop().time
        gateway, dead, nack = await nacked(town, window_s)
        storage: Any = gateway.storage
        partitions, is_away = storage.partitions, True
        storage.lose = lambda name, *_: FEW if is_away and name == "append" else None

        async def uncertified(queue_id: str) -> Any:
            states = await partitions(queue_id)
            if not is_away or queue_id != dead.queue_id:
                return states
            return [replace(state, certified=0) for state in states]

        storage.partitions = uncertified
        nack()
        await asyncio.sleep(3600)
        assert not gateway.broker.dead_letters.moved_total
        is_away = False
        await becomes(lambda: gateway.broker.dead_letters.moved_total)
        assert await letters(town, dead) == 1

    history(tmp_path)


@town(1)
async def test_a_dead_letter_that_was_lost_with_its_primary_is_sent_again(town: Town) -> None:
    """P1: The answer was `unknown`, and the message is not there."""
    gateway, dead, nack = await nacked(town, 300)
    tries: list[str] = []

    def three_times(name: str) -> Exception | None:
        if name != "append" or len(tries) == 3:
            return None
        tries.append(name)
        return FEW

    gateway.storage.fail = three_times
    nack()
    await becomes(lambda: gateway.broker.dead_letters.moved_total)
    assert len(tries) == 3
    assert await letters(town, dead) == 1


@town(1)
async def test_a_dead_letter_is_one_however_long_a_commit_takes(town: Town) -> None:
    """R8: A commit that takes 30 s is answered `unknown`, and ends after all. The queue remembers
    no ids."""
    town.memory._wall = asyncio.get_running_loop().time
    gateway, dead, nack = await nacked(town, 0)
    gateway.storage.stall("append")
    nack()
    await asyncio.sleep(60)
    gateway.storage.well()
    await becomes(lambda: gateway.broker.dead_letters.moved_total)
    await asyncio.sleep(60)
    assert await letters(town, dead) == 1
