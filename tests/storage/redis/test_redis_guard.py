"""A store that was emptied, or rolled back, is refused: by a gateway that opens it, and by one that
is there and asks for nothing (R30, P13). 20 times of 20 in `make soak`, fewer in `make test`."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.faults.proxy import Proxy, Treatment
from push.errors import Refused, Unknown
from storage.redis.connection import Address, address_of
from storage.redis.discovery import fixed
from storage.redis.ops.provision import provision
from storage.redis.replication import NotOurs
from storage.redis.shard import Marks, RedisShard, Settings
from tests.servers.binaries import Binary
from tests.servers.layouts import replicated
from tests.servers.node import Node, until
from tests.storage.shards import LIST, address, settings
from tests.waiting import becomes

WHOLE = bool(os.environ.get("TOCSIN_SOAK"))
WATCH_S = 0.02
FILES = "appendonlydir"


class Store:
    """A server with replicas, and copies of their files."""

    def __init__(self, nodes: list[Node], wait_in_sync: Callable[[], None]) -> None:
        self.nodes = nodes
        self.settings = replace(settings(nodes[0], wait_s=5.0), watch_s=WATCH_S)
        self._wait_in_sync = wait_in_sync
        self.rounds = 20 if WHOLE else 2 // len(nodes)

    async def begin(self, incarnation: str) -> None:
        """Empty, and ours under this incarnation."""
        self.nodes[0].ask("FLUSHALL")
        await provision(self.settings, incarnation, len(self.nodes) - 1)

    def flush(self) -> None:
        """Emptied while it runs."""
        self.nodes[0].ask("FLUSHALL")

    def lose_files(self) -> None:
        """The primary comes back without its files, and its replicas follow it into nothing."""
        self.nodes[0].kill()
        shutil.rmtree(self.nodes[0].folder / FILES)
        self.nodes[0].start()
        self._wait_in_sync()

    def copy(self) -> None:
        """Keep copies of the files of all servers, which run on."""
        for node in self.nodes:
            shutil.rmtree(node.folder / "copy", ignore_errors=True)
            shutil.copytree(node.folder / FILES, node.folder / "copy")

    def roll_back(self) -> None:
        """All servers come back with the copies."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            shutil.rmtree(node.folder / FILES)
            shutil.copytree(node.folder / "copy", node.folder / FILES)
        for node in self.nodes:
            node.start()
        self._wait_in_sync()


@pytest.fixture(params=[0, 1], ids=["alone", "replicated"])
def store(request: pytest.FixtureRequest, redis_binary: Binary, tmp_path: Path) -> Iterator[Store]:
    """A server, and one with a replica."""
    with replicated(redis_binary, tmp_path, replicas=request.param) as servers:
        yield Store(servers.nodes, servers.wait_in_sync)


@asynccontextmanager
async def running(given: Settings, marks: Marks) -> AsyncIterator[tuple[RedisShard, list[str]]]:
    """A gateway's connections, and why it ended."""
    fatal: list[str] = []
    opened = await RedisShard.open(given, marks, on_fatal=fatal.append)
    try:
        yield opened, fatal
    finally:
        await opened.close()


async def ended(opened: RedisShard, fatal: list[str], why: str) -> None:
    """Wait until the gateway has been told, once, though it asks for nothing; and refuses all."""
    await becomes(lambda: fatal)
    with pytest.raises(Refused, match=why):
        await opened.look("find", [LIST], [])
    with pytest.raises(Refused, match=why):
        await opened.act("note", [LIST], ["x"], level="all")
    (sentence,) = fatal
    assert why in sentence


@pytest.mark.parametrize("way", [Store.flush, Store.lose_files], ids=["flushed", "files-gone"])
async def test_an_emptied_store_is_refused_and_ends_a_gateway_that_is_there(
    store: Store, way: Callable[[Store], None]
) -> None:
    for number in range(store.rounds):
        marks = Marks(f"history-{number}")
        await store.begin(marks.incarnation)
        async with running(store.settings, marks) as (opened, fatal):
            await opened.act("note", [LIST], ["1"], level="all")
            way(store)
            await ended(opened, fatal, "no incarnation")
        with pytest.raises(NotOurs, match="no incarnation"):
            await RedisShard.open(store.settings, marks)
        assert [node.ask("DBSIZE") for node in store.nodes] == [0] * len(store.nodes)


async def test_a_rolled_back_store_is_refused_and_ends_a_gateway_that_is_there(
    store: Store,
) -> None:
    for number in range(store.rounds):
        marks = Marks(f"history-{number}")
        await store.begin(marks.incarnation)
        async with running(store.settings, marks) as (opened, fatal):
            await opened.act("note", [LIST], ["1"], level="all")
            store.copy()
            await opened.act("note", [LIST], ["2"], level="all")
            touches = opened.touches
            store.roll_back()
            assert store.nodes[0].ask("LRANGE", LIST, 0, -1) == ["1"]
            await ended(opened, fatal, "older copy")
        with pytest.raises(NotOurs, match="older copy"):
            await RedisShard.open(store.settings, replace(marks, touches=touches))


async def test_a_primary_of_before_that_is_named_for_a_moment_ends_nobody(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """It has fewer touches than the one that was chosen after it; it was cut off, not rolled
    back."""
    with (
        replicated(redis_binary, tmp_path / "old", replicas=0) as old,
        replicated(redis_binary, tmp_path / "new", replicas=0) as new,
    ):
        before, after = old.nodes[0], new.nodes[0]
        stale = 0
        asked = asyncio.Event()

        async def find() -> Address:
            nonlocal stale
            if not stale:
                return address(after)
            stale -= 1
            if not stale:
                asked.set()
            return address(before)

        given = replace(settings(find), watch_s=WATCH_S)
        marks = Marks("history-1")
        for node in (before, after):
            await provision(replace(settings(node), wait_s=5.0), marks.incarnation, 0)
        async with running(given, marks) as (opened, fatal):
            for text in "123":
                await opened.act("note", [LIST], [text], level="all")
            stale = 2  # to who looks whether it moved, and to who connects
            await asked.wait()
            async with asyncio.timeout(10):
                while True:
                    try:
                        await opened.act("note", [LIST], ["4"], level="all")
                        break
                    except (Refused, Unknown):
                        await asyncio.sleep(0.01)
            await asyncio.sleep(5 * WATCH_S)  # it would have ended by then
            assert fatal == []
            assert before.ask("EXISTS", LIST) == 0


async def test_looks_leave_a_primary_that_was_replaced(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """It was cut off from the others and not from this gateway: it would serve looks for ever.
    Nobody writes anything, and so nobody notices by a failure."""
    with (
        replicated(redis_binary, tmp_path / "old", replicas=0) as old,
        replicated(redis_binary, tmp_path / "new", replicas=0) as new,
    ):
        named = old.nodes[0]

        async def find() -> Address:
            return address(named)

        for node in (old.nodes[0], new.nodes[0]):
            await provision(replace(settings(node), wait_s=5.0), "history-1", 0)
        new.nodes[0].ask("RPUSH", LIST, "new")
        given = replace(settings(find), watch_s=WATCH_S)
        async with running(given, Marks("history-1")) as (opened, fatal):
            assert await opened.look("find", [LIST], []) == []
            named = new.nodes[0]

            async def sees() -> bool:
                found: list[bytes] = await opened.look("find", [LIST], [])
                return found == [b"new"]

            await becomes(sees)
            assert fatal == []
            old.nodes[0].kill()
            until(lambda: not old.nodes[0].is_running, "it is gone")
            assert await opened.look("find", [LIST], []) == [b"new"]


async def test_a_store_that_is_written_while_it_is_looked_at_is_no_older_copy(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """What is confirmed while the answer is on its way is not in it. Answers take different times,
    so that confirmations overtake them."""
    with replicated(redis_binary, tmp_path, replicas=0) as servers:
        node = servers.nodes[0]
        await provision(settings(node), "history-1", 0)
        async with Proxy(address(node).port, is_http=False) as proxy:
            proxy.treat_all(down=Treatment(delay_s=(0.0, 0.004)))
            there = fixed(address_of(proxy.url.removeprefix("http://")))
            given = replace(settings(there, wait_s=5.0), watch_s=0.0)
            async with running(given, Marks("history-1")) as (opened, fatal):
                for number in range(300):
                    await opened.act("note", [LIST], [str(number)], level="all")
                assert fatal == []
