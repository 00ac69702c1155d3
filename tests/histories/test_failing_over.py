"""Histories of a broker whose primary dies with what no replica has received yet."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from metadata.catalog import Group, Queue
from metadata.redis.database import found_catalog
from push.errors import TocsinError
from push.places import Partition
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard
from storage.redis.target import parse
from tests.histories.house import Session, delivery, numbered
from tests.histories.redis_gateways import INCARNATION
from tests.histories.test_gateways_on_redis import Gateway
from tests.servers.binaries import binaries
from tests.servers.layouts import Guarded, guarded
from tests.servers.node import Node
from tests.servers.shipped import MASTER
from tests.waiting import becomes


@contextmanager
def unheard(servers: Guarded) -> Iterator[None]:
    """Lose with the primary whatever is written meanwhile. The primary is dead afterwards."""
    lost, replicas = servers.primary, servers.replicas
    for replica in replicas:
        replica.freeze()
    lost.ask("CLIENT", "KILL", "TYPE", "replica")
    try:
        yield
    finally:
        lost.kill()
        for replica in replicas:
            replica.thaw()


async def opened(servers: Guarded, folder: Path) -> Gateway:
    """Open a gateway over these servers, which are provisioned for it."""
    places = ",".join(f"{one.address}:{one.port}" for one in servers.sentinels)
    url = f"redis+sentinel://{places}/{MASTER}"
    (part,) = await parse(url).parts()
    await provision(part.settings, INCARNATION, len(servers.replicas))
    shard = await RedisShard.open(part.settings, Marks(INCARNATION))
    await found_catalog(shard)
    await shard.close()
    await asyncio.to_thread(folder.mkdir)
    gateway = Gateway(folder, url)
    await gateway.open()
    return gateway


def dies_with_the_next_certificate(servers: Guarded, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Make all copies have the record, while the fact that it is certified dies with the primary.

    The new primary certifies it only when there are copies enough. Return the node that dies.
    """
    act, lost = RedisShard.act, servers.primary

    async def dying(shard: RedisShard, function: str, *args: Any, **options: Any) -> Any:
        if function != "certify":
            return await act(shard, function, *args, **options)
        monkeypatch.undo()
        with unheard(servers):
            return await act(shard, function, *args, **options)

    monkeypatch.setattr(RedisShard, "act", dying)
    return lost


async def forgotten(gateway: Gateway, queue: Queue) -> None:
    """Wait until the elected primary answers, and knows of nothing that is certified."""
    partition = Partition(queue.queue_id, 0)
    while (await gateway.broker.tail.read(partition, 0)).certified:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def joined(gateway: Gateway, group: Group) -> Session:
    """Return a consumer that tries to join until the store has found its copies."""
    for number in count(2):
        with suppress(TocsinError):
            return (await gateway.consumer(group, f"s{number}"))[0]
    raise AssertionError


async def test_a_message_that_dies_in_a_failover_is_among_the_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1."""
    with guarded(binaries()[0], tmp_path / "servers", replicas=1) as servers:
        gateway = await opened(servers, tmp_path / "gateway")
        queue = await gateway.queue(attempts_max=1)
        group = await gateway.group(queue)
        session, consumer = await gateway.consumer(group, "s1")
        await becomes(lambda: gateway.owns(group))
        lost = dies_with_the_next_certificate(servers, monkeypatch)
        await gateway.publish(queue, numbered(1))
        ((place, _, _),) = await session.take(1)
        await asyncio.to_thread(servers.wait_failover, lost)
        await forgotten(gateway, queue)
        consumer.nack(delivery(place), 0.0, None)
        await asyncio.sleep(1)
        lost.start()
        await becomes(lambda: gateway.broker.dead_letters.moved_total, 30)
        await gateway.stop()


async def test_a_consumer_that_leaves_in_a_failover_leaves_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6, R20: Otherwise the partition never moves again, because its owner has left."""
    with guarded(binaries()[0], tmp_path / "servers", replicas=1) as servers:
        gateway = await opened(servers, tmp_path / "gateway")
        queue = await gateway.queue()
        group = await gateway.group(queue, lease_s=1)
        first, consumer = await gateway.consumer(group, "s1")
        await becomes(lambda: gateway.owns(group))
        lost = dies_with_the_next_certificate(servers, monkeypatch)
        await gateway.publish(queue, numbered(1))
        ((place, _, _),) = await first.take(1)
        await asyncio.to_thread(servers.wait_failover, lost)
        await forgotten(gateway, queue)
        consumer.ack(delivery(place), [], None)
        consumer.leave()
        await asyncio.sleep(3)  # no deadline of its lease is left
        lost.start()
        await asyncio.to_thread(servers.wait_in_sync)
        second = await joined(gateway, group)
        await becomes(lambda: gateway.owns(group), 30)
        await gateway.publish(queue, numbered(1, first=1))
        assert [body for _, body, _ in await second.take(1)] == [1]
        await gateway.stop()
