"""Histories of two gateways over one Redis or Valkey, with the catalog at three nodes of the
metadata service. The nodes are killed, exchanged and cut off, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.broker import Broker
from gateway.config import Config
from metadata.catalog import ANYBODY, QueueSettings
from metadata.heartbeats import GONE_S
from metadata.service.protocol import LAYOUTS, Layout
from push.errors import Refused, TocsinError
from services.metadata_node.server import NodeServer, NodeSettings
from tests.histories.house import delivery, message, never
from tests.histories.redis_gateways import emptied
from tests.histories.test_gateways_on_redis import Gateway, group_of, node, publish
from tests.servers.node import Node
from tests.waiting import becomes

__all__ = ["node"]
TOKEN = "0123456789abcdef0123456789abcdef"


class Nodes:
    """Nodes of one layout over one store, each on a port of its own that it keeps."""

    def __init__(self, folder: Path, storage: str, layout: Layout) -> None:
        self._folder = folder
        self._storage = storage
        self._layout: Layout = layout
        self.servers: dict[str, NodeServer] = {}
        self.ports: dict[str, int] = {}

    async def start(self, name: str) -> None:
        """Start one node, on its port of before."""
        folder = self._folder / name
        settings = NodeSettings(
            Config(data_dir=folder, storage=self._storage, metadata_token=TOKEN),
            "127.0.0.1",
            self.ports.get(name, 0),
            self._layout,
        )
        server = await NodeServer.open(settings, on_fatal=never)
        self.servers[name] = server
        self.ports[name] = int(server.node.url.rpartition(":")[2])

    @property
    def urls(self) -> str:
        """Return the URLs of all nodes, including stopped ones."""
        return " ".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def cut(self, name: str) -> NodeServer:
        """Reset the connections of a node, and let it take no new ones. It does not notice why."""
        server = self.servers.pop(name)
        server._listener.close()
        for connection in list(server._listener.server_state.connections):
            connection.transport.abort()
        return server

    async def kill(self, name: str) -> None:
        """Kill a node. It sends no further frame."""
        server = self.cut(name)
        for task in server.node._tasks:
            task.cancel()
        setattr(server.node.database, "beat_node", _silent)  # noqa: B010
        await server._rest.aclose()

    async def close(self) -> None:
        """Close all that are left."""
        for server in self.servers.values():
            await server._listener.finish(1)
            await server._rest.aclose()


async def _silent(*_: object) -> dict[str, int]:
    return {}


class Known(Gateway):
    """Gateway that knows the URLs of the metadata service."""

    def __init__(self, folder: Path, url: str, nodes: Nodes) -> None:
        super().__init__(folder, url)
        self._config = msgspec.structs.replace(
            self._config, metadata=nodes.urls, metadata_token=TOKEN
        )

    async def open(self) -> None:
        """Start it."""
        self.broker = await Broker.open(self._config, on_fatal=never)


@pytest.fixture(params=LAYOUTS)
async def nodes(request: pytest.FixtureRequest, node: Node, tmp_path: Path) -> AsyncIterator[Nodes]:
    """Three nodes over an empty server."""
    made = Nodes(tmp_path, await emptied(node), request.param)
    for name in ("n1", "n2", "n3"):
        await made.start(name)
    yield made
    await made.close()


@pytest.fixture
async def gateways(nodes: Nodes, tmp_path: Path) -> AsyncIterator[list[Known]]:
    """Two gateways."""
    async with AsyncExitStack() as stack:
        opened = []
        for name in "ab":
            (tmp_path / name).mkdir(mode=0o700)
            gateway = Known(tmp_path / name, nodes._storage, nodes)
            await gateway.open()
            stack.push_async_callback(gateway.stop)
            opened.append(gateway)
        yield opened


class Load:
    """Load that publishes to a known queue through both gateways, all the time. It remembers every
    failure."""

    def __init__(self, gateways: list[Known]) -> None:
        self._gateways = gateways
        self.published = 0
        self.failures: list[Any] = []
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(len(gateways))]

    async def _run(self, number: int) -> None:
        gateway = self._gateways[number]
        while True:
            try:
                await publish(gateway, 5, first=self.published)
            except (TocsinError, AssertionError) as error:
                self.failures.append(error)
            self.published += 5
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Raise AssertionError if a publish failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        assert self.failures == []
        assert self.published > 0


def knows(gateway: Known, name: str) -> bool:
    """Return whether the gateway knows the queue."""
    try:
        gateway.broker.find_queue(ANYBODY, name)
    except Refused:
        return False
    return True


async def usable_everywhere(gateways: list[Known], name: str) -> float:
    """Make a queue on the first gateway and publish to it on all. Return how many seconds passed
    until all could."""
    loop = asyncio.get_running_loop()
    await gateways[0].broker.create_queue(ANYBODY, name, QueueSettings(partitions=1))
    made = loop.time()
    for gateway in gateways:
        await becomes(partial(knows, gateway, name))
        queue = gateway.broker.find_queue(ANYBODY, name)
        (answer,) = await gateway.publish(queue, [message(1, "k")])
        assert not isinstance(answer, str), answer
    return loop.time() - made


async def test_nodes_are_killed_one_after_another_under_load(
    nodes: Nodes, gateways: list[Known]
) -> None:
    """No publish on a known queue fails. A new queue is usable on every gateway within a second,
    through the remaining nodes."""
    await gateways[0].queue(partitions=4)
    await becomes(lambda: all(knows(one, "orders") for one in gateways))
    load = Load(gateways)
    for number, name in enumerate(("n1", "n2", "n3")):
        await asyncio.sleep(0.3)
        await nodes.kill(name)
        assert await usable_everywhere(gateways, f"new-{number}") < 1
        await nodes.start(name)
        assert await usable_everywhere(gateways, f"back-{number}") < 1
    await load.stop()


@pytest.mark.parametrize("nodes", ["whole"], indirect=True)
async def test_all_nodes_are_cut_off_and_known_queues_go_on(
    nodes: Nodes, gateways: list[Known]
) -> None:
    """This lasts longer than a gateway may be silent. Published messages are pushed and settled as
    ever, and a new queue is refused. Afterwards everything is as before."""
    one, two = gateways
    group = await group_of(gateways)  # type: ignore[arg-type]
    more = [await one.group(one.find(), f"more-{number}") for number in range(8)]
    first, consumer = await one.consumer(group, "s1")
    second, other = await two.consumer(group, "s2")
    await becomes(lambda: len(one.owns(group)) == len(two.owns(group)) == 2)
    servers = [nodes.cut(name) for name in list(nodes.servers)]
    loop = asyncio.get_running_loop()

    def pushed(count: int) -> bool:
        return len(first.bodies) + len(second.bodies) == count

    until, published = loop.time() + GONE_S + 2, 0
    with pytest.raises(TocsinError, match=r"_unavailable|unknown"):
        await two.queue("late")
    # Joins look at rows again and again, and are not answered. There is always one that waits, and
    # that the breaker would let through in place of a heartbeat.
    joining = [asyncio.create_task(one.consumer(each, f"late-{each.name}")) for each in more]

    def look_on() -> None:
        for each in (group, *more):
            if each.group_id in one.broker.groups.runtimes:
                one.broker.groups.runtimes[each.group_id].part.write_soon()

    while loop.time() < until:
        look_on()
        await publish(one, 4, first=published)
        await publish(two, 4, first=published + 4)
        published += 8
        await becomes(partial(pushed, published))
        assert not one.broker.groups.presence.is_alone
        await asyncio.sleep(0.2)
    assert not one.broker.groups.presence.is_alone
    for session, whose, gateway in ((first, consumer, one), (second, other, two)):
        mine = [item for place, *_ in session.given for item in delivery(place)]
        assert await gateway.confirm(whose, mine) == (len(session.bodies), 0)
    refused = await asyncio.gather(*joining, return_exceptions=True)
    assert all(isinstance(answer, TocsinError) for answer in refused)
    for server in servers:
        for task in server.node._tasks:
            task.cancel()
        await server._rest.aclose()
    for name in list(nodes.ports):
        await nodes.start(name)
    await becomes(lambda: one.broker.metadata.facts()["breaker"] == "closed")
    assert await usable_everywhere(gateways, "late") < 5
    assert sorted(first.bodies + second.bodies) == list(range(published))
    assert len(one.owns(group)) == len(two.owns(group)) == 2


async def test_nodes_are_exchanged_one_after_another_under_load(
    nodes: Nodes, gateways: list[Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling restart: Each node leaves in an orderly way, and a new one takes its place."""
    monkeypatch.setattr("services.metadata_node.server.LEAVE_S", 0.6)  # more than a watch
    await gateways[0].queue(partitions=4)
    await becomes(lambda: all(knows(one, "orders") for one in gateways))
    load = Load(gateways)
    for number, name in enumerate(("n1", "n2", "n3")):
        await nodes.servers.pop(name).stop()
        await nodes.start(name)
        assert await usable_everywhere(gateways, f"new-{number}") < 1
    await load.stop()
