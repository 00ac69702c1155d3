"""What a gateway left uncertified when it died, and wake-ups that got lost: found by whoever looks,
within a bounded time, and certified only when its copies were counted (R10)."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from push.errors import Unknown
from push.places import Durability
from push.storage_port import Append
from storage.redis.append import append_args
from storage.redis.library import library
from storage.redis.ops.provision import provision
from storage.redis.port import OnMessage, Shard
from storage.redis.read import TailPoller
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from storage.rules.append import open_header
from tests.conformance.virtual import run
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import P0, P1, append, with_group
from tests.servers.acks import Way
from tests.servers.binaries import Binary
from tests.servers.layouts import replicated
from tests.servers.node import Node, until
from tests.storage.shards import QuietShard, settings
from tests.waiting import becomes

TAILS_S = 0.05
LEVELS: tuple[Durability, ...] = ("local", "quorum", "all", "local")


@asynccontextmanager
async def gateway(
    given: Settings, kind: type[RedisShard] = RedisShard
) -> AsyncIterator[tuple[RedisStorage, asyncio.Queue[object]]]:
    """Yield its storage, and what it is woken with."""
    woken: asyncio.Queue[object] = asyncio.Queue()
    shard = await kind.open(given, Marks(INCARNATION))
    store = RedisStorage(shard, INCARNATION, tails_s=TAILS_S)
    store.on_certified(lambda partition, end: woken.put_nowait((partition, end)))
    try:
        yield store, woken
    finally:
        await store.close()


def given_of(node: Node) -> Settings:
    return replace(settings(node, wait_s=5.0), library=library())


async def killed(node: Node, number: int) -> None:
    """A gateway has appended to this partition, and died in between."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.storage.dying", node.address, str(node.port), INCARNATION,
        str(number),
    )  # fmt: skip
    assert await process.wait() == -signal.SIGKILL


async def test_what_a_gateway_that_died_left_is_certified_by_who_reads_or_owns_it(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with replicated(redis_binary, tmp_path, replicas=1) as servers:
        given = given_of(servers.nodes[0])
        await provision(given, INCARNATION, 1)
        async with gateway(given) as (store, woken):
            await with_group(store)  # owns partition 0
            await store.read(P1, 0, 1)
            for number, partition in enumerate((P0, P1)):
                await killed(servers.nodes[0], number)
                async with asyncio.timeout(10):
                    assert await woken.get() == (partition, 2)
                (record,) = (await store.read(partition, 0, 10**6)).records
                assert (record.first, record.last) == (0, 1)


async def test_nothing_is_certified_before_its_copies_were_counted(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """The replica has not got it; the gateway that looks waits for it, too, at the same level."""
    with (
        replicated(redis_binary, tmp_path, replicas=1) as servers,
        Way(servers.nodes[0]) as way,
    ):
        primary, replica = servers.nodes
        replica.ask("REPLICAOF", "127.0.0.1", way.port)
        until(lambda: replica.info("replication")["master_link_status"] == "up", "it follows")
        given = given_of(primary)
        await provision(given, INCARNATION, 1)
        async with gateway(replace(given, wait_s=0.2)) as (store, woken):
            await with_group(store)
            way.mode = "held"
            with pytest.raises(Unknown):
                await store.append([append(messages=1)])
            acts = int(primary.ask("HGET", "{q-1}:queue", "acts"))
            await becomes(lambda: int(primary.ask("HGET", "{q-1}:queue", "acts")) >= acts + 2)
            assert (await store.partitions("q-1"))[0].certified == 0
            assert woken.empty()
            way.mode = "pass"
            async with asyncio.timeout(20):
                assert await woken.get() == (P0, 1)
        assert replica.ask("HGET", "{q-1}:p:0", "next") == "1"


async def test_the_strongest_level_of_what_is_left_decides(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """A record at `local` behind one at `all`."""
    with replicated(redis_binary, tmp_path, replicas=0) as servers:
        node = servers.nodes[0]
        await provision(given_of(node), INCARNATION, 0)
        shard = await RedisShard.open(given_of(node), Marks(INCARNATION))
        store = RedisStorage(shard, INCARNATION, tails_s=3600)
        await store.create_queue("q-1", 2)
        levels = []
        for level in LEVELS:
            record = append(messages=1)
            one = Append(P0, record.header, record.payload, durability=level)
            args = append_args(one, open_header(one), b"x", wall_unix_ms=1)  # and nobody certifies
            await shard.act("append", ["{q-1}:queue"], args, level="local")
            levels.append(node.ask("HGET", "{q-1}:p:0", "level"))
        assert levels == ["local", "quorum", "all", "all"]
        await store.close()


class Deaf(RedisShard):
    """Hears nothing of what is published."""

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        pass


async def test_a_wake_up_that_got_lost_comes_later(redis_binary: Binary, tmp_path: Path) -> None:
    """As when the connection breaks that it would have come on."""
    with replicated(redis_binary, tmp_path, replicas=0) as servers:
        given = given_of(servers.nodes[0])
        await provision(given, INCARNATION, 0)
        async with gateway(given, Deaf) as (store, woken), gateway(given) as (other, _):
            await with_group(store)
            await other.append([append(messages=1)])
            async with asyncio.timeout(10):
                assert await woken.get() == (P0, 1)


class FailedOver(QuietShard):
    """A primary whose log ends at 100 dies; the next one's ends at 90, of which 10 are certified.
    While copies of that are being counted somebody appends 10 more, whose copies nobody counts."""

    def __init__(self) -> None:
        self.looks = 0
        self.end = 100
        self.counted = 0
        self.certified = 10
        self.beyond = 0
        """The most that was certified and not counted."""

    async def look(self, function: str, keys: Any, args: Any) -> Any:
        """The ends as they are."""
        self.looks += 1
        if self.looks == 2:
            self.end = 90
        return [self.certified, self.end, b"all"]

    async def act(
        self, function: str, keys: Any, args: Any, *, level: Any, lane: Any = None
    ) -> Any:
        """Certify."""
        if level == "all":
            self.counted, answer = self.end, [self.certified, self.end]
            self.end += 10  # behind the WAIT
            return answer
        self.certified = min(args[1], self.end)
        self.beyond = max(self.beyond, self.certified - self.counted)
        return [self.certified, self.end]


def test_what_was_seen_at_a_primary_of_before_certifies_nothing_that_came_since() -> None:
    """R10."""

    async def main() -> None:
        shard = FailedOver()
        tails = TailPoller(cast(Shard, shard), lambda partition, end: None)
        tails.watch(P0)
        await becomes(lambda: shard.certified >= 90)
        await tails.close()
        assert shard.beyond == 0

    run(main())
