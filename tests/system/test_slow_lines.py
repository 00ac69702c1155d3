"""A slow line: a transfer that moves is alive, however long it takes, and one that stands still is
cut at its deadline. The tests use a proxy with a low rate, messages that are large for it, and
short deadlines and leases. They cover both SDKs, both transports, both directions, and calls over
HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import httpx2
import pytest
import tocsin
from tocsin.io import longpoll as polling
from tocsin.proto.connect_policy import Transport

from loadtests.faults.proxy import HELD, Proxy, Treatment
from loadtests.node import run_node
from loadtests.server import Server
from tests.javascript.conftest import PACKAGE
from tests.waiting import becomes

SLOW: Final = Treatment(trickle_bytes=5_000, trickle_s=0.1)
"""50 kB/s: the message takes five times a heartbeat's deadline."""
BODY: Final = "x" * 250_000
QUEUE: Final = "large"
GROUP: Final = "readers"
SHORT: Final = "short"
"""A group whose leases end while a message is being transferred."""
LEASE_S: Final = 2.0
TRANSPORTS: Final[tuple[Transport, ...]] = ("websocket", "long-poll")
PAGES: Final = (("websocket", 1.0), ("long-poll", 4.0))
"""Transports with their heartbeats; over long poll a page's clock is four times as fast here."""


@pytest.fixture
def heartbeat_s() -> float:
    return 1.0


@pytest.fixture
def server(tmp_path: Path, heartbeat_s: float) -> Iterator[Server]:
    settings = {"TOCSIN_HEARTBEAT_S": str(heartbeat_s)}
    with Server(tmp_path / "data", level="warning", settings=settings) as server:
        yield server


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with tocsin.connect(server.url) as client:
        await client.create_queue(QUEUE, partitions=1)
        await client.create_group(QUEUE, GROUP, start="earliest")
        await client.create_group(QUEUE, SHORT, start="earliest", lease_s=LEASE_S)
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten long poll's own deadlines in proportion."""
    monkeypatch.setattr(polling, "WAIT_S", 1.0)
    monkeypatch.setattr(polling, "REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(polling, "BODY_TIMEOUT_S", 1.0)
    monkeypatch.setattr(polling, "PATIENCE_S", 1.0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_large_message_goes_up_a_slow_line(proxy: Proxy, transport: Transport) -> None:
    async with tocsin.connect(proxy.url, transport=transport) as client:
        sessions = client.session_id
        proxy.treat_all(up=SLOW)
        began = monotonic()
        await client.publish(QUEUE, BODY, timeout_s=30)
        assert monotonic() - began > 3, "it was slow"
        assert client.session_id == sessions
        if transport == "websocket":
            assert proxy.counts["connections"] == 1


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_large_message_comes_down_a_slow_line(
    server: Server, proxy: Proxy, transport: Transport
) -> None:
    async with tocsin.connect(proxy.url, transport=transport) as client:
        proxy.treat_all(down=SLOW)
        began = monotonic()
        async with client.subscribe(QUEUE, group=GROUP) as messages:
            async with tocsin.connect(server.url) as other:
                await other.publish(QUEUE, BODY)
            async with asyncio.timeout(30):
                message = await anext(messages)
                assert monotonic() - began > 3, "it was slow"
                assert (message.body, message.attempt) == (BODY, 1)
                await message.ack(confirm=True)
        if transport == "websocket":
            assert proxy.counts["connections"] == 1


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_stands_still_half_way_is_cut(proxy: Proxy, transport: Transport) -> None:
    """A publish goes on when the line does, over another connection."""
    async with tocsin.connect(proxy.url, transport=transport) as client:
        proxy.treat_all(up=SLOW)
        publishing = asyncio.create_task(client.publish(QUEUE, BODY, timeout_s=120))
        sent = proxy.byte_counts["up"]
        await becomes(lambda: proxy.byte_counts["up"] >= sent + 50_000)
        proxy.treat_all(up=HELD, down=HELD)
        took_s = await becomes(lambda: client.transport is None)
        assert took_s < (4 if transport == "websocket" else 40)
        proxy.cut_all()
        proxy.treat_all()
        await publishing


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize(("transport", "heartbeat_s"), PAGES)
async def test_a_page_s_large_message_passes_a_slow_line(
    server: Server, proxy: Proxy, transport: Transport, way: str
) -> None:
    """The JavaScript SDK, which sees nothing of a message before all of it has come."""
    script = PACKAGE / "test/slow-line.js"
    proxy.treat_all(**{way: SLOW})
    if way == "down":
        async with tocsin.connect(server.url) as other:
            await other.publish(QUEUE, BODY)
    ran = await asyncio.to_thread(
        partial(
            run_node, script, proxy.url, transport, way, QUEUE, GROUP, str(len(BODY)), timeout_s=40
        )
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    assert said["tookMs"] > 3000, "it was slow"
    assert said["losses"] == []
    assert said["attempt"] == 1


# --- Leases ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_longer_on_its_way_than_its_lease_is_given_once(
    server: Server, proxy: Proxy, transport: Transport
) -> None:
    """P6: three messages wait, each with five seconds of transfer. None comes again, each is
    settled."""
    async with tocsin.connect(server.url) as other:
        ids = [(await other.publish(QUEUE, BODY)).id for _ in range(3)]
    proxy.treat_all(down=SLOW)
    given: list[tuple[str, int]] = []
    async with (
        tocsin.connect(proxy.url, transport=transport) as client,
        client.subscribe(QUEUE, group=SHORT) as messages,
        asyncio.timeout(60),
    ):
        async for message in messages:
            given.append((message.id, message.attempt))
            await message.ack(confirm=True)
            if len(given) == len(ids):
                break
    assert given == [(message_id, 1) for message_id in ids]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_stands_still_on_its_way_comes_back_uncounted(
    server: Server, proxy: Proxy, transport: Transport
) -> None:
    """P6: another consumer of the group gets it, though the line is not cut."""
    async with tocsin.connect(proxy.url, transport=transport, linger_s=1) as client:
        async with client.subscribe(QUEUE, group=SHORT), tocsin.connect(server.url) as other:
            proxy.treat_all(down=SLOW)
            before = proxy.byte_counts["down"]
            published = await other.publish(QUEUE, BODY[:100_000])
            await becomes(lambda: proxy.byte_counts["down"] > before + 20_000)
            proxy.treat_all(up=HELD, down=HELD)
            async with other.subscribe(QUEUE, group=SHORT) as messages, asyncio.timeout(60):
                message = await anext(messages)
                assert (message.id, message.attempt) == (published.id, 1)
                await message.ack(confirm=True)
        proxy.cut_all()
        proxy.treat_all()


@pytest.mark.parametrize(("transport", "heartbeat_s"), PAGES)
async def test_a_page_is_given_once_what_is_longer_on_its_way_than_its_lease(
    server: Server, proxy: Proxy, transport: Transport
) -> None:
    """The JavaScript SDK."""
    proxy.treat_all(down=SLOW)
    async with tocsin.connect(server.url) as other:
        ids = [(await other.publish(QUEUE, BODY)).id for _ in range(3)]
    script = PACKAGE / "test/slow-line.js"
    ran = await asyncio.to_thread(
        partial(
            run_node, script, proxy.url, transport, "down", QUEUE, SHORT, str(len(BODY)),
            str(len(ids)), timeout_s=60,
        )
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    assert (sorted(said["ids"]), said["attempt"]) == (ids, 1)  # of any partitions
    assert said["losses"] == []


async def test_the_lease_of_what_is_pulled_counts_from_when_the_answer_has_arrived(
    server: Server, proxy: Proxy
) -> None:
    """P6: both messages are settled, and the receipts are not stale."""
    async with tocsin.connect(server.url) as other:
        for _ in range(2):
            await other.publish(QUEUE, BODY)
    proxy.treat_all(down=SLOW)
    group = f"/v1/queues/{QUEUE}/groups/{SHORT}"
    async with httpx2.AsyncClient(base_url=proxy.url, timeout=60) as http:
        began = monotonic()
        asked = {"messages_max": 2, "wait_s": 20}
        pulled = (await http.post(f"{group}/pull", json=asked)).json()["messages"]
        assert monotonic() - began > 8, "it was slow"
        receipts = [message["receipt"] for message in pulled]
        answer = await http.post(f"{group}/ack", json={"receipts": receipts})
        assert (answer.status_code, answer.json()["settled"]) == (200, 2), answer.text
