"""What managers do to servers, each act fenced by the term of who does it; and what gateways make
of a replica that is not counted (R28)."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from push.errors import Refused, Unknown
from push.replicas import Elect, LetIn, LockOut, Prepare, RecordReplicas
from storage.redis.connection import REPLY_S, ConnectionCache
from storage.redis.discovery import fixed
from storage.redis.library import library
from storage.redis.ops.failover import ReplicaControl
from storage.redis.ops.observe import UNHEARD_S, ShardObserver, TermSuperseded, WatchedShard
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from tests.contract.redis_single import INCARNATION
from tests.servers.binaries import Binary, binaries
from tests.servers.layouts import replicated, single
from tests.servers.node import Node
from tests.storage.shards import address, settings
from tests.storage.standing import reach_of
from tests.waiting import becomes

NOBODY = frozenset[str]()


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[tuple[Node, WatchedShard]]:
    """A server with the shipped users, provisioned, as a manager sees it."""
    with single(binaries()[0], tmp_path, with_users=True) as node:
        find = fixed(address(node))
        await provision(Settings(find, reach_of("tocsin-admin")), INCARNATION, 0)
        reach = reach_of("tocsin-manager")
        yield node, WatchedShard(Settings(find, reach), reach, home=address(node))


async def test_who_acts_under_an_older_term_is_refused_wherever_a_later_one_was(
    managed: tuple[Node, WatchedShard],
) -> None:
    node, watched = managed
    many = ConnectionCache(watched.reach)
    place = str(address(node))
    observer, copying = ShardObserver(watched, many), ReplicaControl(watched, many)
    view = await observer.look("a", 4)
    assert (view.primary, view.replicas, view.servers[place].is_electable) == (place, 0, True)
    await copying.do(LockOut(place, "replica-2"), "a", 4)
    await observer.look("b", 5)
    for act in (LetIn(place, "replica-2"), Prepare(place)):
        for name, term in (("a", 4), ("c", 5)):
            with pytest.raises(TermSuperseded):
                await copying.do(act, name, term)
    with pytest.raises(TermSuperseded):
        await observer.look("a", 4)
    with pytest.raises(Refused):
        await copying.do(RecordReplicas(0, NOBODY, 1, NOBODY), "a", 4)
    view = await observer.look("b", 5)
    assert (view.replicas, view.servers[place].locked) == (
        0, frozenset({"default", "replica-2"}),
    )  # fmt: skip
    assert view.servers[place].is_electable
    await many.close()


async def test_a_store_that_was_emptied_is_left_empty(managed: tuple[Node, WatchedShard]) -> None:
    """A manager looks once a second, and whoever puts it right would find something there."""
    node, watched = managed
    node.ask("FLUSHALL")
    many = ConnectionCache(watched.reach)
    view = await ShardObserver(watched, many).look("a", 4)
    assert "emptied" in view.silent[str(address(node))]
    assert node.ask("DBSIZE") == 0
    await many.close()


async def test_what_is_said_is_there_after_a_restart(managed: tuple[Node, WatchedShard]) -> None:
    node, watched = managed
    many = ConnectionCache(watched.reach)
    place = str(address(node))
    observer, copying = ShardObserver(watched, many), ReplicaControl(watched, many)
    await observer.look("a", 1)
    for act in (Prepare(place), LockOut(place, "replica-2"), LockOut(place, "replica-3")):
        assert await copying.do(act, "a", 1)
    assert await copying.do(LetIn(place, "replica-3"), "a", 1)
    node.kill()
    node.start()
    await many.close()
    view = await observer.look("a", 1)
    server = view.servers[place]
    assert (server.is_electable, server.locked) == (
        False, frozenset({"default", "replica-2"}),
    )  # fmt: skip
    assert await copying.do(Elect(place), "a", 1)
    await many.close()


async def test_who_is_counted_changes_only_from_what_was_seen(
    managed: tuple[Node, WatchedShard],
) -> None:
    _, watched = managed
    many = ConnectionCache(watched.reach)
    observer, copying = ShardObserver(watched, many), ReplicaControl(watched, many)
    await observer.look("a", 1)
    out = frozenset({"10.0.0.2:6379", "10.0.0.3:6379"})
    assert await copying.do(RecordReplicas(0, NOBODY, 0, out), "a", 1)
    assert not await copying.do(RecordReplicas(0, NOBODY, 1, NOBODY), "a", 1)
    assert (await observer.look("a", 1)).out == out
    await many.close()


async def test_a_replica_that_is_not_counted_and_attached_confirms_nothing(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """Where nobody is waited for it is no matter."""
    with replicated(redis_binary, tmp_path, replicas=1) as servers:
        primary, replica = servers.nodes
        given = replace(settings(primary, wait_s=10.0), library=library())
        await provision(given, INCARNATION, 1)
        shard = await RedisShard.open(replace(given, wait_s=1.0), Marks(INCARNATION))
        await shard.act("used", [given.key], [], level="all")
        primary.ask("HSET", given.key, "out", str(address(replica)))
        for level in ("quorum", "all"):
            with pytest.raises(Unknown, match="not counted"):
                await shard.act("used", [given.key], [], level=level)
        primary.ask("HSET", given.key, "replicas", 0)
        await shard.act("used", [given.key], [], level="all")
        await shard.close()


async def test_one_that_is_frozen_is_not_asked_at_every_look(tmp_path: Path) -> None:
    """It is attached for most of a minute, and each time would take a second of those for which
    publishing waits."""
    with replicated(binaries()[0], tmp_path, replicas=1) as servers:
        primary, replica = servers.nodes
        given = replace(settings(primary, wait_s=10.0), library=library())
        await provision(given, INCARNATION, 1)
        many = ConnectionCache(given.reach)
        observer = ShardObserver(WatchedShard(given, given.reach, home=address(primary)), many)
        replica.freeze()

        def is_silent() -> bool:
            told = dict(
                part.split("=") for part in primary.info("replication")["slave0"].split(",")
            )
            return float(told["lag"]) >= UNHEARD_S

        await becomes(is_silent)
        await observer.look("a", 1)
        began = time.monotonic()
        view = await observer.look("a", 1)
        assert time.monotonic() - began < REPLY_S / 2
        assert str(address(replica)) in view.silent
        assert len(view.servers[view.primary].followers) == 1
        replica.thaw()
        await many.close()


async def test_an_open_connection_does_not_wait_for_a_replica_that_is_not_counted(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with replicated(redis_binary, tmp_path, replicas=1) as servers:
        primary, replica = servers.nodes
        given = replace(settings(primary, wait_s=10.0), library=library())
        await provision(given, INCARNATION, 1)
        shard = await RedisShard.open(replace(given, wait_s=1.0, watch_s=60.0), Marks(INCARNATION))
        await shard.act("used", [given.key], [], level="all")
        assert shard.copies("all") == 2
        replica.freeze()
        primary.ask("HSET", given.key, "replicas", 0, "out", str(address(replica)))
        await shard.act("used", [given.key], [], level="all")  # which is sent with its WAIT
        assert shard.copies("all") == 1  # nor is it said to have what it has not
        began = time.monotonic()
        for _ in range(5):
            await shard.act("used", [given.key], [], level="all")
        assert time.monotonic() - began < 1.0
        replica.thaw()
        await shard.close()
