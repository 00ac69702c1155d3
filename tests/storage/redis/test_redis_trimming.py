"""What trimming costs on Redis: each settled record is looked at once, whichever gateway asks, and
what was pinned is looked at again when nothing pins it any more (R12)."""

import re
from collections.abc import AsyncIterator

import pytest

from push.storage_port import Side
from storage.redis.shard import Settings
from storage.redis.store import EXAMINED_MS, RedisStorage
from tests.contract.redis_single import INCARNATION, ask, redis_store_of
from tests.contract.stores import G0, P0, START_UNIX_S, Clock, append, change, with_group
from tests.storage.standing import Kind, Pool, all_kinds

RECORDS = 1500
"""Several acts' worth."""
CHEAP = 4
"""Looks that do not depend on how many records there are."""
KEY = 7


def engines() -> list[Kind]:
    """Return one server of each."""
    return [kind for kind in all_kinds() if kind.layout == "single"]


@pytest.fixture(params=engines(), ids=str)
async def server(request: pytest.FixtureRequest, servers: Pool) -> Settings:
    """Return one server, empty."""
    alone = servers.of(request.param)
    await alone.empty(INCARNATION)
    (settings,) = await alone.settings()
    return settings


@pytest.fixture
def clock() -> Clock:
    """Of every gateway."""
    return Clock()


@pytest.fixture
async def store(server: Settings, clock: Clock) -> AsyncIterator[RedisStorage]:
    """A gateway's storage there, with a group and RECORDS records of two messages each."""
    async with redis_store_of(server, clock) as opened:
        await with_group(opened)
        await opened.append([append(messages=2) for _ in range(RECORDS)])
        yield opened


async def trimmed(store: RedisStorage, *, retention_s: float = 0) -> int:
    """Slices until nothing is left to do: how many records went."""
    before = await messages(store)
    while await store.trim(P0, retention_s=retention_s, keep_all=True):
        pass
    return (before - await messages(store)) // 2


async def messages(store: RedisStorage) -> int:
    """Retained."""
    return (await store.partitions("q-1"))[0].messages


async def looks(server: Settings) -> int:
    """How often the server has read in an index or a side line so far."""
    info = (await ask(server, "INFO", "commandstats")).decode()
    found = re.findall(r"cmdstat_(?:xrange|xrevrange|zcount):calls=(\d+)", info)
    return sum(map(int, found))


async def cost(server: Settings, store: RedisStorage, *, retention_s: float = 0) -> int:
    """Looks of a trim that finds nothing to do."""
    before = await looks(server)
    assert await store.trim(P0, retention_s=retention_s, keep_all=True) == 0
    return await looks(server) - before


async def test_a_backlog_is_not_looked_at_however_long_it_is(
    server: Settings, store: RedisStorage
) -> None:
    assert await cost(server, store) <= CHEAP


async def test_what_is_pinned_is_looked_at_once_by_one_gateway(
    server: Settings, store: RedisStorage, clock: Clock
) -> None:
    """Of all records but the last a message is not settled; later, through the other gateway, of
    three more all are."""
    halves = [(2 * n, 2 * n) for n in range(RECORDS)]
    await store.write_cursors([change(settled=[*halves, (2 * RECORDS - 1, 2 * RECORDS - 1)])])
    assert await trimmed(store) == 1  # in one round, however many acts that takes
    assert await cost(server, store) <= CHEAP
    async with redis_store_of(server, clock) as other:
        assert await cost(server, other) <= CHEAP
        await store.write_cursors([change(settled=[(601, 601), (2001, 2003)])])
        assert await trimmed(other) == 3
        assert await cost(server, store) <= CHEAP


async def test_what_stood_aside_goes_when_it_is_settled_and_nothing_else_is_looked_at(
    server: Settings, store: RedisStorage
) -> None:
    lines = [Side(KEY, tuple(range(0, 2 * RECORDS, 2)))]
    await store.write_cursors([change(settled=[], aside=lines)])
    await store.write_cursors([change(settled=[(2 * n + 1, 2 * n + 1) for n in range(RECORDS)])])
    assert await trimmed(store) == 0
    assert await cost(server, store) <= CHEAP
    await store.write_cursors([change(settled=[(0, 0), (1000, 1003)])])
    before = await looks(server)
    assert await trimmed(store) == 3
    assert await looks(server) - before <= 4 * CHEAP
    await store.write_cursors([change(settled=[(0, 2 * RECORDS - 1)])])
    assert await trimmed(store) == RECORDS - 3


@pytest.mark.parametrize("how", ["drop", "seek", "purge"])
async def test_what_a_group_had_aside_pins_nothing_when_the_group_begins_anew(
    store: RedisStorage, how: str
) -> None:
    """Another group has settled everything."""
    await store.create_group("g-2", "q-1", ["latest", "earliest"])
    await store.write_cursors(
        [change(aside=[Side(KEY, tuple(range(10)))], settled=[(10, 2 * RECORDS - 1)])]
    )
    assert await trimmed(store) == RECORDS - 5
    assert await trimmed(store) == 0
    if how == "drop":
        await store.drop_group("g-1", "q-1")
    elif how == "seek":
        await store.seek("g-1", "q-1", ["latest", "earliest"])
    else:
        await store.purge("q-1", "g-1")
    assert await trimmed(store) == 5


async def test_a_group_that_goes_back_is_waited_for_again(store: RedisStorage) -> None:
    """P1: what it has not settled since stays, and goes when it has, in whatever order."""
    await store.write_cursors([change(settled=[(0, 0), (2, 2)])])
    assert await trimmed(store) == 0
    await store.seek("g-1", "q-1", ["earliest", "earliest"])
    epoch = (await store.own(G0, token=b"next", assignment=2)).epoch

    async def settle(first: int, last: int) -> None:
        await store.write_cursors([change(epoch=epoch, token=b"next", settled=[(first, last)])])

    await settle(1, 1)
    assert await trimmed(store) == 0
    await settle(0, 0)
    assert await trimmed(store) == 1
    await settle(3, 9)
    assert await trimmed(store) == 3
    await settle(2, 2)
    assert await trimmed(store) == 1


async def test_what_is_retained_is_not_looked_at_before_its_time(
    server: Settings, store: RedisStorage, clock: Clock
) -> None:
    await store.write_cursors([change(settled=[(0, 2 * RECORDS - 1)])])
    assert await trimmed(store, retention_s=60) == 0
    assert await cost(server, store, retention_s=60) <= CHEAP
    clock.unix_s = START_UNIX_S + 60
    assert await trimmed(store, retention_s=60) == RECORDS


async def test_a_retention_that_was_cut_short_counts_at_once(store: RedisStorage) -> None:
    await store.write_cursors([change(settled=[(0, 2 * RECORDS - 1)])])
    assert await trimmed(store, retention_s=3600) == 0
    assert await trimmed(store, retention_s=0) == RECORDS


async def test_a_record_from_the_future_keeps_nothing_but_itself(
    store: RedisStorage, clock: Clock
) -> None:
    """R3: the clock of the gateway that took it was a year ahead."""
    ahead_s = 365 * 86_400.0
    clock.unix_s = START_UNIX_S + ahead_s
    await store.append([append(messages=2, published_unix_s=clock.unix_s)])
    clock.unix_s = START_UNIX_S
    await store.append([append(messages=2)])
    await store.write_cursors([change(settled=[(0, 2 * RECORDS + 3)])])
    clock.unix_s = START_UNIX_S + 60
    assert await trimmed(store, retention_s=60) == RECORDS + 1
    clock.unix_s = START_UNIX_S + ahead_s
    assert await trimmed(store) == 1


async def test_what_a_gateway_of_before_settled_goes_within_a_day(
    server: Settings, store: RedisStorage, clock: Clock
) -> None:
    """Its acts do not say that something is to be looked at again."""
    await store.write_cursors([change(aside=[Side(KEY, (0,))], settled=[(1, 1)])])
    assert await trimmed(store) == 0
    await ask(server, "DEL", "{q-1}:ca:0:g-1")
    assert await trimmed(store) == 0
    clock.unix_s = START_UNIX_S + EXAMINED_MS / 1000 + 1
    assert await trimmed(store) == 1


async def test_more_is_looked_at_again_than_one_act_takes(store: RedisStorage) -> None:
    """An operator returns thousands of parked messages, and all of them are settled."""
    everything = tuple(range(2 * RECORDS))
    await store.write_cursors([change(aside=[Side(KEY, everything)])])
    assert await trimmed(store) == 0
    await store.write_cursors([change(settled=[(0, 2 * RECORDS - 1)])])
    assert await trimmed(store) == RECORDS
