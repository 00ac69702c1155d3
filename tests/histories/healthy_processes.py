"""Histories of real broker processes, their sockets and the SDK, which are stopped, killed and
started again, and leave their delivery logs."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import tocsin

from gateway.deliverylog.writer import FOLDER
from loadtests.server import Server
from tests.histories.redis_gateways import a_server, emptied
from tests.waiting import becomes

FEW: Final = {
    "TOCSIN_DELIVERY_LOG_FILE_BYTES": "65536", "TOCSIN_DELIVERY_LOG_FILE_S": "1",
    "TOCSIN_LOG_LEVEL": "warning", "TOCSIN_FREE_BYTES_RESERVE": "0",
}  # fmt: skip
"""Small files, so that there are several each."""
KEYS: Final = 40
Servers = list[Server]


class People:
    """Producers and consumers, over real sockets; after each failure they connect again."""

    def __init__(self, queue: str, seed: int) -> None:
        self.queue = queue
        self.random = Random(seed)
        self.sent = 0
        self.handled = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, stack: AsyncExitStack, servers: Servers, *, credit: int) -> None:
        """Connect a client to each; the first one creates the queue."""
        for server in servers:
            client = await stack.enter_async_context(tocsin.connect(server.url))
            if server is servers[0]:
                await client.create_queue(
                    self.queue, partitions=4, retention_s=3600, backoff_s=0.2, backoff_max_s=0.5
                )
                await client.create_group(self.queue, "billing")
            self.tasks += [
                asyncio.create_task(self._publish(client)),
                asyncio.create_task(self._consume(client, credit)),
            ]

    async def _publish(self, client: tocsin.Client) -> None:
        while True:
            with suppress(tocsin.TocsinError):
                await client.publish(
                    self.queue, {"n": self.sent}, key=f"k{self.random.randrange(KEYS)}"
                )
                self.sent += 1
            await asyncio.sleep(self.random.uniform(0, 0.01))

    async def _consume(self, client: tocsin.Client, credit: int) -> None:
        async with client.subscribe(self.queue, "billing", credit=credit) as messages:

            async def handle() -> None:
                async for message in messages:
                    await asyncio.sleep(self.random.uniform(0, 0.03))
                    with suppress(tocsin.StaleDelivery):
                        if self.random.randrange(10) == 0:
                            await message.nack()
                        else:
                            await message.ack()
                        self.handled += 1

            await asyncio.gather(*[handle() for _ in range(4)])

    async def more(self, count: int) -> None:
        """Wait until `count` more are handled."""
        until = self.handled + count
        await becomes(lambda: self.handled >= until or self._failed())
        for task in self.tasks:
            if task.done():
                task.result()

    def _failed(self) -> bool:
        return any(task.done() for task in self.tasks)

    async def end(self) -> None:
        """Stop all clients."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def killed_alone(servers: Servers, people: People) -> None:
    """The only one is killed and started again, twice; it has a backlog when it is stopped."""
    for _ in range(2):
        await people.more(150)
        await asyncio.to_thread(servers[0].kill)
        await asyncio.to_thread(servers[0].start)
    await people.more(100)
    await asyncio.to_thread(servers[0].stop)


async def killed_beside_another(servers: Servers, people: People) -> None:
    """One of two over one store is killed. The other one goes on, and is stopped when the first one
    is ready again."""
    first, second = servers
    await people.more(200)
    await asyncio.to_thread(first.kill)
    await people.more(200)
    await asyncio.to_thread(first.start)
    await people.more(200)
    await asyncio.to_thread(second.stop)
    await people.more(100)
    await asyncio.to_thread(first.stop)


PROCESSES: Final[dict[str, Callable[[Servers, People], Awaitable[None]]]] = {
    one.__name__: one for one in (killed_alone, killed_beside_another)
}


@contextmanager
def _servers(folder: Path, count: int) -> Iterator[Servers]:
    if count == 1:
        yield [Server(folder / "data1", settings=FEW)]
        return
    with a_server() as store:
        shared = {"TOCSIN_STORAGE": asyncio.run(emptied(store)), "TOCSIN_ENCRYPTION": "no"}
        yield [Server(folder / f"data{one + 1}", settings=FEW | shared) for one in range(count)]


def logs_of_processes(name: str, seed: int, folder: Path, into: Path) -> list[Path]:
    """Run this history, and put its log files into folders of `into`, one for each server."""
    with _servers(folder, 2 if name == "killed_beside_another" else 1) as servers:
        try:
            asyncio.run(_run(name, seed, servers))
        finally:
            for server in servers:
                server.discard()
        made = []
        for server in servers:
            made.append(into / f"{name}-{server.data_dir.name}" / FOLDER)
            shutil.copytree(server.data_dir / FOLDER, made[-1])
        return made


async def _run(name: str, seed: int, servers: Servers) -> None:
    for server in servers:
        server.spawn()
    for server in servers:
        await asyncio.to_thread(server.wait_ready)
    people = People(name, seed)
    async with AsyncExitStack() as stack:
        await people.open(stack, servers, credit=20)
        try:
            await PROCESSES[name](servers, people)
        finally:
            await people.end()
