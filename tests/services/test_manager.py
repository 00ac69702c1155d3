"""A manager and real servers: a replica that is away is not waited for any more, comes back, and
is counted before it may be elected; nothing that was acknowledged is lost (R28, P1)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from services.manager.keeper import is_held_up
from services.manager.manager import Manager
from services.manager.rules import election as shard_rule
from services.manager.rules.election import Electable
from storage.redis import target as redis_target
from storage.redis.connection import Reach
from storage.redis.discovery import by_sentinels
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import P0
from tests.metadata.copies_world import NODES, World
from tests.servers.binaries import Binary, binaries
from tests.servers.layouts import Guarded, guarded
from tests.servers.node import Node
from tests.servers.shipped import MASTER, login
from tests.storage.redis.test_redis_failover import Load
from tests.storage.shards import address
from tests.waiting import becomes

AWAY_S = 3.0
"""Here; else 10."""
PAUSE_S = 15.0 - shard_rule.AWAY_S
"""For publishing, when a replica has gone, beyond the time for which it is away."""
BUSY_S = 3.0
"""On top of it, for a machine that has more to do."""
SELDOM_MS, OFTEN_MS = 30_000, 100
"""How often Sentinels ask who follows the primary: more seldom than elsewhere, and as in tests."""


def settings_of(servers: Guarded, user: str) -> Settings:
    """The store's, as this user."""
    who = login(user)
    reach = Reach(who.user, who.password, connect_s=1.0)
    places = [address(node) for node in servers.sentinels]
    return Settings(by_sentinels(places, MASTER, reach), reach, wait_s=1.0, watch_s=0.2)


def url(servers: Guarded, user: str) -> str:
    """The store's, as this user."""
    places = ",".join(f"{node.address}:{node.port}" for node in servers.sentinels)
    return f"redis+sentinel://{':'.join(login(user))}@{places}/{MASTER}"


@asynccontextmanager
async def manager(servers: Guarded, *, away_s: float) -> AsyncIterator[Manager]:
    """One that takes part, and takes out who is away for so long."""
    target = redis_target.parse(url(servers, "tocsin-manager"))
    opened = await Manager.open([("tocsin", target)], away_s=away_s)
    opened.start()
    try:
        yield opened
    finally:
        await opened.stop()


@asynccontextmanager
async def store(servers: Guarded) -> AsyncIterator[RedisStorage]:
    """A gateway's, provisioned with all replicas there are."""
    admin = replace(settings_of(servers, "tocsin-admin"), wait_s=10.0)
    await provision(admin, INCARNATION, len(servers.nodes) - 1)
    shard = await RedisShard.open(settings_of(servers, "tocsin"), Marks(INCARNATION))
    opened = RedisStorage(shard, INCARNATION, tails_s=0.2)
    await opened.create_queue("q-1", 1)
    try:
        yield opened
    finally:
        await opened.close()


async def is_counted(servers: Guarded, replicas: int, out: list[Node]) -> None:
    """Wait until this is R, and these are out, as the primary has it that the Sentinels name: one
    that has come back may call itself so, too."""
    wanted = [str(replicas), " ".join(sorted(str(address(node)) for node in out))]

    def is_so() -> bool:
        primary = servers.named()
        return primary is not None and wanted == [
            word or "" for word in primary.ask("HMGET", "{tocsin}:shard", "replicas", "out")
        ]

    await becomes(is_so, within_s=30)


async def all_may_be_elected(servers: Guarded) -> None:
    """Wait until every node follows, is known, and has a priority."""

    def may() -> bool:
        for node in servers.nodes:
            if node.ask("CONFIG", "GET", "replica-priority")[1] != "100":
                return False
        for sentinel in servers.sentinels:
            if len(sentinel.ask("SENTINEL", "REPLICAS", MASTER)) != len(servers.nodes) - 1:
                return False
        return True

    await becomes(may, within_s=30)


async def all_were_seen(servers: Guarded) -> None:
    """Wait until managers know each server's user: nobody can be locked out who went before."""
    seen = [f"user:{address(node)}" for node in servers.nodes]
    await becomes(lambda: all(servers.primary.ask("HMGET", "{tocsin}:managed", *seen)))


def info_period_ms(sentinel: Node) -> int:
    """How often it asks the primary who follows it."""
    said = iter(sentinel.ask("SENTINEL", "DEBUG"))
    told = {str(name).lower(): value for name, value in zip(said, said, strict=True)}
    return int(told["info-period"])


async def test_a_replica_goes_and_comes_back_and_then_the_primary_is_lost(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with guarded(redis_binary, tmp_path, replicas=2, with_users=True) as servers:
        async with store(servers) as kept, manager(servers, away_s=AWAY_S):
            for sentinel in servers.sentinels:
                sentinel.ask("SENTINEL", "DEBUG", "info-period", SELDOM_MS)
            load = Load(kept)
            await load.more(100)
            first, gone, other = servers.primary, *servers.replicas
            gone.kill()
            began = time.monotonic()
            await asyncio.sleep(1.0)  # what was under way has ended
            await load.more(100)
            assert AWAY_S < time.monotonic() - began < AWAY_S + PAUSE_S + BUSY_S
            for sentinel in servers.sentinels:
                assert info_period_ms(sentinel) == SELDOM_MS
                sentinel.ask("SENTINEL", "DEBUG", "info-period", OFTEN_MS)
            await is_counted(servers, 1, [gone])
            await asyncio.to_thread(gone.start)
            await is_counted(servers, 2, [])
            await all_may_be_elected(servers)
            await load.more(100)
            first.kill()
            await asyncio.to_thread(servers.wait_failover, first)
            await load.more(100)
            await is_counted(servers, 1, [first])
            await asyncio.to_thread(first.start)
            await is_counted(servers, 2, [])
            await all_may_be_elected(servers)
            other.kill()
            await load.more(100)
            await load.stop()
            read = await kept.read(P0, 0, 1 << 30)
            there = {record.first: bytes(record.payload) for record in read.records}
            assert {at: there.get(at) for at in load.receipts} == load.receipts


class Process:
    """A real one of `tocsin manager serve`, which ends with the test."""

    def __init__(self, servers: Guarded, log: Path, stack: ExitStack) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", ENTER, "manager", "serve"],
                env=os.environ | {"TOCSIN_STORAGE": url(servers, "tocsin-manager")},
                stderr=file,
            )
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def says(self, words: str) -> bool:
        """Whether it has said so."""
        return words in self.log.read_text()


ENTER = f"""
import click
from services.manager.rules import election as shard_rule
shard_rule.AWAY_S = {AWAY_S}
from gateway.cli.serve import admin
from gateway.cli.manager import manager_group
root = click.Group(commands=dict(admin=admin, manager=manager_group))
root()
"""


def told(servers: Guarded, *words: str) -> subprocess.CompletedProcess[str]:
    """`tocsin admin …`, as an operator of gateways says it."""
    return subprocess.run(
        [sys.executable, "-c", ENTER, "admin", *words],
        env=os.environ | {"TOCSIN_STORAGE": url(servers, "tocsin")},
        check=True, capture_output=True, text=True,
    )  # fmt: skip


async def test_when_the_manager_that_leads_is_killed_in_the_middle_another_goes_on(
    tmp_path: Path,
) -> None:
    """And what they do is told to whoever asks."""
    with ExitStack() as stack:
        servers = stack.enter_context(guarded(binaries()[0], tmp_path, replicas=2, with_users=True))
        async with store(servers) as kept:
            both = [Process(servers, tmp_path / f"manager-{n}.log", stack) for n in range(2)]
            await becomes(lambda: any(one.says("this manager leads") for one in both))
            first, second = both if both[0].says("this manager leads") else both[::-1]
            await all_were_seen(servers)
            gone = servers.replicas[0]
            gone.kill()
            await becomes(lambda: first.says("locks "))
            first.process.kill()
            await is_counted(servers, 1, [gone])
            assert second.says("this manager leads")
            load = Load(kept)
            await load.more(50)
            shown = json.loads(told(servers, "clusters", "--json").stdout)
            (cluster,) = shown["clusters"]
            states = {one["address"]: one["state"] for one in cluster["servers"]}
            assert states[str(address(gone))] == "out"
            assert sorted(states.values()) == ["in sync", "out", "primary"]
            assert (cluster["replicas"], cluster["manager"]) == (1, shown["manager"])
            assert f"{address(gone)}" in told(servers, "clusters").stdout
            await asyncio.to_thread(gone.start)
            await is_counted(servers, 2, [])
            await all_may_be_elected(servers)
            await load.stop()
            second.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.process.wait, 10) == 0
            assert json.loads(told(servers, "clusters", "--json").stdout)["manager"] == ""


def test_a_manager_is_held_up_by_who_stays_and_does_not_answer_it() -> None:
    world, rule = World(), Electable()
    gone, other = NODES[2], NODES[1]
    world.kill(gone)
    for second in range(20):
        view = replace(world.look(), silent={gone: "no reply"})
        rule.saw(view, now=float(second))
        assert not is_held_up(view, rule)
        deaf = replace(view, silent={gone: "no reply", other: "no reply"})
        assert is_held_up(deaf, rule) == (gone in rule.leaving())
    assert rule.leaving() == {gone}
