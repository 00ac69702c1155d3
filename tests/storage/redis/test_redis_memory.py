"""A store whose memory ends: publishing stops at a reserve, all that drains it goes on, and it
accepts again by itself (R29)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from push import limits
from push.storage_port import Appended, CursorWrite
from storage.redis.library import library
from storage.redis.ops.provision import provision
from storage.redis.replication import MemoryReserve, MemoryUse, memory_of
from storage.redis.shard import Marks, RedisShard
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import G0, P0, P1, Clock, append, outcomes, sequences, with_group
from tests.servers.binaries import Binary
from tests.servers.layouts import replicated
from tests.servers.node import Node
from tests.storage.shards import settings
from tests.waiting import becomes

BOUND_BYTES = 12 << 20
WATCH_S = 0.02


def test_publishing_opens_again_when_more_than_the_reserve_is_free() -> None:
    reserve = MemoryReserve(0.1)
    assert [reserve.update(MemoryUse(used, 100)) for used in (0, 89, 91, 89, 86, 84, 89)] == [
        True, True, False, False, False, True, True,
    ]  # fmt: skip
    assert 1 < limits.MEMORY_RESERVE_REOPENS < 2
    assert not MemoryReserve(0.1).update(MemoryUse(120, 100))
    assert MemoryReserve(0.1).update(MemoryUse(120, 0))  # has no bound: `admin doctor` says so
    told = {"used_memory": "150", "mem_not_counted_for_evict": "70", "maxmemory": "100"}
    assert memory_of(told) == MemoryUse(80, 100)


@pytest.fixture
def small(redis_binary: Binary, tmp_path: Path) -> Iterator[Node]:
    """A server with little memory."""
    with replicated(redis_binary, tmp_path, replicas=0) as servers:
        servers.nodes[0].ask("CONFIG", "SET", "maxmemory", BOUND_BYTES)
        yield servers.nodes[0]


@asynccontextmanager
async def store_on(node: Node, reserve_share: float) -> AsyncIterator[RedisStorage]:
    given = replace(
        settings(node), library=library(), watch_s=WATCH_S, reserve_share=reserve_share,
        silence_s=30.0,
    )  # fmt: skip
    await provision(given, INCARNATION, 0)
    store = RedisStorage(
        await RedisShard.open(given, Marks(INCARNATION)), INCARNATION, wall=Clock()
    )
    try:
        yield store
    finally:
        await store.close()


async def filled(store: RedisStorage) -> int:
    """Append until it is refused, four at a time, each four with a look at the server: what comes
    between two looks has a test of its own. How many records were stored."""
    stored = 0
    while stored < 2000:
        seen = (await store.state()).detail
        for _ in range(4):
            (appended,) = await store.append([append(messages=1, size=64 << 10)])
            if appended.outcomes is not None:
                assert outcomes(appended) == ["storage_full"]
                return stored
            stored += 1
        await becomes(partial(_says_other, store, seen))
    raise AssertionError("it is never full")


async def _says_other(store: RedisStorage, seen: dict[str, str]) -> bool:
    return (await store.state()).detail != seen


async def drained(store: RedisStorage, stored: int) -> None:
    """Settle all of it under a new owner, and trim; all of it while it is full."""
    owned = await store.own(G0, token=b"next", assignment=1)
    write = CursorWrite(G0, owned.epoch, b"next", settled=((0, stored - 1),))
    assert not (await store.write_cursors([write]))[0].fenced
    assert await store.seal(P1, []) == 0
    while await store.trim(P0, retention_s=0, keep_all=True):
        pass


async def accepts(store: RedisStorage) -> None:
    """Wait until there is room; nobody helps."""

    async def opens() -> bool:
        return (await store.state()).publishable

    await becomes(opens)


async def test_at_the_reserve_publishing_stops_the_rest_drains_and_it_accepts_again(
    small: Node,
) -> None:
    async with store_on(small, limits.MEMORY_RESERVE_SHARE) as store:
        await with_group(store)
        assert (await store.state()).publishable
        for _ in range(2):  # and a second time
            first = (await store.partitions("q-1"))[0].end
            stored = first + await filled(store)
            assert stored > first + 20
            state = await store.state()
            assert (state.writable, state.publishable) == (True, False)
            memory = memory_of(small.info("memory"))
            assert 0 < memory.free_share < limits.MEMORY_RESERVE_SHARE  # before the server refuses
            assert await sequences(store, [1]) in (["storage_full"], ["out_of_sequence"])
            if not first:
                await drained(store, stored)
            else:
                await store.purge("q-1", None)
            await accepts(store)
            assert (await store.append([append(messages=1)]))[0].first == stored
            assert memory_of(small.info("memory")).free_share > limits.MEMORY_RESERVE_SHARE


async def test_memory_that_ends_between_two_looks_is_a_refusal_and_leaves_nothing_half_written(
    small: Node,
) -> None:
    """Acts that are out together: some are stored, the others are refused by the server itself."""
    async with store_on(small, 0.0) as store:
        await with_group(store)

        async def publish(number: int) -> Appended:
            runs = [(b"producer-%07d" % number, 0, [1])]
            return (await store.append([append(runs=runs, size=64 << 10)]))[0]

        answers = await asyncio.gather(*map(publish, range(400)), return_exceptions=True)
        assert not [each for each in answers if isinstance(each, BaseException)]
        found = [outcomes(each)[0] for each in answers if isinstance(each, Appended)]
        stored = sorted(each for each in found if isinstance(each, int))
        assert stored == list(range(len(stored)))
        assert 50 < len(stored) < 400
        assert {each for each in found if isinstance(each, str)} == {"storage_full"}
        state = (await store.partitions("q-1"))[0]
        assert (state.end, state.certified, state.messages) == (len(stored),) * 3
        read = await store.read(P0, 0, 1 << 30)
        assert [record.first for record in read.records] == stored
        assert read.damage == ()
        again = await asyncio.gather(*map(publish, range(400)))
        assert [outcomes(each)[0] for each in again] == [
            -each - 1 if isinstance(each, int) else each for each in found
        ]  # each duplicate is known, and nothing else has got in
        await drained(store, len(stored))
        await accepts(store)
        fresh = [outcomes(each)[0] for each in await asyncio.gather(*map(publish, range(40)))]
        assert all(isinstance(each, int) for each in fresh)
