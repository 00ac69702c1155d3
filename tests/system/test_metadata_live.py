"""Processes of the metadata service, over TLS and with a token, which are killed, frozen and
stopped while gateways go on."""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import tocsin
from click.testing import CliRunner

from gateway.cli.metadata import metadata
from loadtests.server import Server
from tests.authority import Authority
from tests.histories.redis_gateways import a_server, emptied
from tests.system.talk import UNEXPECTED
from tests.waiting import becomes

TOKEN = "0123456789abcdef0123456789abcdef"
SERVE = ("-c", "from gateway.cli.metadata import metadata; metadata()", "serve")
KNOWN_S = 1.0
"""The promised time until a new queue is known."""
BUSY_S = 2.0
"""Additional time for a machine that has more to do."""


class NodeProcess(Server):
    """A `tocsin metadata serve`."""

    def __init__(self, data_dir: Path, settings: dict[str, str], ca: Path) -> None:
        super().__init__(data_dir, command=SERVE, settings=settings, ca=ca)
        self._settings |= {
            "TOCSIN_METADATA_PORT": str(self.port),
            "TOCSIN_METADATA_ADVERTISE": self.url,
        }


@dataclass
class World:
    """Three nodes and two gateways over one store."""

    nodes: list[NodeProcess]
    gateways: list[Server]
    ca: Path
    service: dict[str, str]
    """A gateway's settings for the service."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The whole installation, for all tests, which leave everything running. Its logs hold nothing
    unexpected in the end."""
    folder = tmp_path_factory.mktemp("metadata")
    authority = Authority(folder)
    pair = authority.issue("node")
    with a_server() as store:
        shared = {
            "TOCSIN_STORAGE": asyncio.run(emptied(store)), "TOCSIN_METADATA_TOKEN": TOKEN,
            "TOCSIN_METADATA_CA_FILE": str(authority.ca),
        }  # fmt: skip
        own = shared | {
            "TOCSIN_METADATA_LAYOUT": "ring", "TOCSIN_TLS_CERT": str(pair.cert),
            "TOCSIN_TLS_KEY": str(pair.key),
        }  # fmt: skip
        nodes = [NodeProcess(folder / f"n{number}", own, authority.ca) for number in range(3)]
        service = shared | {"TOCSIN_METADATA": " ".join(one.url for one in nodes)}
        service["TOCSIN_ENCRYPTION"] = "no"
        gateways = [Server(folder / name, settings=service) for name in ("a", "b")]
        try:
            start(nodes)
            start(gateways)
            yield World(nodes, gateways, authority.ca, service)
            with ThreadPoolExecutor() as threads:
                list(threads.map(Server.stop, gateways))
                list(threads.map(Server.stop, nodes))
        finally:
            for process in (*gateways, *nodes):
                process.kill()
        for process in (*gateways, *nodes):
            log = process.log_path.read_bytes()
            assert not UNEXPECTED.search(log), log.decode(errors="replace")
            assert process.exit_code() == 0


def start(processes: Sequence[Server]) -> None:
    """Start all processes at once."""
    for process in processes:
        process.spawn()
    for process in processes:
        process.wait_ready()


async def usable(clients: list[Any], name: str) -> float:
    """Create a queue at the first, publish to it at all others; return how long that took."""
    loop = asyncio.get_running_loop()
    await clients[0].create_queue(name, partitions=1)
    began = loop.time()
    for client in clients[1:]:
        while True:
            try:
                await client.publish(name, {"n": 1}, key="k")
                break
            except tocsin.QueueNotFound:
                if loop.time() - began > 30:
                    raise
                await asyncio.sleep(0.02)
    return loop.time() - began


async def test_nodes_are_killed_and_frozen_while_gateways_go_on(world: World) -> None:
    """No publish on a known queue fails, everything arrives, and a new queue is known everywhere
    within a second; a moment later if the node that a gateway watches has just frozen."""
    sent: list[int] = []
    got: set[int] = set()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(tocsin.connect(one.url)) for one in world.gateways
        ]
        await clients[0].create_queue("orders", partitions=4)
        await usable(clients, "warm")

        async def publish() -> None:
            while True:
                number = len(sent)
                await clients[number % 2].publish("orders", number, key=f"k{number % 20}")
                sent.append(number)

        async def consume() -> None:
            async with clients[1].subscribe("orders", group="billing") as messages:
                async for message in messages:
                    got.add(message.body)
                    await message.ack()

        working = [asyncio.create_task(publish()), asyncio.create_task(consume())]
        for number, node in enumerate(world.nodes):
            node.kill()
            assert await usable(clients, f"killed-{number}") < KNOWN_S + BUSY_S
            node.spawn()
            await asyncio.to_thread(node.wait_ready)
            node.freeze()
            assert await usable(clients, f"frozen-{number}") < 2 * KNOWN_S + BUSY_S
            node.thaw()
            await asyncio.to_thread(node.wait_ready)
        working[0].cancel()
        await asyncio.wait(working[:1])
        assert working[0].cancelled(), working[0].exception()
        assert sent
        await becomes(lambda: got >= {*sent})  # the last one, given up, may have come, too
        working[1].cancel()
        await asyncio.wait(working)


async def test_what_one_gateway_has_made_another_one_knows_at_once(world: World) -> None:
    """A client behind a balancer that creates a queue and then a group, publishes and subscribes,
    may be at another gateway each time."""
    one, other = (server.url for server in world.gateways)
    async with (
        httpx2.AsyncClient() as http, tocsin.connect(one) as here, tocsin.connect(other) as there,
    ):  # fmt: skip
        for number in range(10):
            path = f"/v1/queues/at-once-{number}"
            answers = [
                await http.get(other + path),  # it remembers that the queue does not exist
                await http.put(one + path, json={"partitions": 1}),
                await http.put(other + path + "/groups/billing", json={}),
                await http.get(one + path + "/groups/billing"),
            ]
            assert [one.status_code for one in answers] == [404, 201, 201, 200]
            await here.create_queue(f"sent-{number}", partitions=1)
            await there.publish(f"sent-{number}", {"n": 1}, key="k")
            await here.create_queue(f"read-{number}", partitions=1)
            async with there.subscribe(f"read-{number}", group="billing") as messages:
                await here.publish(f"read-{number}", number, key="k")
                async for message in messages:
                    assert message.body == number
                    await message.ack()
                    break
        missing = await http.get(other + "/v1/queues/nobody-made-it")
        assert missing.status_code == 404


async def test_who_does_not_show_the_token_is_told_nothing(world: World) -> None:
    """P11: except whether it is alive and ready."""
    url = world.nodes[0].url
    async with httpx2.AsyncClient(verify=ssl.create_default_context(cafile=world.ca)) as http:
        for header in ({}, {"Authorization": "Bearer 1"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/v1/nodes", "/v1/shards/0", "/v1/watch", "/v1/nothing"):
                answer = await http.get(url + path, headers=header)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        for path in ("/healthz", "/readyz"):
            assert (await http.get(url + path)).status_code == 200
        shown = {"Authorization": f"Bearer {TOKEN}"}
        async with asyncio.timeout(30):
            while True:  # a node may just have been frozen
                answer = await http.get(url + "/v1/nodes", headers=shown)
                seen = [one["url"] for one in answer.json()]
                if seen == sorted(one.url for one in world.nodes):
                    break
        for path in ("/v1/shards/64", "/v1/watch?wait_s=nan", "/v1/watch?version=x"):
            answer = await http.get(url + path, headers=shown)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_the_nodes_are_shown_and_a_dead_one_is_said(world: World) -> None:
    def status() -> Any:
        return CliRunner(env=world.service).invoke(metadata, ["status"])

    result = await asyncio.to_thread(status)
    assert (result.exit_code, result.output.count("answers")) == (0, 3), result.output
    assert all(f"sees {one.url} (ring)" in result.output for one in world.nodes)
    world.nodes[0].kill()
    result = await asyncio.to_thread(status)
    assert (result.exit_code, result.output.count("answers")) == (1, 2), result.output
    await asyncio.to_thread(world.nodes[0].start)


async def test_a_gateway_does_not_start_while_nobody_answers_and_does_then(world: World) -> None:
    """A sentence says what to do, and its supervisor starts it again."""
    gateway = world.gateways[0]
    await asyncio.to_thread(gateway.stop)
    for node in world.nodes:
        node.kill()
    gateway.spawn()
    await becomes(lambda: not gateway.running())
    assert gateway.exit_code() == 1
    assert "no node of the metadata service answers" in gateway.log_tail(3)
    gateway.log_path.write_bytes(b"")  # these lines were expected
    await asyncio.to_thread(start, world.nodes)
    await asyncio.to_thread(gateway.start)
