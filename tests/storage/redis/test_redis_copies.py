"""The storage on Redis with a replica: what is answered and given is what the copies have (R10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from push.errors import Unknown
from storage.redis.connection import Address
from storage.redis.discovery import fixed
from storage.redis.ops.provision import provision
from storage.redis.replication import shortfall_of
from storage.redis.shard import Settings
from tests.contract.redis_single import INCARNATION, redis_store_of
from tests.contract.stores import P0, Clock, sequences, with_group
from tests.servers.binaries import Binary
from tests.servers.layouts import Replicated, replicated


@pytest.fixture
def two(redis_binary: Binary, tmp_path: Path) -> Iterator[Replicated]:
    """A primary and a replica."""
    with replicated(redis_binary, tmp_path, replicas=1) as servers:
        yield servers


async def test_what_a_replica_has_not_confirmed_is_neither_answered_nor_given(
    two: Replicated,
) -> None:
    """P1, P2: and once it is back, the same messages are duplicates that everybody gets."""
    primary, replica = two.nodes
    settings = Settings(fixed(Address(primary.address, primary.port)))
    await provision(settings, INCARNATION, 1)
    async with redis_store_of(settings, Clock()) as store:
        await with_group(store)
        assert await sequences(store, [1]) == [0]
        replica.freeze()
        with pytest.raises(Unknown):
            await sequences(store, [2])
        read = await store.read(P0, 0, 10**6)
        assert ([record.first for record in read.records], read.certified) == ([0], 1)
        replica.thaw()
        two.wait_in_sync()
        assert await sequences(store, [2, 3]) == [-2, 2]
        read = await store.read(P0, 0, 10**6)
        assert ([record.first for record in read.records], read.certified) == ([0, 1, 2], 3)
        end = (await store.partitions("q-1"))[0].end
    assert replica.ask("HGET", "{q-1}:p:0", "next") in (str(end), str(end).encode())


def test_what_the_level_all_waits_for_is_said() -> None:
    """R28: nothing where every replica follows."""
    line = "ip=10.0.0.{},port=6379,state={},offset=1,lag=0"
    told = {"role": "master", "connected_slaves": "2", "slave0": line.format(1, "online")}
    told["slave1"] = line.format(2, "online")
    assert shortfall_of(told, 2) == ""
    told["slave1"] = line.format(2, "wait_bgsave")
    assert shortfall_of(told, 2) == "1 of 2 replicas are attached: the level all waits for them"
    assert "set up for 1" in shortfall_of(told, 1)
