"""The store's side of shared rates, as real functions: they agree with the rules' model."""

from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from push import limits
from push.rates.bucket import Rate
from push.rates.shared import RateReply, RateRequest
from storage.redis.connection import Connection, pack
from storage.redis.library import Library
from storage.redis.port import Arg
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import GATEWAYS, RedisPool
from tests.contract import redis_single
from tests.contract.redis_single import INCARNATION, redis_process
from tests.push.shared_pool import Entry, ModelPool, Whole

BASE = GATEWAYS.removesuffix("gateways")
RATES = (Rate(1000, 1, 1000), Rate(7, 60, 40), Rate(10**9, 1, 10**15), Rate(1, 3600, 1))


@pytest.fixture
async def server() -> AsyncIterator[Settings]:
    """Yield one process."""
    async with redis_process() as settings:
        yield settings


@pytest.fixture
async def pool(server: Settings) -> AsyncIterator[RedisPool]:
    """As a gateway has it."""
    shard = await RedisShard.open(server, Marks(INCARNATION))
    yield RedisPool(shard)
    await shard.close()


async def command(server: Settings, *words: Arg) -> Any:
    """Send one command, past everything else."""
    return await redis_single.ask(server, *words)


async def said(link: Connection, *words: Arg) -> Any:
    """Return what is answered to one command."""
    (answer,) = await link.ask([pack(*words)], 5)
    return answer


async def whole(link: Connection, name: str) -> Whole | None:
    """Return what the server stores of a bucket."""
    raw = await said(link, "HGETALL", f"{BASE}b:{name}")
    row = {key.decode(): value.decode() for key, value in zip(raw[::2], raw[1::2], strict=True)}
    if not row:
        return None
    return Whole(
        Rate(*map(int, row.pop("rate").split())), int(row.pop("at")), int(row.pop("level")),
        int(row.pop("line")), set(row.pop("implied").split()),
        {key.removeprefix("g:"): Entry(*map(int, value.split())) for key, value in row.items()},
    )  # fmt: skip


def as_sets(reply: RateReply | None) -> object:
    """Recalls come in no order."""
    return reply and (set(reply.recalled), [tuple(grant) for grant in reply.grants])


@pytest.mark.parametrize("seed", range(3))
async def test_the_functions_do_what_the_model_does(
    server: Settings, pool: RedisPool, seed: int
) -> None:
    draw, model, link = Random(seed), ModelPool(), await server.open()
    gateways = [f"g{number}" for number in range(3)]
    totals: dict[tuple[str, str], list[int]] = {}

    async def follow() -> int:
        model.now = int(await said(link, "HGET", f"{BASE}clock", "now"))
        return 0

    async def joins(gateway: str) -> None:
        joined = await pool.join(gateway)
        assert joined == model.join(gateway, await follow())

    for gateway in gateways:
        await joins(gateway)
    for call in range(1, 120):
        gateway = draw.choice(gateways)
        asks = []
        for number in draw.sample(range(4), draw.randint(0, 3)):
            rate, key = RATES[number], (gateway, f"b{number}")
            known, used, back, life = totals.setdefault(key, [0, 0, 0, 1])
            left = known - used - back
            used += draw.randint(0, left)
            leaving = draw.random() < 0.2
            back = known - used if leaving else back + draw.randint(0, known - used - back)
            if draw.random() < 0.05:
                known, used, back, life = 0, 0, 0, life + 1
            totals[key] = [known, used, back, life]
            want, need = draw.choice((0, rate.burst // 4)), draw.choice((0, 0, 1, rate.burst))
            asks.append(
                RateRequest(
                    f"b{number}", rate, life, 0, known, used, back,
                    0 if leaving else want, 0 if leaving else need, leaving,
                )
            )  # fmt: skip
        called = draw.choice((call, call, call, call - 5))
        reply = await pool.ask(gateway, called, asks)
        expected = model.ask(gateway, called, asks, await follow())
        assert as_sets(reply) == as_sets(expected)
        for ask, grant in zip(asks, reply.grants if reply else (), strict=False):
            row = totals[gateway, ask.name]
            row[:] = [0, 0, 0, row[3] + 1] if grant.released else [grant.granted, *row[1:]]
        for name in [f"b{number}" for number in range(4)]:
            assert await whole(link, name) == model.buckets.get(name)
        if draw.random() < 0.03:
            await pool.leave(gateway)
            model.leave(gateway, await follow())
            totals = {key: row for key, row in totals.items() if key[0] != gateway}
            gateways.remove(gateway)
            gateways.append(f"h{call}")
            await joins(gateways[-1])
    model.check_all()
    await link.close()


async def test_a_store_that_is_full_still_shares(server: Settings, pool: RedisPool) -> None:
    """Else nobody could come to drain it (R29)."""
    await command(server, "CONFIG", "SET", "maxmemory", "1")
    assert (await pool.join("g"))[0]
    reply = await pool.ask("g", 1, [RateRequest("b", RATES[0], 1, 0, 0, 0, 0, 250, 0, False)])
    assert reply is not None
    assert reply.grants[0].granted == 250
    await pool.leave("g")


async def test_every_act_writes(server: Settings, pool: RedisPool) -> None:
    """R9: also one that has nothing to say."""
    await pool.join("g")
    times = []
    for call in range(1, 4):
        await pool.ask("g", call, [])
        times.append(await command(server, "HGET", f"{BASE}clock", "time"))
    assert len(set(times)) == 3


async def test_no_key_expires_and_what_is_empty_goes(server: Settings, pool: RedisPool) -> None:
    await pool.join("g")
    await pool.join("other")
    names = [f"b{number}" for number in range(20)]
    rate = Rate(10**6, 1, 1000)
    await pool.ask(
        "g", 1, [RateRequest(name, rate, 1, 0, 62, 10, 0, 250, 0, False) for name in names]
    )
    for key in await command(server, "KEYS", f"{BASE}*"):
        assert await command(server, "PTTL", key) == -1
    assert await command(server, "ZCARD", f"{BASE}due") == 20
    gone = [RateRequest(name, rate, 1, 10, 260, 20, 240, 0, 0, True) for name in names]
    reply = await pool.ask("g", 2, gone)
    assert reply is not None
    assert all(grant.released for grant in reply.grants)
    for call in range(3, 20):
        await pool.ask("g", call, [])
    keys = {key.decode() for key in await command(server, "KEYS", f"{BASE}*")}
    assert keys <= {f"{BASE}{name}" for name in ("gateways", "clock", "recall:g", "recall:other")}


async def test_whoever_invents_names_makes_the_store_forget_the_smallest_debts() -> None:
    """P9."""
    async with redis_process() as process:
        code = process.library.code.replace(process.library.name, "tocsin_few")
        most = f"local LIMITS_BUCKETS_MAX = {limits.SHARED_BUCKETS_MAX}"
        assert most in code
        few = Library("tocsin_few", code.replace(most, "local LIMITS_BUCKETS_MAX = 10"))
        settings = replace(process, library=few)
        await command(settings, "FUNCTION", "LOAD", few.code)  # the broker's user may not
        shard = await RedisShard.open(settings, Marks(INCARNATION))
        pool = RedisPool(shard)
        await pool.join("g")
        rate = Rate(1, 1, 1000)
        owes = RateRequest("owes", rate, 1, 0, 900, 900, 0, 0, 0, True)
        await pool.ask("g", 1, [owes])
        for call in range(2, 30):
            asks = [RateRequest(f"b{call}-{n}", rate, 1, 0, 5, 5, 0, 0, 0, True) for n in range(5)]
            await pool.ask("g", call, asks)
        assert await command(settings, "ZCARD", f"{BASE}due") == 10
        link = await settings.open()
        stands = await whole(link, "owes")
        await link.close()
        assert stands is not None
        assert stands.level > 800
        await shard.close()


async def test_a_jump_of_the_servers_clock_is_a_second_at_most(
    server: Settings, pool: RedisPool
) -> None:
    """[An hour forward: every debt is forgiven, and every gateway is given up.]"""
    await pool.join("g")
    before = int(await command(server, "HGET", f"{BASE}clock", "now"))
    for jump_s in (3600, -3600):
        time_us = int(await command(server, "HGET", f"{BASE}clock", "time"))
        await command(server, "HSET", f"{BASE}clock", "time", time_us - jump_s * 1_000_000)
        assert await pool.ask("g", 3600 - jump_s + 1, []) is not None
        now = int(await command(server, "HGET", f"{BASE}clock", "now"))
        assert now - before <= 2_000_000
    assert now - before >= 1_000_000
