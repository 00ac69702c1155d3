"""Never a receipt with fewer copies than its level, and nothing is given that has fewer (P1, R10):
acknowledgements of replicas get lost in the middle of commits, replicas get nothing, messages come
again, on fresh connections. What the replicas have is read from them while they are cut off.

10,000 publishes in `make soak`, a few hundred in `make test`.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest

from push.errors import Refused, Unknown
from push.storage_port import Append, Stored
from storage.redis.library import BEGIN, Library, joined, library
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION
from tests.contract.stores import append
from tests.servers.acks import Mode, Way
from tests.servers.binaries import Binary
from tests.servers.layouts import Replicated, replicated
from tests.servers.node import Node
from tests.storage.shards import settings
from tests.waiting import becomes

WHOLE = bool(os.environ.get("TOCSIN_SOAK"))
PUBLISHES = 10_000 if WHOLE else 400
PUBLISHERS = 24
ROUND = 80
"""Receipts before something happens to the acknowledgements."""
WAIT_S = 0.05
SHAPES: tuple[tuple[tuple[int, ...], Mode, bool], ...] = (
    ((0,), "held", False),
    ((0, 1), "deaf", True),
    ((1,), "held", True),
    ((0, 1), "held", False),
    ((0,), "deaf", False),
    ((0, 1), "held", True),
)
"""Which replicas, what happens to them, and whether it ends while publishing goes on."""


@pytest.fixture
def servers(redis_binary: Binary, tmp_path: Path) -> Iterator[tuple[Replicated, list[Way]]]:
    """A primary and two replicas, each of which follows it on a way of its own."""
    with replicated(redis_binary, tmp_path, replicas=2) as made, contextlib.ExitStack() as stack:
        ways = []
        for replica in made.nodes[1:]:
            way = stack.enter_context(Way(made.nodes[0]))
            replica.ask("REPLICAOF", "127.0.0.1", way.port)
            ways.append(way)
        for replica in made.nodes[1:]:
            while replica.info("replication")["master_link_status"] != "up":
                pass
        yield made, ways


@dataclass
class Trial:
    """Publishers over fresh gateways, and what the replicas had of what they were told."""

    primary: Node
    replicas: list[Node]
    ways: list[Way]
    given: Settings
    random: Random
    receipts: dict[int, bytes] = field(default_factory=dict)
    """Offset → payload of each record that was answered."""
    unknown: int = 0
    duplicates: int = 0
    names: int = 0
    rounds: int = 0
    missing: list[str] = field(default_factory=list)
    _gateways: list[RedisStorage] = field(default_factory=list)
    _pending: list[Append] = field(default_factory=list)
    """Unknown: sent again, by anybody, through any gateway."""
    _stop: bool = False

    async def open(self) -> None:
        """One more gateway, on connections that nobody has used; what it does first is to find a
        duplicate, where there may be one."""
        shard = await RedisShard.open(self.given, Marks(INCARNATION))
        gateway = RedisStorage(shard, INCARNATION)
        for record in self._pending:
            if int(record.payload) % 2:  # it has no producer, whose line would be written
                self._pending.remove(record)
                await self._send(gateway, record)
                break
        self._gateways.append(gateway)

    async def round(self) -> None:
        """Some receipts, then a replica that is not heard, or gets nothing, and a fresh gateway;
        in the end all that was answered is looked for on replicas that are cut off."""
        self._stop = False
        await self.open()
        work = [asyncio.create_task(self._publish()) for _ in range(PUBLISHERS)]
        goal = len(self.receipts) + self.random.randrange(ROUND // 2, ROUND)
        await self._until(lambda: len(self.receipts) >= goal)
        which, mode, ends = SHAPES[self.rounds % len(SHAPES)]
        self.rounds += 1
        for number in which:
            self.ways[number].mode = mode
        unknown = self.unknown
        await self._until(lambda: self.unknown > unknown, within_s=40 * WAIT_S)
        await self.open()  # while it lasts
        unknown = self.unknown
        await self._until(lambda: self.unknown >= unknown + 10, within_s=10 * WAIT_S)
        if ends:
            for way in self.ways:
                way.mode = "pass"
            goal = len(self.receipts) + 20
            await self._until(lambda: len(self.receipts) >= goal)
        self._stop = True
        for way in self.ways:
            way.mode = "held"
        await asyncio.gather(*work)
        certified = (await self._gateways[-1].partitions("q-1"))[0].certified
        for replica in self.replicas:
            self._check(replica, certified)
        for way in self.ways:
            way.mode = "pass"
        for gateway in self._gateways:
            await gateway.close()
        self._gateways.clear()

    def _check(self, replica: Node, certified: int) -> None:
        rows = replica.ask("XRANGE", "{q-1}:idx:0", "-", "+")
        there = {int(identifier.split("-")[0]) - 1 for identifier, _ in rows}
        lacks = sorted(set(self.receipts) - there)
        self.missing += [f"{replica!r} lacks {offset}, which was answered" for offset in lacks]
        end = int(replica.ask("HGET", "{q-1}:p:0", "next"))
        if end < certified:
            self.missing.append(f"{replica!r} ends at {end}, and {certified} was certified")

    async def _until(self, is_so: Callable[[], bool], within_s: float = 30) -> None:
        with contextlib.suppress(AssertionError):
            await becomes(is_so, within_s)

    async def _publish(self) -> None:
        while not self._stop:
            await self._send(self.random.choice(self._gateways), self._next())

    async def _send(self, gateway: RedisStorage, record: Append) -> None:
        try:
            (appended,) = await gateway.append([record])
        except Unknown:
            self.unknown += 1
            self._pending.append(record)
        except Refused:
            self._pending.append(record)
            await asyncio.sleep(0.005)
        else:
            outcome = Stored(appended.first)
            if appended.outcomes is not None:
                assert isinstance(appended.outcomes[0], Stored)
                outcome = appended.outcomes[0]
            self.duplicates += outcome.duplicate
            known = self.receipts.setdefault(outcome.offset, record.payload)
            assert known == record.payload

    def _next(self) -> Append:
        if self._pending and self.random.random() < 0.7:
            return self._pending.pop(self.random.randrange(len(self._pending)))
        self.names += 1
        if self.names % 2:  # a duplicate of these changes nothing at all
            return replace(
                append(ids=[f"id-{self.names}"]), payload=b"%012d" % self.names + b" " * 8
            )
        producer = b"producer-%07d" % self.names
        return replace(append(runs=[(producer, 0, [1])]), payload=b"%012d" % self.names + b" " * 8)


async def trial(
    servers: tuple[Replicated, list[Way]], functions: Library, publishes: int, seed: int
) -> Trial:
    """Rounds until this many receipts were given, or one of them is missing somewhere."""
    made, ways = servers
    given = replace(settings(made.nodes[0], wait_s=5.0), library=functions)
    await provision(given, INCARNATION, 2)
    shard = await RedisShard.open(given, Marks(INCARNATION))
    store = RedisStorage(shard, INCARNATION)
    await store.create_queue("q-1", 1)
    await store.close()
    running = Trial(
        made.nodes[0], made.nodes[1:], ways, replace(given, wait_s=WAIT_S), Random(seed)
    )
    while len(running.receipts) < publishes and not running.missing:
        await running.round()
    return running


async def test_no_receipt_has_fewer_copies_than_its_level(
    servers: tuple[Replicated, list[Way]],
) -> None:
    found = await trial(servers, library(), PUBLISHES, seed=1)
    assert found.missing == []
    assert len(found.receipts) >= PUBLISHES
    assert found.unknown >= PUBLISHES // 20
    assert found.duplicates >= PUBLISHES // 100
    assert sum(way.dropped for way in servers[1]) > 0
    told = f"{len(found.receipts)} receipts, {found.unknown} unknown, {found.duplicates} duplicates"
    sys.stdout.write(f"{told}, none with fewer copies\n")


def without_touches() -> Library:
    """As the functions are, but for the writes that they make only in order to be counted."""
    folder = files("storage.redis").joinpath("lua")
    texts = {each.name: each.read_text() for each in folder.iterdir() if each.name.endswith("lua")}
    for name, write, read in [
        (BEGIN, "redis.call('HINCRBY', prefix .. 'queue', 'acts', 1)", "local _ = 1"),
        ("shard.lua", "return {redis.call('HINCRBY', keys[1], 'touches', 1), held[2],",
         "return {1, held[2],"),
    ]:  # fmt: skip
        assert texts[name].count(write) == 1
        texts[name] = texts[name].replace(write, read)
    return joined(texts.pop(BEGIN), *texts.values())


async def test_without_a_write_behind_duplicates_such_receipts_are_seen(
    servers: tuple[Replicated, list[Way]], redis_binary: Binary
) -> None:
    """The negative control: a WAIT behind a duplicate counts copies of something older, from Redis
    7.2 and on Valkey. Before, it counts all that the server has."""
    lies = redis_binary.version >= (7, 2)
    found = await trial(servers, without_touches(), 400 if lies else 100, seed=2)
    assert bool(found.missing) == lies
