"""A manager and a real Cluster: who is away is forgotten by all nodes, and known again when it is
whole; nothing that was acknowledged is lost (R28, P1)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from services.manager.keeper import ClusterKeeper
from services.manager.manager import Manager
from storage.redis import target as redis_target
from storage.redis.cluster import ClusterShard
from storage.redis.ops.provision import provision
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import P0
from tests.servers.binaries import binaries
from tests.servers.layouts import Cluster, clustered
from tests.servers.node import Node
from tests.servers.shipped import login
from tests.services.test_manager import AWAY_S
from tests.storage.redis.test_redis_failover import Load
from tests.waiting import becomes

ELECTION_S = 8.0
"""In which one that should not be elected would be, twice over."""


@dataclass
class Managed:
    """A Cluster with a queue, whose messages are at `busy` and its replicas."""

    servers: Cluster
    kept: RedisStorage
    load: Load
    manager: Manager
    busy: Node
    replicas: list[Node]
    name: str
    """Of that shard, to the manager."""

    async def becomes_so(self, replicas: int, out: int) -> None:
        """Wait until the manager sees this R, this many who are out, and nothing left to do."""

        def is_so() -> bool:
            (told,) = [
                keeper.report for keeper in self.manager.duties
                if isinstance(keeper, ClusterKeeper) and keeper.name == self.name
            ]  # fmt: skip
            return (
                told is not None
                and not told.says
                and ((told.replicas, len(told.out)) == (replicas, out))
            )

        await becomes(is_so, within_s=100)

    async def all_is_there(self) -> None:
        """What has a receipt is where the receipt says."""
        await self.load.stop()
        found: dict[int, bytes] = {}
        while read := (await self.kept.read(P0, max(found, default=-1) + 1, 1 << 18)).records:
            found |= {record.first: bytes(record.payload) for record in read}
        receipts = self.load.receipts
        assert {at: found.get(at) for at in receipts} == receipts


@asynccontextmanager
async def managed(servers: Cluster, replicas: int) -> AsyncIterator[Managed]:
    """Provisioned with this many replicas of each primary, under load."""
    there = ",".join(f"{node.address}:{node.port}" for node in servers.nodes)

    def target(user: str) -> redis_target.Target:
        return redis_target.parse(f"redis+cluster://{':'.join(login(user))}@{there}")

    for part in await target("tocsin-admin").parts():
        await provision(replace(part.settings, wait_s=10.0), INCARNATION, replicas)
    shard = await ClusterShard.open(await target("tocsin").parts(), INCARNATION, {})
    kept = RedisStorage(shard, INCARNATION, tails_s=0.2)
    await kept.create_queue("q-1", 1)
    busy = servers.primary_of(key_slot(b"q-1"))
    name = ["tocsin", "tocsin-1", "tocsin-2"][servers.nodes.index(busy)]
    manager = await Manager.open([("tocsin", target("tocsin-manager"))], away_s=AWAY_S)
    manager.start()
    load = Load(kept)
    made = Managed(servers, kept, load, manager, busy, servers.shards()[busy], name)
    try:
        await load.more(100)
        await made.becomes_so(replicas, 0)
        yield made
    finally:
        await load.stop()
        await manager.stop()
        await kept.close()


async def test_who_is_away_is_forgotten_by_all_and_known_when_it_is_whole(tmp_path: Path) -> None:
    with clustered(binaries()[-1], tmp_path, primaries=3, replicas=1, with_users=True) as servers:
        async with managed(servers, 1) as made:
            busy, (replica,) = made.busy, made.replicas
            itself = replica.ask("CLUSTER", "MYID")
            others = [node for node in servers.nodes if node is not replica]
            # Who was told to forget it does not hear of it for a minute, and from Redis 7.2 on says
            # so to those who do. It is saved here where the server can do that.
            for node in others:
                with contextlib.suppress(redis.ResponseError):  # not Valkey
                    node.ask("CONFIG", "SET", "cluster-blacklist-ttl", "5")
            replica.kill()
            await made.becomes_so(0, 1)
            assert not any(itself in node.ask("CLUSTER", "NODES") for node in others)
            await made.load.more(100)
            await asyncio.to_thread(replica.start)
            await becomes(lambda: itself in busy.ask("CLUSTER", "NODES"), within_s=100)
            bus = replica.ask("CONFIG", "GET", "cluster-port")[1]
            for node in others:  # to Redis 7.0, this is enough
                node.ask("CLUSTER", "MEET", replica.address, replica.port, bus)
            await made.becomes_so(1, 0)
            assert all(itself in node.ask("CLUSTER", "NODES") for node in others)
            await made.load.more(100)
            await asyncio.to_thread(servers.wait_in_sync)
            name = busy.ask("CLUSTER", "MYID")
            busy.kill()
            await asyncio.to_thread(servers.wait_failover, busy)
            await made.becomes_so(0, 1)
            await made.load.more(100)
            await asyncio.to_thread(busy.start)  # and believes that it is primary
            await becomes(lambda: busy.role() == "slave")
            # Asked of the other one: itself it may be loading what it is sent.
            await becomes(lambda: name in replica.ask("CLUSTER", "NODES"))
            await made.load.more(100)
            await made.all_is_there()


async def test_one_that_was_frozen_and_taken_out_is_not_elected_when_it_goes_on(
    tmp_path: Path,
) -> None:
    """It does not know for how long it was: without a manager it would be, within 4 s."""
    with clustered(binaries()[0], tmp_path, primaries=3, replicas=2, with_users=True) as servers:
        async with managed(servers, 2) as made:
            busy, (frozen, other) = made.busy, made.replicas
            frozen.freeze()
            await made.becomes_so(1, 1)
            await made.load.more(100)
            other.kill()
            busy.kill()
            frozen.thaw()
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(servers.wait_failover, busy, within_s=ELECTION_S)
            await asyncio.to_thread(other.start)
            await asyncio.to_thread(busy.start)
            await made.load.more(100)
            await made.all_is_there()


async def test_a_machine_that_is_lost_with_nodes_of_two_shards_stops_nobody_for_long(
    tmp_path: Path,
) -> None:
    """The usual Cluster: three machines, each with a primary and the replica of another one. Who
    looks after one shard waits until nobody knows the other's, and that one is forgotten, too."""
    with clustered(binaries()[-1], tmp_path, primaries=3, replicas=1, with_users=True) as servers:
        async with managed(servers, 1) as made:
            another = next(node for node in servers.nodes[:3] if node is not made.busy)
            (second,) = servers.shards()[another]
            made.busy.kill()
            second.kill()
            await asyncio.to_thread(servers.wait_failover, made.busy)
            await made.becomes_so(0, 1)
            await made.load.more(100)
            await made.all_is_there()


async def test_replicas_of_two_shards_that_knew_each_other_are_not_elected_when_they_are_back(
    tmp_path: Path,
) -> None:
    """Both were away, and neither could be told to forget the other one."""
    with clustered(binaries()[-1], tmp_path, primaries=3, replicas=1, with_users=True) as servers:
        async with managed(servers, 1) as made:
            another = next(node for node in servers.nodes[:3] if node is not made.busy)
            away = [*made.replicas, *servers.shards()[another]]
            for node in away:
                node.kill()
            await made.becomes_so(0, 1)
            await made.load.more(100)  # what neither has
            made.busy.kill()
            for node in away:
                await asyncio.to_thread(node.start)
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(servers.wait_failover, made.busy, within_s=ELECTION_S)
            await asyncio.to_thread(made.busy.start)
            await made.load.more(100)
            await made.all_is_there()
