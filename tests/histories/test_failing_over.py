"""Histories of a broker whose primary dies with what no replica has heard yet."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from metadata.redis_store import found_catalog
from push.ports import Partition
from storage.redis_provision import provision
from storage.redis_shard import Marks, RedisShard
from storage.redis_target import parse
from tests.histories.gateways import becomes
from tests.histories.house import delivery, numbered
from tests.histories.redis_gateways import INCARNATION
from tests.histories.test_gateways_on_redis import Gateway
from tests.servers.binaries import binaries
from tests.servers.layouts import Guarded, guarded
from tests.servers.shipped import MASTER


@contextmanager
def unheard(servers: Guarded) -> Iterator[None]:
    """What is written meanwhile goes with the primary, which is dead afterwards."""
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
    """A gateway over these, which are provisioned for it."""
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


async def test_a_message_that_dies_in_a_failover_is_among_the_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: all copies have the record; that it is certified died with the primary, and is found out
    again only when there are copies enough."""
    act = RedisShard.act
    with guarded(binaries()[0], tmp_path / "servers", replicas=1) as servers:
        gateway = await opened(servers, tmp_path / "gateway")
        queue = await gateway.queue(attempts_max=1)
        group = await gateway.group(queue)
        session, consumer = await gateway.consumer(group, "s1")
        await becomes(lambda: gateway.owns(group))
        lost = servers.primary

        async def dying(shard: RedisShard, function: str, *args: Any, **options: Any) -> Any:
            if function != "certify":
                return await act(shard, function, *args, **options)
            monkeypatch.undo()
            with unheard(servers):
                return await act(shard, function, *args, **options)

        monkeypatch.setattr(RedisShard, "act", dying)
        await gateway.publish(queue, numbered(1))
        ((place, _, _),) = await session.take(1)
        await asyncio.to_thread(servers.wait_failover, lost)
        reading = gateway.broker.tail.read
        while (await reading(Partition(queue.queue_id, 0), 0)).certified:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        consumer.nack(delivery(place), 0.0, None)
        await asyncio.sleep(1)
        lost.start()
        await becomes(lambda: gateway.broker.dead_letters.moved_total, 30)
        await gateway.stop()
