"""Histories of gateways whose store, after a failover, has the state of a moment before.

The primary is the first to know that a record is certified. The next primary may have the record,
on all copies, and not yet know that. The tests put back the state of such a copy.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metadata.catalog import ANYBODY, GroupSettings, Queue
from push.errors import Unknown
from storage.redis.keys import queue_key
from storage.redis.shard import RedisShard
from tests.histories.house import delivery, message, numbered
from tests.histories.redis_gateways import emptied
from tests.histories.test_gateways_on_redis import Gateway
from tests.memory import in_memory
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.servers.node import Node
from tests.waiting import becomes


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Server of its own."""
    with in_memory() as folder, single(binaries()[0], folder) as started:
        yield started


@pytest.fixture
async def gateway(node: Node, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Gateway over an empty server."""
    url = await emptied(node)
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unexpected.append(told))
    async with AsyncExitStack() as stack:
        opened = Gateway(tmp_path, url)
        await opened.open()
        stack.push_async_callback(opened.stop)
        yield opened
    assert not unexpected, unexpected


def put_back(node: Node, queue: Queue, number: int, **fields: int) -> None:
    """Put these fields into the partition's row."""
    key = queue_key(queue.queue_id).removesuffix("queue") + f"p:{number}"
    assert node.ask("EXISTS", key)
    node.ask("HSET", key, *(word for pair in fields.items() for word in pair))


async def group_of(gateway: Gateway, queue: Queue, **settings: Any) -> Any:
    """Make a group of this queue."""
    group, _ = await gateway.broker.put_group(
        ANYBODY, queue, "billing", GroupSettings(**settings), None
    )
    return group


async def test_a_consumer_that_leaves_then_leaves_its_partitions(
    gateway: Gateway, node: Node
) -> None:
    """P6, R20: Its settlements are refused at first, and written when they can be."""
    queue = await gateway.queue(partitions=4)
    group = await group_of(gateway, queue)
    first, consumer = await gateway.consumer(group, "s1")
    await becomes(lambda: len(gateway.owns(group)) == 4)
    await gateway.publish(queue, [message(n, f"k{n}") for n in range(20)])
    given = await first.take(20)
    for number in range(4):
        put_back(node, queue, number, certified=0)
    consumer.ack([one for place, *_ in given for one in delivery(place)], [], None)
    consumer.leave()
    second, _ = await gateway.consumer(group, "s2")
    await becomes(lambda: len(gateway.owns(group)) == 4, 20)
    await gateway.publish(queue, [message(n, f"k{n}") for n in range(20, 40)])
    await second.take(20)
    assert sorted(second.bodies) == list(range(20, 40))


async def test_what_one_partition_refuses_holds_up_no_other(gateway: Gateway, node: Node) -> None:
    """P8, R29: The acks of a moment travel together. The log of one partition has been lost."""
    queue = await gateway.queue(partitions=2)
    group = await group_of(gateway, queue)
    first, consumer = await gateway.consumer(group, "s1")
    await becomes(lambda: len(gateway.owns(group)) == 2)
    await gateway.publish(queue, [message(n, f"k{n}") for n in range(20)])
    given = await first.take(20)
    put_back(node, queue, 0, certified=0, next=0)
    done: list[Any] = []
    consumer.ack([x for place, *_ in given if place[0] == 0 for x in delivery(place)], [], None)
    consumer.ack(
        [x for place, *_ in given if place[0] == 1 for x in delivery(place)], [], done.append
    )
    await becomes(lambda: done, 5)
    assert done[0].durable


async def test_what_waited_behind_its_key_is_given_after_all(gateway: Gateway, node: Node) -> None:
    """P1, P3: A record that is not certified at the moment is not lost."""
    queue = await gateway.queue()
    group = await group_of(gateway, queue)
    session, consumer = await gateway.consumer(group, "s1")
    await gateway.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    consumer.nack(delivery(place), 0.2, None)
    await gateway.publish(queue, numbered(1, first=1))
    await gateway.publish(queue, [message(2, "another")])
    await becomes(lambda: len(session.given) == 3)
    again = session.given[-1][0]
    assert session.bodies == [0, 2, 0]
    put_back(node, queue, 0, certified=1)
    assert await gateway.confirm(consumer, delivery(again)) == (1, 0)
    await becomes(lambda: 1 in session.bodies, 10)


async def test_a_dead_letter_arrives_after_all(gateway: Gateway, node: Node) -> None:
    """P1: The record is not certified at the moment."""
    queue = await gateway.queue(attempts_max=1)
    group = await group_of(gateway, queue)
    session, consumer = await gateway.consumer(group, "s1")
    await gateway.publish(queue, numbered(1))
    ((place, _, _),) = await session.take(1)
    put_back(node, queue, 0, certified=0)
    consumer.nack(delivery(place), 0.0, None)

    await becomes(lambda: gateway.broker.dead_letters.moved_total == 1, 10)


async def test_who_was_told_of_more_than_there_is_does_not_ask_without_end(
    gateway: Gateway, node: Node
) -> None:
    """P8: This lasts until the store knows it again, or for good if a level below `all` has lost
    it."""
    queue = await gateway.queue()
    group = await group_of(gateway, queue)
    await gateway.publish(queue, numbered(5))
    gateway.broker.tail._records.clear()
    put_back(node, queue, 0, certified=0, next=0)

    def looks() -> int:
        found = node.info("commandstats").get("cmdstat_fcall_ro", "calls=0,")
        return int(found.partition("calls=")[2].partition(",")[0])

    await gateway.consumer(group, "s1")
    await becomes(lambda: gateway.owns(group))
    before = looks()
    await asyncio.sleep(2)
    assert looks() - before < 40


async def test_a_seek_whose_answer_is_lost_is_carried_out(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5, R11: The client is answered that the outcome is unknown. The consumers are given the
    messages from the new place."""
    act = RedisShard.act
    queue = await gateway.queue(retention_s=60)
    group = await group_of(gateway, queue)
    session, consumer = await gateway.consumer(group, "s1")
    await gateway.publish(queue, numbered(3))
    held = [one for place, *_ in await session.take(3) for one in delivery(place)]
    assert await gateway.confirm(consumer, held) == (3, 0)

    async def lost(shard: RedisShard, function: str, *args: Any, **options: Any) -> Any:
        answer = await act(shard, function, *args, **options)
        if function == "seek":
            monkeypatch.undo()
            raise Unknown("no answer in time")
        return answer

    monkeypatch.setattr(RedisShard, "act", lost)
    with pytest.raises(Unknown):
        await gateway.broker.seek_group(ANYBODY, queue, "billing", "earliest")
    await becomes(lambda: session.bodies == [0, 1, 2, 0, 1, 2], 10)
