"""Limits of several gateways over one real Redis: together they admit what one may."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.broker import Broker
from gateway.cli.store import provision
from gateway.config import Config
from gateway.limits.limiter import Allowance, Limiter
from gateway.limits.shared import SharedLimits
from gateway.limits.spec import OF_ADDRESS, parse_limits
from metadata.catalog import Principal, Queue, QueueSettings
from push.errors import Refused
from push.message import Message
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisPool
from tests.contract.redis_single import INCARNATION, redis_process
from tests.servers.binaries import Binary
from tests.servers.layouts import single

WHO = Principal("who")
ONE = Message(body=msgspec.Raw(b"1"))


def queue(settings: QueueSettings | None = None) -> Queue:
    return Queue(
        queue_id="q", name="orders", tenant="default", holder="who", created_unix_ms=0,
        settings=settings or QueueSettings(), ring_epoch=1, members=(0,), hash_key=bytes(16),
    )  # fmt: skip


@asynccontextmanager
async def gateway(server: Settings, text: str) -> AsyncIterator[Limiter]:
    """The limiter of a gateway that has begun."""
    shard = await RedisShard.open(server, Marks(INCARNATION))
    limiter = Limiter(
        parse_limits(text), parse_limits("failures=1/s+64", OF_ADDRESS),
        shared=SharedLimits(RedisPool(shard)),
    )  # fmt: skip
    await limiter.start()
    try:
        yield limiter
    finally:
        await limiter.close()
        await shard.close()


@pytest.fixture
async def server() -> AsyncIterator[Settings]:
    """Yield one process."""
    async with redis_process() as settings:
        yield settings


def now() -> float:
    return asyncio.get_running_loop().time()


def publish(allowance: Allowance, count: int, orders: Queue) -> float:
    """0: admitted; else when to come again."""
    try:
        allowance.publish(orders, [ONE] * count, now=now())
    except Refused as refused:
        if refused.code.name != "rate_limited":
            raise
        return refused.retry_after_s or 0.0
    return 0.0


async def flood(allowances: list[Allowance], seconds: float, orders: Queue) -> list[int]:
    """So long each publishes as fast as it may. How much each did."""
    taken, until = [0] * len(allowances), now() + seconds
    while now() < until:
        for number, allowance in enumerate(allowances):
            while not publish(allowance, 10, orders):
                taken[number] += 10
        await asyncio.sleep(0.002)
    return taken


async def until(found: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not found():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.01)


async def test_several_gateways_admit_what_is_allowed_to_all_of_them(server: Settings) -> None:
    """Of a principal, and of a queue by its own settings; each has its part."""
    limited = queue(QueueSettings(publish_messages_per_s=2000))
    for orders, text in ((queue(), "messages=2000/s+1000"), (limited, "messages=1G/s")):
        async with AsyncExitStack() as stack:
            limiters = [await stack.enter_async_context(gateway(server, text)) for _ in range(3)]
            allowances = [limiter.allowance(WHO, None) for limiter in limiters]
            burst = 1000 if orders is not limited else 2000
            began = now()
            taken = await flood(allowances, 2.0, orders)
            passed_s = now() - began
            assert sum(taken) <= burst + 2000 * passed_s
            assert sum(taken) >= 0.85 * (burst + 2000 * passed_s)
            assert min(taken) >= 0.2 * sum(taken)


async def test_one_gateway_alone_has_the_whole_rate_and_the_advised_time_is_true(
    server: Settings,
) -> None:
    async with (
        gateway(server, "messages=2000/s+1000") as busy,
        gateway(server, "messages=2000/s+1000"),
    ):
        allowance, orders = busy.allowance(WHO, None), queue()
        first = await flood([allowance], 0.5, orders)
        assert first[0] >= 1000
        taken = await flood([allowance], 1.5, orders)
        assert taken[0] == pytest.approx(3000, rel=0.1)
        wait_s = publish(allowance, 300, orders)
        assert 0 < wait_s < 1
        await asyncio.sleep(wait_s + 0.05)
        assert not publish(allowance, 300, orders)


async def test_wrong_credentials_are_counted_wherever_they_are_tried(server: Settings) -> None:
    async with gateway(server, "") as one, gateway(server, "") as other:
        admitted = 0
        for number in range(300):
            limiter = (one, other)[number % 2]
            try:
                with limiter.checking_credential("192.0.2.7", now=now()):
                    admitted += 1
                    raise Refused("unauthorized")
            except Refused:
                pass
            await asyncio.sleep(0.003)
        assert 30 <= admitted <= 64 + 3


async def test_what_a_gateway_gives_back_at_its_end_others_have_at_once(server: Settings) -> None:
    orders = queue()
    async with gateway(server, "messages=1/s+1000") as other:
        async with gateway(server, "messages=1/s+1000") as ending:
            allowance = ending.allowance(WHO, None)
            await until(lambda: not publish(allowance, 100, orders))
            await asyncio.sleep(0.3)
        theirs = other.allowance(WHO, None)
        await until(lambda: not publish(theirs, 890, orders))
        assert publish(theirs, 20, orders)
        await until(lambda: publish(theirs, 20, orders) > 1)


async def test_who_is_far_below_the_limit_never_meets_the_store(server: Settings) -> None:
    async with gateway(server, "messages=1G/s") as limiter:
        allowance = limiter.allowance(WHO, "192.0.2.7")
        for _ in range(50):
            assert not publish(allowance, 100, queue())
        await asyncio.sleep(0.1)
        assert limiter.status()["shared"] == {"cut_off": False, "held": 0}


async def test_a_large_request_waits_for_the_store_and_is_not_refused(server: Settings) -> None:
    """One that is more than a standing share, of a limit that nobody else has used."""
    async with gateway(server, "messages=1000/s") as limiter:
        allowance = limiter.allowance(WHO, None)
        with pytest.raises(Refused) as refused:
            allowance.publish(queue(), [ONE] * 900, now=now())
        assert await allowance.wait_for_share(refused.value)
        assert not publish(allowance, 900, queue())
        with pytest.raises(Refused) as refused:
            allowance.publish(queue(), [ONE] * 1000, now=now())
    alone = Limiter(parse_limits("messages=1000/s")).allowance(WHO, None)
    assert not await alone.wait_for_share(Refused("rate_limited", retry_after_s=0.01))


async def test_without_the_store_nobody_is_locked_out(server: Settings) -> None:
    async with gateway(server, "messages=160/s+1600") as limiter:
        allowance, orders = limiter.allowance(WHO, None), queue()
        assert not publish(allowance, 10, orders)
    # the same before it was ever there
    gone = Limiter(parse_limits("messages=160/s+1600"), shared=SharedLimits(_Nowhere()))
    await gone.start()
    allowance = gone.allowance(WHO, None)
    assert not publish(allowance, 100, orders)
    wait_s = publish(allowance, 1, orders)
    assert 0 < wait_s <= 0.1
    assert gone.status()["shared"] == {"cut_off": True, "held": 0}
    await gone.close()


class _Nowhere:
    """A store that never answers."""

    async def join(self, gateway: str) -> tuple[bool, list[str]]:
        raise Refused("storage_unavailable")

    async def ask(self, gateway: str, call: int, asks: object) -> None:
        raise AssertionError("it was not joined")

    async def leave(self, gateway: str) -> None:
        raise AssertionError("it was not joined")


async def test_what_a_publish_costs_where_limits_are_shared(server: Settings) -> None:
    """Printed, not judged (pytest -s): per frame."""
    async with gateway(server, "messages=1G/s") as limiter:
        allowance, orders = limiter.allowance(WHO, None), queue()
        allowance.open(now=now())
        began = time.perf_counter()
        for number in range(2000):
            allowance.publish(orders, [ONE], now=now() + number / 1000)()
        took_ns = (time.perf_counter() - began) / 2000 * 1e9
        print(f"{took_ns:.0f} ns a frame")  # noqa: T201


async def test_brokers_over_one_store_share_their_limits(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """As the settings compose them; the embedded store is asked for nothing."""
    with single(redis_binary, tmp_path / "servers") as node:
        storage = f"redis://{node.address}:{node.port}"
        with ThreadPoolExecutor(1) as thread:
            args = ["--storage", storage, "--replicas", "0"]
            assert thread.submit(CliRunner().invoke, provision, args).result().exit_code == 0
        brokers = [
            await Broker.open(
                Config(
                    data_dir=tmp_path / name, storage=storage, encryption=False,
                    limit_principal="messages=1/s+1000",
                ),
                on_fatal=pytest.fail,
            )
            for name in ("a", "b")
        ]  # fmt: skip
        allowances = [broker.limiter.allowance(WHO, None) for broker in brokers]
        taken = await flood(allowances, 1.5, queue())
        assert 950 <= sum(taken) <= 1002
        for broker in brokers:
            await broker.stop()
