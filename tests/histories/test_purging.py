"""Histories of purged queues (R12, R21, R26). Purged messages belong to no group, and later ones
do."""

from metadata.catalog import ANYBODY, Queue
from tests.histories.house import House, delivery, eventually, message, numbered


async def purge(house: House, queue: Queue, group: str | None = None) -> int:
    """Purge the queue or the group. It is durable when this returns. Return the number of
    messages."""
    return (await house.broker.upkeep.purge(ANYBODY, queue, group)).messages


async def test_a_group_that_was_purged_goes_on_with_what_comes_then(house: House) -> None:
    """Deliveries in flight, waiting messages, and messages never given do not come again, and their
    acks are stale."""
    queue = await house.queue()
    group = await house.group(queue)
    other = await house.group(queue, "audit")
    session, consumer = await house.subscribe(queue, group, credit=3)
    await house.publish(queue, numbered(5))
    given = await session.take(3)
    consumer.nack(delivery(given[0][0]), 0, None)
    assert await purge(house, queue, "billing") == 5
    assert await house.lag(queue, group) == 0
    assert await house.lag(queue, other) == 5
    await eventually(lambda: consumer.owned_partitions)
    assert await house.confirm(consumer, delivery(given[1][0])) == (0, 1)
    consumer.grant(100)
    await house.publish(queue, numbered(2, first=5))
    await session.until(lambda: session.bodies[-2:] == [5, 6])
    assert session.bodies.count(3) == session.bodies.count(4) == 0
    audit, _ = await house.subscribe(queue, other)
    assert await audit.get(7) == [0, 1, 2, 3, 4, 5, 6]


async def test_a_purged_queue_is_empty_for_everybody(house: House) -> None:
    """Every group begins after the purge, and an earlier reader is told of a gap (P10)."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.group(queue, "audit")
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(4))
    await session.take(4)
    behind, reader = await house.read(queue, credit=1, start="earliest")
    assert await behind.get(1) == [0]
    assert await purge(house, queue) == 4
    described = await house.broker.describe_queue(ANYBODY, "orders")
    assert described["depth"] == 0
    reader.grant(10)
    await behind.until(lambda: [f["gap"] for f in behind.frames if "gap" in f] == [[1, 3]])
    await house.publish(queue, [message("next")])
    await session.until(lambda: session.bodies[-1] == "next")
    assert (await behind.get(2))[-1] == "next"
    late, _ = await house.read(queue, start="earliest")
    assert await late.get(1) == ["next"]
    audit = house.broker.metadata.find_group(ANYBODY, queue, "audit")
    assert await house.lag(queue, audit) == 1
    assert not consumer.left


async def test_a_parked_key_is_gone_with_a_purge(house: House) -> None:
    """R18: Its side line, its mark and its attempts are deleted. The key itself goes on."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    consumer.nack(delivery((await session.take(3))[0][0]), 0, None)
    await house.broker.cursor_writer.drain()
    assert (await house.broker.parking.list_keys(queue, group, 10)).keys_parked == 1
    assert await purge(house, queue, "billing") == 3
    assert (await house.broker.parking.list_keys(queue, group, 10)).keys_parked == 0
    await house.publish(queue, [message(3)])
    await session.until(lambda: session.bodies[-1] == 3)


async def test_a_purge_outlives_the_broker(durable_house: House) -> None:
    house = durable_house
    queue = await house.queue(retention_s=3600)
    group = await house.group(queue)
    await house.publish(queue, numbered(4))
    assert await purge(house, queue) == 4
    await house.restart()
    queue = house.find()
    session, _ = await house.subscribe(queue, group)
    reader, _ = await house.read(queue, start="earliest")
    await house.publish(queue, [message("next")])
    assert await session.get(1) == await reader.get(1) == ["next"]
