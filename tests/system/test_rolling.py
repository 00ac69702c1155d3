"""Every process of a whole cluster is restarted, one after the other, while it works (P14). No
publish fails, nothing is lost or given twice, and keys stay in order."""

import asyncio
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import tocsin
from tocsin.api.reader import Reader

from tests.servers.node import until
from tests.system.test_cluster import Run, clusters, pids, running
from tests.waiting import becomes

WHOLE: Final = bool(os.environ.get("TOCSIN_SOAK"))
KEYS: Final = 40
BETWEEN_S: Final = 0.01
"""Pause between two publishes of a producer, a load that two cores carry beside all these
processes."""
PUBLISH_TIMEOUT_S: Final = 60.0
"""Longer than a failover, and than a restarted replica's full copy."""


@dataclass
class Load:
    """Messages published of each key, and those that came to a group and to a reader."""

    published: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    handled: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    read: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_over: bool = False
    """Whether publishing has ended."""

    async def produce(self, client: tocsin.Client, keys: list[str]) -> None:
        """Publish one message of each key after the other, each answered before the next."""
        for key in itertools.cycle(keys):
            if self.is_over:
                return
            await client.publish("q", self.published[key], key=key, timeout_s=PUBLISH_TIMEOUT_S)
            self.published[key] += 1
            await asyncio.sleep(BETWEEN_S)

    async def handle(self, message: tocsin.Message) -> None:
        """Handle a message of the group."""
        assert message.key is not None
        self.handled[message.key].append(message.body)

    async def watch(self, messages: Reader) -> None:
        """Note the reader's messages."""
        async for message in messages:
            assert message.key is not None
            self.read[message.key].append(message.body)

    def goes_on(self, count: int) -> bool:
        """Whether this many were published."""
        return sum(self.published.values()) >= count

    def has_come(self) -> bool:
        """Whether everything has come, or more."""
        wanted = sum(self.published.values())
        return all(sum(map(len, some.values())) >= wanted for some in (self.handled, self.read))

    def check(self) -> None:
        """Check that everything came once, in its order."""
        for key, count in self.published.items():
            assert self.handled[key] == list(range(count)), f"{key}, the group"
            assert self.read[key] == list(range(count)), f"{key}, the reader"


@asynccontextmanager
async def working(url: str) -> AsyncIterator[Load]:
    """Run two producers, two consumers and a reader, all through the balancer. At the end
    everything published has come."""
    load = Load()
    async with AsyncExitStack() as stack:
        one, two, three = [
            await stack.enter_async_context(tocsin.connect(url, linger_s=60)) for _ in range(3)
        ]
        await one.create_queue("q", partitions=8, retention_s=3600)
        await one.create_group("q", "g")
        consumers = [
            await stack.enter_async_context(client.subscribe("q", "g")) for client in (one, two)
        ]
        reader = await stack.enter_async_context(three.read("q", start="earliest"))
        keys = [f"k{number}" for number in range(KEYS)]
        async with asyncio.TaskGroup() as tasks:  # a failure of any ends it
            listening = [
                *(tasks.create_task(one.run(load.handle, concurrency=8)) for one in consumers),
                tasks.create_task(load.watch(reader)),
            ]
            producing = [
                tasks.create_task(load.produce(client, some))
                for client, some in ((one, keys[::2]), (two, keys[1::2]))
            ]
            yield load
            load.is_over = True
            await asyncio.wait(producing)
            await becomes(load.has_come)
            await asyncio.sleep(1)  # and nothing more comes
            for task in listening:
                task.cancel()


def restart(run: Run, name: str, pid: int) -> None:
    """Restart a process as an operator does, and wait until it is ready. (On SIGTERM, HAProxy ends
    by the signal itself, and closes all connections.)"""
    os.kill(pid, signal.SIGTERM)
    end = "was ended by signal 15" if name == "balancer" else "has ended with exit code 0"
    for wanted in (f"{name} {end}", f"{name} is ready again"):
        said = run.line()["text"]
        assert said.startswith(wanted), said


def is_whole(settings: str) -> bool:
    """Whether all servers are well, as the managers report it."""
    return all(
        sorted(one["state"] for one in cluster["servers"]) == ["in sync", "in sync", "primary"]
        for cluster in clusters(settings)
    )


@pytest.mark.skipif(not WHOLE, reason="every process of a cluster: make soak has it")
async def test_every_process_is_restarted_while_it_works(tmp_path: Path) -> None:
    """Replicas before their primary, as deploy/redis says; then Sentinels, nodes of the metadata
    service, managers, gateways and the balancer."""
    with running(tmp_path / "cluster", "--no-demo") as run:
        shown = await asyncio.to_thread(run.started)
        found, settings = pids(shown), shown["settings"]
        assert len(found) == 2 * (3 + 3) + 3 + 2 + 3 + 1

        def whole() -> None:
            until(lambda: is_whole(settings), "the managers say that all is whole", within_s=90)

        await asyncio.to_thread(whole)
        stores = [f"store-{name}-{number}" for name in ("one", "two") for number in (2, 3, 1)]
        others = sorted(name for name in found if not name.startswith(("store-", "balancer")))
        async with working(shown["url"]) as load:
            for name in [*stores, *others, "balancer"]:
                before = sum(load.published.values())
                await asyncio.to_thread(restart, run, name, found[name])
                if name in stores:
                    await asyncio.to_thread(whole)
                await becomes(partial(load.goes_on, before + 100))
        load.check()
        assert run.end() == 0
